package transport

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// answers collects the voters' responses to the end's candidacies.
type answers struct {
	mu  sync.Mutex
	all []cluster.VoteResponse
}

func (a *answers) install(_ *Config, e *end) {
	e.onVote = func(v cluster.VoteResponse) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, v)
	}
}

func (a *answers) last() cluster.VoteResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		return cluster.VoteResponse{}
	}
	return a.all[len(a.all)-1]
}

// flagged makes e request a vote with the flag set, and returns the flag that the voter's raft received.
func flagged(t *testing.T, e, voter *end, got <-chan any) bool {
	t.Helper()
	req := &raft.RequestVoteRequest{RPCHeader: e.header(), Term: 6, LeadershipTransfer: true}
	var resp raft.RequestVoteResponse
	if err := e.raft.RequestVote(raft.ServerID(voter.id), raft.ServerAddress(voter.addr), req, &resp); err != nil ||
		!resp.Granted {
		t.Fatalf("%+v, %v", resp, err)
	}
	if !req.LeadershipTransfer {
		t.Error("the library's request was changed: other goroutines send it too")
	}
	for {
		if c, ok := (<-got).(*raft.RequestVoteRequest); ok {
			return c.LeadershipTransfer
		}
	}
}

// A vote request carries the LeadershipTransfer flag only shortly after the leader or an operator made this node start
// an election.
func TestTransferFlag_NeedsPermission(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		leader, candidate, voter := ends[0], ends[1], ends[2]
		candidate.bind()
		got := voter.bind()
		if flagged(t, candidate, voter, got) {
			t.Error("sent without a warrant")
		}
		for _, by := range []cluster.ElectionCause{cluster.CauseLeaderFailed, cluster.CauseTransferFailed} {
			if _, err := candidate.raft.StartElection(t.Context(), 5, by); err != nil {
				t.Fatal(err)
			}
			if flagged(t, candidate, voter, got) {
				t.Error("sent after this node started an election itself")
			}
		}
		if err := voter.timeoutNow(candidate); err == nil {
			t.Error("TimeoutNow of a follower was accepted")
		}
		if flagged(t, candidate, voter, got) {
			t.Error("sent after a TimeoutNow of somebody else")
		}
		if err := leader.timeoutNow(candidate); err != nil {
			t.Fatal(err)
		}
		if !flagged(t, candidate, voter, got) {
			t.Error("cleared after the leader's TimeoutNow")
		}
		time.Sleep(testMax)
		if flagged(t, candidate, voter, got) {
			t.Error("sent an election timeout later")
		}
		if _, err := candidate.raft.StartElection(t.Context(), 5, cluster.CauseOperator); err != nil {
			t.Fatal(err)
		}
		if !flagged(t, candidate, voter, got) {
			t.Error("cleared after an operator's request")
		}
	})
}

// A leader keeps its lease if its TimeoutNow is refused. Its target then starts an election because of its own
// decision. Its vote request must not pass as the leader's order.
func TestTransferFlag_RefusedTimeoutNow(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]func(target *end){
		"busy":       func(*end) {},
		"not_leader": func(target *end) { target.leader.Store(cluster.NodeID("n2")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, ends []*end) {
				leader, voter, target := ends[0], ends[1], ends[2]
				got := voter.bind()
				target.bindOnly() // no goroutine receives the messages for raft
				sent := make(chan error, 1)
				go func() { sent <- leader.timeoutNow(target) }()
				synctest.Wait()
				during(target)
				err := <-sent
				if !errors.As(err, new(*TimeoutNowUndelivered)) || target.rejected("timeout_now/"+name) != 1 {
					t.Fatalf("its TimeoutNow: %v", err)
				}
				if _, err := leader.append(voter, nil); err != nil {
					t.Fatal(err)
				}
				reached(got)
				var resp raft.RequestVoteResponse
				err = target.raft.RequestVote("n2", raft.ServerAddress(voter.addr), &raft.RequestVoteRequest{
					RPCHeader: target.header(), Term: 6, LeadershipTransfer: true,
				}, &resp)
				if err != nil || resp.Granted || reached(got) != 0 {
					t.Errorf("a vote within the leader's lease: %+v, %v", resp, err)
				}
			}, func(cfg *Config, _ *end) { cfg.Lease = true })
		})
	}
}

