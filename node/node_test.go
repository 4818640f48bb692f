package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
	"northstar/transport"
)

func TestOneNodeFromStartToStop(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{n})
	url := "http://" + n.httpAddr
	want(t, plain, "PUT", url+"/v1/kv/a", "1", 200, `"revision"`)
	want(t, plain, "GET", url+"/v1/kv/a", "", 200, "1")
	eventually(t, "the node is ready", func() bool {
		status, _, _ := request(plain, "GET", url+"/readyz", "")
		return status == http.StatusOK
	})
	want(t, plain, "GET", url+"/metrics", "", 200, `northstar_is_leader 1`)
	want(t, plain, "GET", url+"/v1/events?type=election", "", 200, "node n1 won the election")
	eventually(t, "the watchdog is fed", func() bool { return slices.Contains(n.notices.list(), "WATCHDOG=1") })
	if n.notices.list()[0] != "READY=1" {
		t.Errorf("notices: %v", n.notices.list())
	}

	n.Drain(t.Context())
	if !slices.Contains(n.notices.list(), "STOPPING=1") {
		t.Errorf("notices: %v", n.notices.list())
	}
	if _, _, err := request(plain, "GET", url+"/status", ""); err == nil {
		t.Error("a drained node takes connections")
	}
	n.stop()

	startAll(t, []*testNode{n}) // the same data directory
	want(t, plain, "GET", url+"/v1/kv/a", "", 200, "1")
}

func TestDrainMovesLeadership(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	old := startAll(t, nodes)
	eventually(t, "somebody can take over", func() bool {
		return !slices.ContainsFunc(old.Consensus().Peers(), func(p cluster.PeerStatus) bool { return !p.Healthy })
	})
	term := old.Consensus().Status().Term
	old.Drain(t.Context())
	st := old.Consensus().Status()
	if st.LeaderID == old.cfg.ID || st.LeaderID == "" || st.Term <= term || st.Lifecycle != cluster.Draining {
		t.Errorf("after Drain: leader %q, term %d (was %d), lifecycle %s", st.LeaderID, st.Term, term, st.Lifecycle)
	}
	if (elections{old.Node}).mayStartByItself() {
		t.Error("a drained node may start an election")
	}
	// Who leads now need not know yet that it goes.
	eventually(t, "a stopping node rejects TimeoutNow with its reason", func() bool {
		err := leader(t, nodes).Consensus().TransferTo(t.Context(), cluster.TransferNotice{
			To:      old.cfg.ID,
			Trigger: "transfer",
		})
		if err == nil {
			t.Fatal("leadership went to a node that is about to stop")
		}
		return strings.Contains(err.Error(), fmt.Sprintf("node %s is draining", old.cfg.ID))
	})
	old.stop()
}

// An operator drains one leader after another. No transfer fails, and a drained node starts no election until that
// ends.
func TestDrain_ByOperator(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	old := startAll(t, nodes)
	yes, no := true, false
	patch := func(p cluster.MemberPatch) {
		eventually(t, "the record is changed", func() bool {
			return leader(t, nodes).Consensus().ChangeMember(t.Context(),
				cluster.MemberChange{ID: old.cfg.ID, Patch: &p}) == nil
		})
	}
	for i := range 5 {
		if i > 0 {
			patch(cluster.MemberPatch{Drain: &no})
			old = leader(t, nodes)
		}
		patch(cluster.MemberPatch{Drain: &yes})
		eventually(t, "another node leads", func() bool {
			st := old.Consensus().Status()
			return st.LeaderID != "" && st.LeaderID != old.cfg.ID && st.Lifecycle == cluster.Draining
		})
		moves, _, _ := old.eventLog.Latest("transfer", 100)
		for _, m := range moves {
			// A busy machine may need too long for the election.
			busy := strings.Contains(m.Message, "in time") || strings.Contains(m.Message, "deadline")
			if m.Fields["result"] == "failed" && !busy {
				t.Errorf("drain %d: %s", i+1, m.Message)
			}
		}
	}
	if (elections{old.Node}).mayStartByItself() {
		t.Error("a drained node may start an election")
	}
	patch(cluster.MemberPatch{Drain: &no})
	eventually(t, "it may start elections again", func() bool { return (elections{old.Node}).mayStartByItself() })
}

