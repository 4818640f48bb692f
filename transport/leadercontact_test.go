package transport

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// TestLeaseBindsTheProcess: n3 has acknowledged its leader n1, which may have a lease. For timeout-max it votes for no
// other node, also in the next raft.Raft of its process.
func TestLeaseBindsTheProcess(t *testing.T) {
	t.Parallel()
	type ask func(n2, n3 *end) bool
	vote := func(n2, n3 *end) bool { v, err := n2.vote(n3, 6); return err == nil && v.Granted }
	preVote := func(n2, n3 *end) bool { v, err := n2.preVote(n3, 6); return err == nil && v.Granted }
	requested := func(n2, n3 *end) bool {
		var resp raft.RequestVoteResponse
		err := n2.to(n3).RequestVote("n3", raft.ServerAddress(n3.addr),
			&raft.RequestVoteRequest{RPCHeader: n2.header(), Term: 6, LeadershipTransfer: true}, &resp)
		return err == nil && resp.Granted
	}
	evidence := func(n3 *end) {
		n3.mayIgnoreLeader = func(cluster.NodeID, uint64, time.Time) bool { return true }
	}
	for name, tt := range map[string]struct {
		ask     ask
		prepare func(n3 *end)
		contact func(n1, n2, n3 *end) // nil: an append of n1
		after   time.Duration
		granted bool
	}{
		"a vote":             {ask: vote, after: testMax - time.Millisecond},
		"a pre-vote":         {ask: preVote, after: testMax - time.Millisecond},
		"a vote later":       {ask: vote, after: testMax, granted: true},
		"a request":          {ask: requested, after: 0, granted: true},
		"evidence too early": {ask: vote, prepare: evidence, after: testMin - time.Millisecond},
		"evidence":           {ask: vote, prepare: evidence, after: testMin, granted: true},
		"the leader itself": { // its first request is lost on the connection of the heartbeat
			ask:     func(n2, n3 *end) bool { _ = vote(n2, n3); return vote(n2, n3) },
			contact: func(_, n2, n3 *end) { _, _ = n2.heartbeat(n3) }, granted: true,
		},
		"after a heartbeat": {ask: vote, contact: func(n1, _, n3 *end) { _, _ = n1.heartbeat(n3) }},
		"after a snapshot":  {ask: vote, contact: func(n1, _, n3 *end) { _, _ = n1.install(n3, 101, nil) }},
		"after a message of an older term": {
			ask: vote, contact: func(n1, _, n3 *end) { n3.term.Store(6); _, _ = n1.heartbeat(n3) }, granted: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, ends []*end) {
				n1, n2, n3 := ends[0], ends[1], ends[2]
				n3.bind()
				n2.to(n3) // a connection takes no time then
				if tt.prepare != nil {
					tt.prepare(n3)
				}
				if tt.contact != nil {
					tt.contact(n1, n2, n3)
				} else if _, err := n1.append(n3, nil); err != nil {
					t.Fatal(err)
				}
				// raft.Raft is replaced: the next one knows no leader.
				_ = n3.raft.Close()
				n3.raft = n3.tr.Raft()
				n3.leader.Store(cluster.NodeID(""))
				n3.bind()
				time.Sleep(tt.after)
				if got := tt.ask(n2, n3); got != tt.granted {
					t.Errorf("granted: %v", got)
				}
				if want := 1; !tt.granted && n3.rejected("vote/lease")+n3.rejected("prevote/lease") != want {
					t.Error("rejected for another reason")
				}
				for _, e := range ends {
					e.stop()
				}
			}, func(cfg *Config, _ *end) { cfg.Lease = true })
		})
	}
}