// An election that this node starts by its own decision ends an earlier permission. So it does when the leader's
// TimeoutNow waits beside it for raft, and raft takes this node's own message.
func TestTransferFlag_OwnDecision(t *testing.T) {
	t.Parallel()
	for range 20 {
		inBubble(t, 2, func(t *testing.T, ends []*end) {
			leader, e := ends[0], ends[1]
			e.bindOnly()
			allowed := func() bool { return e.raft.flag.Load().allows(0, time.Now(), testMax) }
			var own bool
			take := func() {
				rpc := <-e.raft.Consumer()
				own = string(rpc.Command.(*raft.TimeoutNowRequest).ID) == "n2"
				e.leader.Store(cluster.NodeID("")) // as raft does
				if allowed() == own {
					t.Errorf("its own decision: %v, a request: %v", own, allowed())
				}
				rpc.Respond(&raft.TimeoutNowResponse{}, nil)
			}
			errs := make(chan error, 2)
			ctx, cancel := context.WithTimeout(t.Context(), testMin)
			defer cancel()
			start := func() {
				_, err := e.raft.StartElection(ctx, 5, cluster.CauseLeaderFailed)
				errs <- err
			}
			go func() { errs <- leader.timeoutNow(e) }()
			synctest.Wait()
			go start()
			time.Sleep(5 * busyPollInterval)
			take()
			time.Sleep(5 * busyPollInterval)
			if own && allowed() {
				t.Error("permitted after its own decision")
			}
			e.term.Store(6)
			<-errs
			<-errs
			e.term.Store(5)
			e.leader.Store(cluster.NodeID("n1"))
			e.raft.flag.Store(&flagPermission{at: time.Now()}) // an earlier request
			go start()
			take()
			if err := <-errs; err != nil {
				t.Error(err)
			}
		})
	}
}

// A voter ignores the leader that it knows only by its own evidence, for which it waits up to evidenceWait.
func TestMayIgnoreLeader(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	tests := []struct {
		name     string
		evidence time.Duration // after the vote came
		leader   cluster.NodeID
		term     uint64
		flag     bool
		took     time.Duration
	}{
		{"evidence already there", 0, "n1", 6, true, 0},
		{"evidence a little later", 4 * time.Millisecond, "n1", 6, true, 4 * time.Millisecond},
		{"no evidence", never, "n1", 6, false, 10 * time.Millisecond},
		{"evidence too late", 11 * time.Millisecond, "n1", 6, false, 10 * time.Millisecond},
		{"no leader to pass over", never, "", 6, false, 0},
		{"the candidate is the leader", never, "n2", 6, false, 0},
		{"this node leads", 0, "n3", 6, false, 0},
		{"an old term", never, "n1", 5, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked time.Time
				var candidate cluster.NodeID
				var ends []*end
				for _, nd := range newSimNet().newCluster(t, 3, func(_ *Config, e *end) {
					if e.id == "n3" {
						e.mayIgnoreLeader = func(who cluster.NodeID, term uint64, now time.Time) bool {
							candidate = who
							return term == 6 && now.Sub(asked) >= tt.evidence
						}
					}
				}).nodes {
					ends = append(ends, nd.end)
				}
				a, b := ends[1], ends[2]
				got := b.bind()
				b.leader.Store(tt.leader)
				if _, err := a.preVote(b, 6); err != nil { // dials
					t.Fatal(err)
				}
				reached(got)
				asked = time.Now()
				if _, err := a.vote(b, tt.term); err != nil {
					t.Fatal(err)
				}
				if d := time.Since(asked); d != tt.took {
					t.Errorf("took %v, want %v", d, tt.took)
				}
				c, ok := (<-got).(*raft.RequestVoteRequest)
				if !ok || c.LeadershipTransfer != tt.flag {
					t.Errorf("raft got %+v, want the flag %v", c, tt.flag)
				}
				if candidate != "" && candidate != "n2" {
					t.Errorf("asked about %s", candidate)
				}
			})
		})
	}
}

// A vote request that waits for evidence does not delay other messages.
func TestHeldVoteHoldsUpNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		b.bind()
		b.leader.Store(cluster.NodeID("n9"))
		if _, err := a.preVote(b, 6); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		done := make(chan time.Duration, 1)
		go func() {
			_, _ = a.vote(b, 6)
			done <- time.Since(start)
		}()
		synctest.Wait() // it is held
		if _, err := a.append(b, nil); err != nil || time.Since(start) != 0 {
			t.Errorf("an append took %v: %v", time.Since(start), err)
		}
		if d := <-done; d != evidenceWait {
			t.Errorf("the vote took %v", d)
		}
	})
}