// A leader that an operator keeps from leading hands over, like one that is
// drained.
func TestHandOver_IneligibleLeader(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	for _, n := range nodes {
		n.start()
	}
	no, none := false, 0
	for want, patch := range map[string]cluster.MemberPatch{
		"is not eligible": {Eligible: &no},
		"has priority 0":  {Priority: &none},
	} {
		old := leader(t, nodes)
		eventually(t, "the record is changed", func() bool {
			return leader(t, nodes).Consensus().ChangeMember(t.Context(),
				cluster.MemberChange{ID: old.cfg.ID, Patch: &patch}) == nil
		})
		eventually(t, "another node leads", func() bool {
			st := old.Consensus().Status()
			return st.LeaderID != "" && st.LeaderID != old.cfg.ID
		})
		eventually(t, "the record says why", func() bool {
			return slices.ContainsFunc(old.Consensus().View().Elections(), func(e state.Election) bool {
				return e.Trigger == "transfer" && e.Reason == fmt.Sprintf("node %s %s", old.cfg.ID, want)
			})
		})
	}
}

// TestNew_FailureReleasesResources is not parallel: a program that another test starts holds this process's descriptors
// until it runs.
func TestNew_FailureReleasesResources(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"bad configuration", func(c *Config) { c.Priority = 999 }, "priority = 999"},
		{"HTTP port in use", func(c *Config) { c.HTTPAddr = taken.Addr().String() }, "http-addr: listen tcp"},
		{"data directory is a file", func(c *Config) {
			if err := os.WriteFile(c.DataDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "n1"}, // the path is named
	} {
		t.Run(c.name, func(t *testing.T) {
			n := prepare(t, "n1", c.change)
			n.cfg.RaftAddr = freeAddresses(t, 1)[0]
			_, err := New(n.cfg, n.env)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			l, err := net.Listen("tcp", n.cfg.RaftAddr)
			if err != nil {
				t.Fatalf("the raft port is still bound: %v", err)
			}
			l.Close()
		})
	}
}

