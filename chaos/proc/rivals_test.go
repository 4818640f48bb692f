package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// forged is a forged peer at a member's addresses, with the identity of its data directory. It claims what a test
// wants, on the connections between peers and in GET /leader. It has no Raft.
type forged struct {
	self  cluster.Peer
	tr    *transport.Transport
	mu    sync.Mutex
	claim cluster.Claim
	end   func() // stops it; may be called twice
}

// forge replaces a node, which must have ended, until the test ends.
func forge(t *testing.T, c *Cluster, n *Node, claim func(*cluster.Claim)) *forged {
	t.Helper()
	dir, err := consensus.OpenOffline(c.DataDir(n))
	if err != nil {
		t.Fatal(err)
	}
	identity, servers := dir.Identity(), dir.Servers()
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	return forgePeer(t, identity, servers, n.Raft, n.HTTP, claim)
}

// forgePeer starts a forged peer.
func forgePeer(t *testing.T, identity cluster.Identity, servers []cluster.Server, raftAddr, httpAddr string,
	claim func(*cluster.Claim),
) *forged {
	t.Helper()
	f := &forged{self: cluster.Peer{
		Identity: identity, BootID: "forged-" + string(identity.NodeID), HTTPAddress: httpAddr, RaftAddress: raftAddr,
		Version: "forged", Priority: 100, Eligible: true,
	}}
	f.claim = cluster.Claim{
		NodeID: f.self.NodeID, ClusterID: f.self.ClusterID, Generation: f.self.Generation, BootID: f.self.BootID,
		Role: cluster.Follower, Priority: 100, Eligible: true, IsVoter: true, Lifecycle: cluster.Active,
	}
	claim(&f.claim)
	peers, err := net.Listen("tcp", raftAddr)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := net.Listen("tcp", httpAddr)
	if err != nil {
		t.Fatal(err)
	}
	f.tr, err = transport.New(transport.Config{
		Listener: peers, Advertise: raftAddr, ClusterName: "northstar", TimeoutMin: patientMax / 2,
		TimeoutMax: patientMax,
		Membership: forgedMembership{self: f.self, servers: servers}, Elections: raftDecides{},
		Replication: f, Claims: f, Events: f, Logger: hclog.NewNullLogger(),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: f}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.tr.Run(ctx); err != nil {
			t.Errorf("forged peer: %v", err)
		}
	})
	running.Go(func() { _ = web.Serve(clients) })
	f.end = sync.OnceFunc(func() { cancel(); _ = web.Close(); running.Wait() })
	t.Cleanup(f.end)
	return f
}

// raftDecides leaves every decision to Raft.
type raftDecides struct{}

func (raftDecides) VetoPreVote(cluster.NodeID, time.Time) string                     { return "" }
func (raftDecides) MayIgnoreLeader(cluster.NodeID, uint64, time.Time) bool           { return false }
func (raftDecides) ApproveTimeoutNow(context.Context, cluster.NodeID, uint64) string { return "" }
func (raftDecides) MayStartElection(cluster.ElectionCause) bool                      { return true }

func (raftDecides) VoteObstacle() (kind, why string)       { return "", "" }
func (raftDecides) VoteReceived(cluster.VoteResponse)      {}
func (raftDecides) VoteAnswered(cluster.VoteGiven, string) {}
func (raftDecides) TermRaised(uint64)                      {}

// forgedMembership knows the servers of its configuration and no other facts about them.
type forgedMembership struct {
	self    cluster.Peer
	servers []cluster.Server
}

func (m forgedMembership) LocalPeer() cluster.Peer            { return m.self }
func (m forgedMembership) Servers() []cluster.Server          { return m.servers }
func (forgedMembership) Record(cluster.NodeID) cluster.Record { return cluster.Record{} }
func (forgedMembership) RecordIncarnation(cluster.Peer) error { return nil }
func (forgedMembership) Adopt(cluster.Peer) error {
	return errors.New("a forged peer adopts nothing")
}
func (forgedMembership) OnHello(cluster.Peer, cluster.Admission)           {}
func (forgedMembership) OnAdmitted(cluster.NodeID)                         {}
func (forgedMembership) OnRefused(cluster.NodeID, cluster.Refusal, string) {}

// say changes its claim.
func (f *forged) say(change func(*cluster.Claim)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.claim)
}

func (f *forged) Claim() cluster.Claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claim
}