// Evidence lifts the restriction of a proxied acknowledgement.
func TestMayIgnoreLeader_OverridesProxyAck(t *testing.T) {
	t.Parallel()
	var evidence atomic.Bool
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2", func(_ *Config, e *end) {
		e.mayIgnoreLeader = func(cluster.NodeID, uint64, time.Time) bool { return evidence.Load() }
	})
	n2.leader.Store(cluster.NodeID("n3"))
	got := n2.bind()
	n2.raft.recordProxyAck(time.Now().Add(time.Hour), "n3", "boot-n3")
	if v, err := n1.vote(n2, 6); err != nil || v.Granted || reached(got) != 0 {
		t.Fatalf("without evidence: %+v, %v", v, err)
	}
	evidence.Store(true)
	if v, err := n1.vote(n2, 6); err != nil || !v.Granted || reached(got) != 1 {
		t.Errorf("with evidence: %+v, %v", v, err)
	}
}

// A proxied acknowledgement to a process that is dead or silent does not bind this node. That also holds when raft has
// dropped that leader for a candidate that failed: survivors would refuse each other until all of them back off. An
// acknowledgement to another process, or with a lease, binds.
func TestProxyAck_EndsWithProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		lost, consent bool
		boot          string
		free          bool
	}{
		{"dead", true, true, "boot-n1", true},
		{"silent", false, true, "boot-n1", true},
		{"neither dead nor silent", false, false, "boot-n1", false},
		{"another process of it is dead", true, true, "boot-n1-before", false},
		{"there may be a lease", true, false, "boot-n1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, 3, func(t *testing.T, ends []*end) {
				n1, n2, n3 := ends[0], ends[1], ends[2]
				n3.bind()
				release := makeBusy(n1, n2)
				if _, err := n1.heartbeat(n2); err != nil {
					t.Fatal(err)
				}
				close(release)
				n2.leader.Store(cluster.NodeID(""))
				n2.claims(func(c *cluster.Claim) { c.LeaderProcessDead, c.LeaderBootID = tt.lost, tt.boot })
				if v, err := n3.vote(n2, 7); err != nil || v.Granted != tt.free {
					t.Errorf("its vote: %+v, %v", v, err)
				}
				if v, err := n3.preVote(n2, 8); err != nil || v.Granted != tt.free {
					t.Errorf("its pre-vote: %+v, %v", v, err)
				}
				if _, err := n2.preVote(n3, 8); (err == nil) != tt.free {
					t.Errorf("it asks for pre-votes itself: %v", err)
				}
			}, func(_ *Config, e *end) {
				e.mayIgnoreLeader = func(cluster.NodeID, uint64, time.Time) bool { return tt.consent }
			})
		})
	}
}

func TestStartElection(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, ends []*end) {
		e := ends[0]
		if _, err := e.raft.StartElection(t.Context(), 5, cluster.CauseOperator); !errors.Is(err, errNotReady) {
			t.Errorf("before raft runs: %v", err)
		}
		e.bindOnly()
		e.leader.Store(cluster.NodeID("n2"))
		take := func() any {
			select {
			case rpc := <-e.raft.Consumer():
				rpc.Respond(&raft.TimeoutNowResponse{}, nil)
				return rpc.Command
			case <-time.After(time.Minute):
				return nil
			}
		}
		start := func(during func(), by cluster.ElectionCause) (any, error) {
			done := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			go func() {
				_, err := e.raft.StartElection(ctx, 5, by)
				done <- err
			}()
			synctest.Wait()
			during()
			time.Sleep(2 * busyPollInterval)
			got := take()
			return got, <-done
		}
		if got, err := start(func() {}, cluster.CauseLeaderFailed); err != nil || got == nil {
			t.Errorf("raft got %v: %v", got, err)
		}
		// A late TimeoutNow would depose the leader elected meanwhile.
		if got, err := start(func() { e.term.Store(6) }, cluster.CauseLeaderFailed); err == nil || got != nil {
			t.Errorf("in a later term raft got %v: %v", got, err)
		}
		e.term.Store(5)
		if got, err := start(func() { e.leader.Store(e.id) }, cluster.CauseOperator); err == nil || got != nil {
			t.Errorf("as the leader raft got %v: %v", got, err)
		}
		e.leader.Store(cluster.NodeID("n2"))
		e.idle.Store(true)
		if got, err := start(func() {}, cluster.CauseLeaderFailed); !errors.Is(err, errElectionNotAllowed) ||
			got != nil {
			t.Errorf("a node that may start no election: raft got %v: %v", got, err)
		}
		for _, by := range []cluster.ElectionCause{cluster.CauseOperator, cluster.CauseTransferFailed} {
			if got, err := start(func() {}, by); err != nil || got == nil {
				t.Errorf("by cause %d, raft got %v: %v", by, got, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := e.raft.StartElection(ctx, 5, cluster.CauseOperator); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a busy raft: %v", err)
		}
	})
}