// TestCloseWithoutRun is not parallel, for the same reason.
func TestCloseWithoutRun(t *testing.T) {
	n := newCluster(t, 1, nil)[0]
	for range 2 { // the second one finds neither ports nor lock in use
		node, err := New(n.cfg, n.env)
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPriorityZeroAndIneligibleNeverLead(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(i int, c *Config) {
		switch i {
		case 0:
			c.Priority = 0
		case 1:
			c.Eligible = false
		}
	})
	for _, n := range nodes {
		n.start()
	}
	if l := leader(t, nodes); l != nodes[2] {
		t.Fatalf("%s leads", l.cfg.ID)
	}
	eventually(t, "the records tell", func() bool {
		a, _ := nodes[0].Consensus().View().Member("n1")
		b, _ := nodes[0].Consensus().View().Member("n2")
		return a.ID == "n1" && a.Priority == 0 && b.ID == "n2" && !b.Eligible
	})
	nodes[2].stop()
	// Long enough for two elections of each.
	deadline := time.After(2 * nodes[0].cfg.Election.TimeoutMax)
	for {
		select {
		case <-deadline:
			return
		case <-time.After(5 * time.Millisecond):
		}
		for _, n := range nodes[:2] {
			if st := n.Consensus().Status(); st.Role == cluster.Leader {
				t.Fatalf("%s leads", n.cfg.ID)
			}
		}
	}
}

func TestPausedFailover(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(_ int, c *Config) { c.Failover.Auto = false })
	for _, n := range nodes {
		n.start()
	}
	leader(t, nodes) // the pause does not prevent the first election
	eventually(t, "the pause is known everywhere", func() bool {
		for _, n := range nodes {
			if n.Consensus().View().ClusterID() == "" || n.autoFailoverEnabled() {
				return false
			}
		}
		return true
	})
	old := leader(t, nodes) // on a busy machine it may be another one by now
	rest := slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == old })
	want(t, plain, "GET", "http://"+old.httpAddr+"/status", "", 200, `"auto_failover":false`)
	eventually(t, "the event log tells of the pause", func() bool {
		items, _, _ := rest[0].eventLog.Latest("failover", 1)
		return len(items) == 1 && items[0].Message == "automatic failover is paused"
	})
	_, _, before := rest[0].eventLog.Latest("", 1)
	old.stop()
	deadline := time.After(2 * old.cfg.Election.TimeoutMax) // long enough for two elections of each
	for {
		select {
		case <-deadline:
			// No node has started an election, and no event reports one.
			items, _, err := rest[0].eventLog.Since(before, "election", 100)
			for _, e := range items {
				if result, known := e.Fields["result"]; known && result != telemetry.ResultWon {
					t.Errorf("%s, though failover is paused", e.Message)
				}
			}
			if err != nil || len(items) == 0 {
				t.Errorf("events since the leader stopped: %v %v", items, err)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
		for _, n := range rest {
			if st := n.Consensus().Status(); st.Role == cluster.Leader {
				t.Fatalf("%s leads although failover is paused", n.cfg.ID)
			}
		}
	}
}

// cutOff drops the Raft messages from and to one node.
type cutOff struct{ id atomic.Value } // cluster.NodeID; "": none

func (c *cutOff) Outgoing(m transport.Message) transport.Fault {
	id, _ := c.id.Load().(cluster.NodeID)
	return transport.Fault{Drop: id != "" && (m.From == id || m.To == id)}
}

// TestPausedFailover_LastLeaderReturns: failover is paused, and the leader is cut off until it has stepped down. When
// it is back it leads again, and no other node has.
func TestPausedFailover_LastLeaderReturns(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(_ int, c *Config) { c.Failover.Auto = false })
	cut := &cutOff{}
	for _, n := range nodes {
		n.env.Faults = cut
		n.start()
	}
	old := leader(t, nodes)
	eventually(t, "the pause is known everywhere", func() bool {
		for _, n := range nodes {
			if n.Consensus().View().ClusterID() == "" || n.autoFailoverEnabled() {
				return false
			}
		}
		return true
	})
	term := old.Consensus().Status().Term
	cut.id.Store(old.cfg.ID)
	eventually(t, "no leader is known", func() bool {
		for _, n := range nodes {
			if n.Consensus().Status().LeaderID != "" {
				return false
			}
		}
		return true
	})
	want(t, plain, "GET", "http://"+old.httpAddr+"/status", "", 200, "northstarctl failover")
	cut.id.Store(cluster.NodeID(""))
	eventually(t, "the last leader leads again", func() bool {
		for _, n := range nodes {
			if st := n.Consensus().Status(); st.Role == cluster.Leader && n != old {
				t.Fatalf("%s leads", n.cfg.ID)
			}
		}
		st := old.Consensus().Status()
		return st.Role == cluster.Leader && st.Term > term
	})
}

// awaitEventLog waits until the event log of a leader has seen its members as they are: it has an event of each change
// from then on. Which state it sees first depends on the time.
func awaitEventLog(t *testing.T, n *testNode) {
	t.Helper()
	saw := func(zone string) bool {
		items, _, _ := n.eventLog.Latest("member", 1)
		return len(items) > 0 && strings.Contains(items[0].Message, fmt.Sprintf("is in zone %q", zone))
	}
	zone, other, set := "one", "two", time.Time{}
	eventually(t, "the event log tells a change", func() bool {
		if time.Since(set) > 2*pollInterval { // it may have seen the last one as its first state
			zone, other, set = other, zone, time.Now()
			setZone(t, n, zone)
		}
		return saw(zone)
	})
	setZone(t, n, "")
	eventually(t, "the event log tells the last change", func() bool { return saw("") })
}

func setZone(t *testing.T, n *testNode, zone string) {
	t.Helper()
	change := cluster.MemberChange{ID: n.cfg.ID, Patch: &cluster.MemberPatch{Zone: &zone}}
	eventually(t, "the zone is set", func() bool { return n.Consensus().ChangeMember(t.Context(), change) == nil })
}