func (*forged) OnHeard(cluster.NodeID, *cluster.Claim)      {}
func (*forged) OnConnectionLost(cluster.ConnectionLoss)     {}
func (*forged) ReadOnly() bool                              { return false }
func (*forged) ReplicationPaused() bool                     { return false }
func (*forged) Rejected(string, string)                     {}
func (*forged) InstallRepeated(cluster.NodeID, uint64, int) {}

// ServeHTTP answers GET /leader as a node with the same claim does.
func (f *forged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := f.Claim()
	if r.URL.Path != apiv1.PathLeader || c.LeaderID == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set(apiv1.HeaderCluster, c.ClusterID)
	w.Header().Set(apiv1.HeaderGeneration, fmt.Sprint(c.Generation.Number))
	_ = json.NewEncoder(w).Encode(apiv1.Leader{
		LeaderID: string(c.LeaderID), Term: c.Term,
		ObservedBy: string(c.NodeID),
	})
}

// leads returns a claim that a node leads in a term.
func leads(id string, term uint64) func(*cluster.Claim) {
	return func(c *cluster.Claim) {
		c.Term, c.LeaderID = term, cluster.NodeID(id)
		if c.LeaderID == c.NodeID {
			c.Role = cluster.Leader
		}
	}
}

// watchRefusals sends requests to a node until refused succeeds. The node must have answered a write with 4004, and
// /readyz must have reported the split brain.
func watchRefusals(t *testing.T, n *Node) (refused func() error) {
	var mu sync.Mutex
	var written, red bool
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	t.Cleanup(func() { stop(); asking.Wait() })
	ask := func(method, path string, seen func(answer) bool, mark *bool) {
		asking.Go(func() {
			for ctx.Err() == nil {
				a, err := do(ctx, n, method, path, []byte("x"))
				if err != nil {
					continue
				}
				if seen(a) {
					mu.Lock()
					*mark = true
					mu.Unlock()
				}
			}
		})
	}
	ask(http.MethodPut, "/v1/kv/contested?timeout_ms=100",
		func(a answer) bool { return a.Status == http.StatusConflict && a.Code == 4004 }, &written)
	ask(http.MethodGet, "/readyz", func(a answer) bool {
		return a.Status == http.StatusServiceUnavailable && strings.Contains(string(a.Body), "[-]no_split_brain")
	}, &red)
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if !written || !red {
			return fmt.Errorf("%s: write refused with 4004 %v, readiness red %v", n.ID, written, red)
		}
		return nil
	}
}

// raised waits for an alarm with a verdict, and for the metric.
func raised(t *testing.T, n *Node, verdict string) {
	t.Helper()
	eventually(t, soon, func() error {
		if !alarmed(t, n, verdict) || detected(t, n) == 0 {
			return fmt.Errorf("%s has not raised the alarm of %s", n.ID, verdict)
		}
		return nil
	})
}

// A member claims, to its peers and over HTTP, to lead in the term that another node leads in. The real leader refuses
// requests and steps down. The claim is stale in the term of the next leader, and has no effect.
func TestTwoLeadersInOneTerm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--election-timeout-min", "500ms", "--election-timeout-max", "1s")
	start(t, c)
	ofOneCluster(t, c)
	lead := steady(t, c)
	rest := others(c, lead)
	liar, third := rest[0], rest[1]
	liar.Kill()
	refused := watchRefusals(t, lead)
	f := forge(t, c, liar, leads(liar.ID, mustStatus(t, lead).Term))
	eventually(t, soon, func() error {
		if s := mustStatus(t, lead); s.State == "leader" {
			f.say(leads(liar.ID, s.Term)) // a busy machine may have held an election meanwhile
		}
		return refused()
	})
	raised(t, lead, "split_brain")
	awaitLog(t, c, lead, "stepping down")
	awaitLog(t, c, lead, "all lead in term")
	eventually(t, soon, func() error {
		if !canWrite(t.Context(), third, patientMax) {
			return errors.New("the other two take no write")
		}
		return nil
	})
	if s := mustStatus(t, third); s.Term <= f.Claim().Term || s.LeaderID == liar.ID {
		t.Errorf("%+v", s)
	}
	for _, n := range []*Node{lead, third} {
		r := verdict(t, n, "stale_leader", false)
		if strings.Join(r.Findings[0].Nodes, ",") != liar.ID {
			t.Errorf("%s: %+v", n.ID, r.Findings)
		}
		raised(t, n, "stale_leader")
	}
	f.end()
	if err := c.StartNode(liar); err != nil {
		t.Fatal(err)
	}
	backToNormal(t, c)
}