// A vetoed pre-vote does not reach raft, and its reason reaches the candidate. Votes are not vetoed.
func TestPreVoteVeto(t *testing.T) {
	t.Parallel()
	var reported answers
	n1 := newEnd(t, "n1", reported.install)
	n2 := newEnd(t, "n2", func(_ *Config, e *end) {
		e.vetoPreVote = func(candidate cluster.NodeID) string {
			return string(candidate) + " is worse placed\nthan n2"
		}
	})
	got := n2.bind()
	if v, err := n1.preVote(n2, 6); err != nil || v.Granted || v.Term != 5 {
		t.Fatalf("%+v, %v; want a refusal in the current term", v, err)
	}
	if reached(got) != 0 || n2.rejected("prevote/priority") != 1 {
		t.Error("it reached raft, or was not counted")
	}
	want := cluster.VoteResponse{Term: 6, Voter: "n2", Pre: true, Reason: "n1 is worse placed than n2"}
	if a := reported.last(); a != want {
		t.Errorf("the candidate got %+v", a)
	}
	if v, err := n1.vote(n2, 6); err != nil || !v.Granted {
		t.Errorf("vote: %+v, %v", v, err)
	}
	if a := reported.last(); a != (cluster.VoteResponse{Term: 6, Voter: "n2", Granted: true}) {
		t.Errorf("for a grant the candidate got %+v", a)
	}
}

func TestVotersReportReason(t *testing.T) {
	t.Parallel()
	view := voterState{term: 5, leader: "", lastIndex: 44, lastTerm: 4}
	ask := VoteRequest{Candidate: "n3", Term: 6, LastIndex: 44, LastTerm: 4}
	tests := []struct {
		want   string
		change func(*VoteRequest, *voterState)
	}{
		{"refused", func(*VoteRequest, *voterState) {}},
		{"knows leader n2", func(_ *VoteRequest, v *voterState) { v.leader = "n2" }},
		{"refused", func(b *VoteRequest, v *voterState) { v.leader, b.Transfer = "n2", true }},
		{"refused", func(_ *VoteRequest, v *voterState) { v.leader = "n3" }},
		{"old term: 6 < 7", func(_ *VoteRequest, v *voterState) { v.term, v.votedFor = 7, "n1" }},
		{"already voted for n1", func(b *VoteRequest, v *voterState) { v.votedFor, b.LastIndex = "n1", 2 }},
		{"log behind: 41 < 44", func(b *VoteRequest, _ *voterState) { b.LastIndex = 41 }},
		{"log behind: term 3 < 4", func(b *VoteRequest, _ *voterState) { b.LastIndex, b.LastTerm = 99, 3 }},
		{"log behind: 41 < 44", func(b *VoteRequest, v *voterState) {
			b.Pre, v.votedFor, b.LastIndex = true, "n1",
				41
		}},
	}
	for _, tt := range tests {
		b, v := ask, view
		tt.change(&b, &v)
		if got := explain(b, v); got != tt.want {
			t.Errorf("%+v, %+v: %q, want %q", b, v, got, tt.want)
		}
	}
}

// TestFromAVoter: raft.Raft gets the request of a candidate that is no voter here in the name of one that is.
func TestFromAVoter(t *testing.T) {
	t.Parallel()
	servers := []cluster.Server{
		{ID: "n1", Suffrage: cluster.NonVoter},
		{ID: "n2", Suffrage: cluster.Voter},
		{ID: "n3", Suffrage: cluster.Voter},
	}
	for _, tt := range []struct {
		candidate, named string
		servers          []cluster.Server
	}{
		{"n3", "n3", servers},
		{"n1", "n2", servers},
		{"n4", "n2", servers},
		{"n1", "n1", servers[:1]},
		{"n1", "n1", nil},
	} {
		header := raft.RPCHeader{ID: []byte(tt.candidate), Addr: []byte("addr")}
		vote := &raft.RequestVoteRequest{RPCHeader: header, Term: 6, LastLogIndex: 44, LastLogTerm: 4}
		pre := &raft.RequestPreVoteRequest{RPCHeader: header, Term: 6, LastLogIndex: 44, LastLogTerm: 4}
		wantVote, wantPre := *vote, *pre
		wantVote.ID, wantPre.ID = []byte(tt.named), []byte(tt.named)
		id := cluster.NodeID(tt.candidate)
		if got := fromAVoter(vote, tt.servers, id); !reflect.DeepEqual(got, &wantVote) {
			t.Errorf("vote of %s: %+v", tt.candidate, got)
		}
		if got := fromAVoter(pre, tt.servers, id); !reflect.DeepEqual(got, &wantPre) {
			t.Errorf("pre-vote of %s: %+v", tt.candidate, got)
		}
		if string(vote.ID) != tt.candidate || string(pre.ID) != tt.candidate {
			t.Error("the message itself is changed")
		}
	}
}