func TestJoinWithFreePorts(t *testing.T) {
	t.Parallel()
	first := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{first})
	awaitEventLog(t, first)
	second := prepare(t, "n2", func(c *Config) { c.Discover, c.Zone = "dns+srv://peers", "eu" })
	_, port, _ := net.SplitHostPort(first.httpAddr)
	var number uint16
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	second.env.Resolver = &fakeResolver{responses: []func() ([]string, []*net.SRV, error){
		func() ([]string, []*net.SRV, error) { return nil, nil, errors.New("no such host") },
		func() ([]string, []*net.SRV, error) { return nil, []*net.SRV{{Target: "127.0.0.1", Port: number}}, nil },
	}}
	second.start()
	if strings.HasSuffix(second.raftAddr, ":0") || strings.HasSuffix(second.httpAddr, ":0") {
		t.Fatalf("advertises %s and %s", second.raftAddr, second.httpAddr)
	}
	eventually(t, "n2 is a voter", func() bool { return second.Consensus().Status().Suffrage() == cluster.Voter })
	eventually(t, "its record tells its zone", func() bool {
		m, _ := first.Consensus().View().Member("n2")
		return m.Zone == "eu" && m.HTTPAddress == second.httpAddr
	})
	eventually(t, "the event log tells", func() bool {
		items, _, _ := first.eventLog.Latest("member", 10)
		var text []string
		for _, e := range items {
			text = append(text, e.Message)
		}
		return slices.Contains(text, "member n2 joined as nonvoter") &&
			slices.Contains(text, "member n2 is now a voter")
	})
	want(t, plain, "PUT", "http://"+second.httpAddr+"/v1/kv/a", "1", 200, `"revision"`)
}

func TestWarnsWhereTheRecordDiffers(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{n})
	url := "http://" + n.httpAddr
	eventually(t, "the node has a record", func() bool { _, ok := n.Consensus().View().Member("n1"); return ok })
	want(t, plain, "GET", url+"/status", "", 200, `"warnings":[]`)
	awaitEventLog(t, n)
	req, _ := http.NewRequest("PATCH", url+"/admin/members/n1", strings.NewReader(`{"priority":7,"zone":"eu"}`))
	req.Header.Set("Content-Type", "application/json")
	resp, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	want(t, plain, "GET", url+"/status", "", 200, "priority: cluster value 7 overrides configured value 100")
	eventually(t, "the event log tells", func() bool {
		items, _, _ := n.eventLog.Latest("member", 10)
		return len(items) > 0 && strings.Contains(items[len(items)-1].Message, `has priority 7 (was 100), is in zone "eu"`)
	})
}

func TestConnCountWaitsForConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Node
		n.conns.await(time.Hour) // there is none
		n.trackConn(nil, http.StateNew)
		n.trackConn(nil, http.StateNew)
		n.trackConn(nil, http.StateActive)
		n.trackConn(nil, http.StateHijacked)
		start := time.Now()
		time.AfterFunc(time.Second, func() { n.trackConn(nil, http.StateClosed) })
		n.conns.await(time.Hour)
		if took := time.Since(start); took != time.Second {
			t.Errorf("waited %v for a connection of 1 s", took)
		}
		n.trackConn(nil, http.StateNew)
		n.conns.await(time.Minute)
		if took := time.Since(start); took != time.Second+time.Minute {
			t.Errorf("waited %v in all", took)
		}
		// No goroutine waits for the connection that has not ended: the bubble would not end.
	})
}

// TestRunWaitsForRequests: a request that is being served when Run's context
// ends has ended when Run has.
func TestRunWaitsForRequests(t *testing.T) {
	t.Parallel()
	prepared := newCluster(t, 1, nil)[0]
	n, err := New(prepared.cfg, prepared.env)
	if err != nil {
		t.Fatal(err)
	}
	serving, ended := make(chan struct{}), make(chan struct{})
	n.http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(serving)
		<-r.Context().Done()
		time.Sleep(300 * time.Millisecond) // a handler that is slow to notice
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- n.Run(ctx) }()
	go func() { _, _, _ = request(plain, "GET", "http://"+n.httpAddr+"/", "") }()
	<-serving
	cancel()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("the request is still being served")
	}
}