// TestLeaseWaitsForEvidence: the candidate has found its leader silent a moment before this voter does.
func TestLeaseWaitsForEvidence(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		n1, n2, n3 := ends[0], ends[1], ends[2]
		n3.bind()
		if _, err := n1.heartbeat(n3); err != nil {
			t.Fatal(err)
		}
		contact := time.Now()
		n3.mayIgnoreLeader = func(_ cluster.NodeID, _ uint64, now time.Time) bool { return now.Sub(contact) >= testMin }
		time.Sleep(testMin - evidenceWait/2)
		if v, err := n2.vote(n3, 6); err != nil || !v.Granted {
			t.Errorf("%+v, %v", v, err)
		}
		for _, e := range ends {
			e.stop()
		}
	}, func(cfg *Config, _ *end) { cfg.Lease = true })
}

// TestLeaseBindsAVoteInRaft: raft answers an append while a vote request waits for it. The vote is lost.
func TestLeaseBindsAVoteInRaft(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		n1, n2, n3 := ends[0], ends[1], ends[2]
		n3.leader.Store(cluster.NodeID(""))
		n3.bindOnly()
		granted := make(chan bool)
		go func() {
			v, err := n2.vote(n3, 6)
			granted <- err == nil && v.Granted
		}()
		request := <-n3.raft.Consumer()
		n3.serve(func(rpc raft.RPC) { answer(&rpc, 5) })
		if _, err := n1.heartbeat(n3); err != nil {
			t.Fatal(err)
		}
		answer(&request, 6)
		if <-granted {
			t.Error("granted after the leader's message")
		}
		for _, e := range ends {
			e.stop()
		}
	}, func(cfg *Config, _ *end) { cfg.Lease = true })
}

// TestReplacedRaftKnowsTheLeaderLives: a follower's raft.Raft is replaced right after it has acknowledged an append.
// The leader is not silent for longer then. With leases this node starts no election before timeout-min, unless by an
// order.
func TestReplacedRaftKnowsTheLeaderLives(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after   time.Duration
		by      cluster.ElectionCause
		allowed bool
	}{
		"too early": {after: testMin - time.Millisecond, by: cluster.CauseLeaderFailed},
		"later":     {after: testMin, by: cluster.CauseLeaderFailed, allowed: true},
		"a request": {by: cluster.CauseOperator, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, ends []*end) {
				n1, n3 := ends[0], ends[2]
				n3.bind()
				if _, err := n1.append(n3, nil); err != nil {
					t.Fatal(err)
				}
				_ = n3.raft.Close()
				n3.raft = n3.tr.Raft()
				n3.bind()
				n3.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderContactAge = "n1", -1 })
				time.Sleep(tt.after)
				if s := n3.tr.Claim().LeaderSilence; s < 0 || s > tt.after+time.Millisecond {
					t.Errorf("the leader counts as silent for %v", s)
				}
				n3.leader.Store(cluster.NodeID(""))
				if _, err := n3.raft.StartElection(t.Context(), n3.term.Load(), tt.by); (err == nil) != tt.allowed {
					t.Errorf("an election: %v", err)
				}
				for _, e := range ends {
					e.stop()
				}
			}, func(cfg *Config, _ *end) { cfg.Lease = true })
		})
	}
}

// TestLeaseDelaysOwnElection: a candidate acknowledges its term's leader without becoming a follower, and its candidacy
// times out. The leader may have a lease: the candidate gets no pre-vote for timeout-min.
func TestLeaseDelaysOwnElection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lease   bool
		after   time.Duration
		allowed bool
	}{
		"with leases":    {lease: true, after: testMin - time.Millisecond},
		"later":          {lease: true, after: testMin, allowed: true},
		"without leases": {after: testMin - time.Millisecond, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(t *testing.T, ends []*end) {
				n1, n2, n3 := ends[0], ends[1], ends[2]
				n2.leader.Store(cluster.NodeID(""))
				n2.bind()
				n3.bind()
				n3.to(n2) // a connection takes no time then
				if _, err := n1.append(n3, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tt.after)
				if v, err := n3.preVote(n2, 6); (err == nil && v.Granted) != tt.allowed {
					t.Errorf("%+v, %v", v, err)
				}
				for _, e := range ends {
					e.stop()
				}
			}, func(cfg *Config, _ *end) { cfg.Lease = tt.lease })
		})
	}
}