// The candidate receives the reasons of a real raft's refusals, and of rejections before raft.
func TestCandidateHearsWhy(t *testing.T) {
	t.Parallel()
	var reported answers
	n1, n2 := newEnd(t, "n1", reported.install), newEnd(t, "n2")
	n2.leader.Store(cluster.NodeID("n3"))
	n2.bindOnly()
	n2.serve(func(rpc raft.RPC) {
		rpc.Respond(&raft.RequestVoteResponse{Term: 5, RPCHeader: raft.RPCHeader{Addr: []byte("elsewhere")}}, nil)
	})
	v, err := n1.vote(n2, 6)
	if err != nil || v.Granted || string(v.Addr) != n2.addr {
		t.Fatalf("%+v, %v", v, err)
	}
	if a := reported.last(); a != (cluster.VoteResponse{Term: 6, Voter: "n2", Reason: "knows leader n3"}) {
		t.Errorf("reported %+v", a)
	}
	n2.stop()
	if _, err := n1.vote(n2, 7); err == nil {
		t.Fatal("answered")
	}
	if a := reported.last(); a != (cluster.VoteResponse{Term: 7, Voter: "n2", Reason: "not reached"}) {
		t.Errorf("reported %+v", a)
	}
}

func TestReasonsAreShortAndOnOneLine(t *testing.T) {
	t.Parallel()
	h := raft.RPCHeader{Addr: []byte("n1:7700")}
	setReason(&h, "a\x00b\nc"+strings.Repeat("é", 2*maxReason))
	got := popReason(&h)
	if !strings.HasPrefix(got, "a b c") || len([]rune(got)) != maxReason || string(h.Addr) != "n1:7700" {
		t.Errorf("%q from %q", got, h.Addr)
	}
	if why := popReason(&h); why != "" || string(h.Addr) != "n1:7700" {
		t.Errorf("%q without one", why)
	}
}

func TestBallots(t *testing.T) {
	t.Parallel()
	var b recentVotes
	now := time.Now()
	b.cast(3, "n1", now)
	b.cast(11, "n2", now) // takes the place of 3
	if b.voteIn(3) != "" || b.voteIn(11) != "n2" || b.voteIn(0) != "" {
		t.Errorf("%+v", b.votes)
	}
	if b.votedSince(11, now) != "n2" || b.votedSince(11, now.Add(time.Nanosecond)) != "" {
		t.Errorf("recently: %+v", b.votes)
	}
}

// TimeoutNow messages are limited like votes.
func TestTimeoutNowRateLimit(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	for range 2 * voteBurst {
		_ = n1.timeoutNow(n2)
	}
	if n := n2.rejected("timeout_now/rate"); n == 0 || reached(got)+n != 2*voteBurst {
		t.Errorf("%d refused", n)
	}
}

// dials counts the connections that an end opens.
func dials(n *atomic.Int64) option {
	return func(c *Config, _ *end) {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			n.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
}

// Two concurrent messages after the monitor has connected need no dial. That also holds if the peer's process has
// restarted and a connection to the old process had been used.
func TestPoolIsWarm(t *testing.T) {
	t.Parallel()
	inTerm5 := func(_ *Config, e *end) { e.claim.Term = 5 }
	var dialled atomic.Int64
	n1, n2 := newEnd(t, "n1", dials(&dialled)), newEnd(t, "n2", inTerm5)
	got := n2.bind()
	acquaint(t, n1, n2)
	send := func(to *end) {
		t.Helper()
		p, err := n1.raft.peer("n2")
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "two connections are ready, and the library has had one of them", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.outs) == 2 && p.spareConn == p.outs[1] && p.lastHello.BootID == to.peer().BootID
		})
		before := dialled.Load()
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if r, err := n1.append(to, nil); err != nil || !r.Success {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		both.Wait()
		if n := dialled.Load() - before; n != 0 {
			t.Errorf("%d dials for two messages", n)
		}
	}
	send(n2)
	again := newEndOn(t, "n2", n2.relisten(), inTerm5, as(func(p *cluster.Peer) { p.BootID = "second" }))
	again.bind()
	send(again)
	for range 2 {
		if c, ok := (<-got).(*raft.AppendEntriesRequest); !ok || c.Term != 5 {
			t.Errorf("raft got %+v", c)
		}
	}
}