// backToNormal waits until all nodes detect no split brain, are ready and take writes.
func backToNormal(t *testing.T, c *Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		verdict(t, n, "ok", false)
		eventually(t, soon, func() error {
			a, err := do(t.Context(), n, http.MethodGet, "/readyz", nil)
			if err == nil && a.Status != http.StatusOK {
				err = fmt.Errorf("readyz of %s: %s", n.ID, a.Body)
			}
			if err == nil && !canWrite(t.Context(), n, patientMax) {
				err = fmt.Errorf("%s takes no write", n.ID)
			}
			return err
		})
	}
}

// A leader learns from its peers that they follow another leader in a later term. It steps down immediately, before its
// own timer fires.
func TestStaleLeader_StepsDownByPeerReports(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, calm...)
	lead := start(t, c)
	ofOneCluster(t, c)
	steady(t, c)
	term := mustStatus(t, lead).Term
	rest := others(c, lead)
	refused := watchRefusals(t, lead)
	for _, n := range rest {
		n.Kill()
	}
	var peers []*forged
	for _, n := range rest {
		peers = append(peers, forge(t, c, n, leads(rest[0].ID, term+1)))
	}
	eventually(t, soon, refused)
	raised(t, lead, "stale_leader")
	awaitLog(t, c, lead, "stepping down")
	awaitLog(t, c, lead, "a majority of the voters follows node "+rest[0].ID)
	if s := mustStatus(t, lead); s.State == "leader" {
		t.Errorf("%+v", s)
	}
	for i, f := range peers {
		f.end()
		if err := c.StartNode(rest[i]); err != nil {
			t.Fatal(err)
		}
	}
	backToNormal(t, c)
}

// A node that is no member claims to all members that their generation was superseded. They report it, and go on: they
// serve, and elect the next leader.
func TestStrangerOfANewerGeneration(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	start(t, c)
	ofOneCluster(t, c)
	lead := steady(t, c)
	f := forgePeer(t, cluster.Identity{
		NodeID: "n9", ClusterID: mustStatus(t, lead).ClusterID, Incarnation: "forged",
		Generation: cluster.Generation{Number: 2, RecoveryID: "forged"},
	}, nil, "127.0.0.1:0", "127.0.0.1:0", func(*cluster.Claim) {})
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	t.Cleanup(func() { stop(); calling.Wait() })
	for _, n := range c.Nodes {
		calling.Go(func() {
			for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; {
				_, _, _ = f.tr.Probe(ctx, n.Raft) // refused, and heard
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	serve := func(nodes []*Node) {
		for _, n := range nodes {
			verdict(t, n, "split_brain", false)
			eventually(t, soon, func() error {
				if !canWrite(t.Context(), n, patientMax) {
					return fmt.Errorf("%s takes no write", n.ID)
				}
				return nil
			})
		}
	}
	serve(c.Nodes)
	lead.Kill()
	serve(others(c, lead))
	if err := c.StartNode(lead); err != nil {
		t.Fatal(err)
	}
	serve(c.Nodes)
}

// Two survivors are recovered separately, against all advice. Each detects the other, and neither serves. The one with
// the higher generation continues when the other has stopped.
func TestTwoGenerations(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	start(t, c)
	mustPut(t, c, "k", "v")
	ofOneCluster(t, c)
	steady(t, c)
	id := mustStatus(t, c.Nodes[0]).ClusterID
	c.KillAll()
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	apart := c.Nodes[:2]
	for _, n := range apart {
		if out, err := exec.Command(bin, "recover", "--data-dir", c.DataDir(n), "--confirm",
			id).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range apart {
		r := verdict(t, n, "split_brain", true)
		if !strings.Contains(fmt.Sprint(r.Findings), "two recoveries were done apart") {
			t.Errorf("%s: %+v", n.ID, r.Findings)
		}
		refuses(t, n)
		raised(t, n, "split_brain")
	}
	apart[1].Kill()
	verdict(t, apart[0], "unreachable", false)
	eventually(t, soon, func() error {
		if !canWrite(t.Context(), apart[0], patientMax) {
			return errors.New("no write when the other has gone")
		}
		return nil
	})
}