// An append of term 0 only prewarms a connection: it does not reach raft and is no sign of life. A peer in term 0 is
// sent none, because an older version may accept it as its leader's.
func TestWarmingIsNoMessage(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2") // whose claims say term 0
	got := n2.bind()
	acquaint(t, n1, n2)
	p, err := n1.raft.peer("n2")
	if err != nil {
		t.Fatal(err)
	}
	spare := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.spareConn != nil
	}
	eventually(t, "a connection is ready", spare)
	p.mu.Lock()
	if len(p.outs) != 1 {
		t.Errorf("%d connections with a peer in term 0", len(p.outs))
	}
	p.mu.Unlock()
	if r, err := n1.append(n2,
		func(a *raft.AppendEntriesRequest) { *a = raft.AppendEntriesRequest{RPCHeader: a.RPCHeader} }); err != nil ||
		r.Success {
		t.Errorf("%+v, %v", r, err)
	}
	if at := n2.raft.contactFrom("n1"); !at.IsZero() {
		t.Error("it counts as a sign of life")
	}
	select {
	case c := <-got:
		t.Errorf("raft got %+v", c)
	default:
	}
}

// A node that has just voted in a term grants no other candidate a pre-vote for that term. It grants them again after
// TimeoutMin, in case the term has no leader.
func TestNoPreVoteBehindAVote(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := newEnd(t, "n1"), newEnd(t, "n2"), newEnd(t, "n3")
	n2.leader.Store(cluster.NodeID(""))
	got := n2.bind()
	if v, err := n3.vote(n2, 6); err != nil || !v.Granted {
		t.Fatalf("vote: %+v, %v", v, err)
	}
	<-got
	for _, tt := range []struct {
		name    string
		from    *end
		term    uint64
		granted bool
	}{
		{"another candidate of that term", n1, 6, false},
		{"the same candidate", n3, 6, true},
		{"the next term", n1, 7, true},
	} {
		if v, err := tt.from.preVote(n2, tt.term); err != nil || v.Granted != tt.granted {
			t.Errorf("%s: %+v, %v; want granted %v", tt.name, v, err, tt.granted)
		}
	}
	n2.raft.ballots.cast(6, "n3", time.Now().Add(-testMin))
	if v, err := n1.preVote(n2, 6); err != nil || !v.Granted {
		t.Errorf("long after the vote: %+v, %v", v, err)
	}
}

// Real rafts in virtual time: the leader dies, and one survivor starts an election. It leads after two round trips if
// the other survivor has evidence. Otherwise no node is elected and no term changes.
func TestStartElection_AfterCrash(t *testing.T) {
	t.Parallel()
	for _, evidence := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var gone atomic.Value
			gone.Store(cluster.NodeID(""))
			cut := &links{}
			c := newSimNet().newCluster(t, 3, cut.install, func(_ *Config, e *end) {
				e.mayIgnoreLeader = func(cluster.NodeID, uint64, time.Time) bool {
					return evidence &&
						gone.Load() != cluster.NodeID("")
				}
			})
			c.bootstrap()
			leader := c.leader()
			leader.apply("a")
			time.Sleep(time.Second)
			rest := c.others(leader)
			for _, n := range rest {
				cut.cut(leader.id, n.id)
			}
			gone.Store(leader.id)
			start, term := time.Now(), rest[0].r.CurrentTerm()
			if _, err := rest[0].raft.StartElection(t.Context(), term, cluster.CauseLeaderFailed); err != nil {
				t.Fatal(err)
			}
			time.Sleep(evidenceWait + 2*time.Millisecond)
			if leads := rest[0].r.State() == raft.Leader; leads != evidence {
				t.Errorf("with evidence %v: %v after %v", evidence, rest[0].r.State(), time.Since(start))
			}
			if moved := rest[1].r.CurrentTerm() != term; moved != evidence {
				t.Errorf("with evidence %v the other voter is in term %d after %d", evidence, rest[1].r.CurrentTerm(),
					term)
			}
		})
	}
}
