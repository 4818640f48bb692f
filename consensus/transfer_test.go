package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// refusedTransfer checks that a leader refuses a transfer for the reason why. It must send no TimeoutNow, and must
// continue to lead.
func refusedTransfer(t *testing.T, leader *testNode, target cluster.NodeID, why string) {
	t.Helper()
	term := leader.Status().Term
	var failed *consensus.TransferError
	err := leader.TransferTo(within(t, testTimeout), to(target))
	if !errors.As(err, &failed) || failed.TimeoutNowSent() || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v, want: %s", err, why)
	}
	if st := leader.Status(); st.Role != cluster.Leader || st.Term != term {
		t.Errorf("it disturbed the leader: %+v", st)
	}
}

// lagging returns a leader and a peer that lacks the leader's last entries and gets them too late. It starts over when
// leadership moves meanwhile, as may happen on a busy machine.
func (c *testCluster) lagging(entries int) (leader, peer *testNode) {
	c.t.Helper()
	eventually(c.t, "a leader that goes on leading, and a peer that lags", func() bool {
		leader = c.leader()
		peer = c.others(leader)[0]
		if !healthy(leader, peer.id) || !healthy(leader, c.others(leader)[1].id) {
			return false
		}
		leader.slowTo.Store(peer.id)
		for i := range entries {
			if leader.put(fmt.Sprint("b", i), "1") != nil {
				leader.slowTo.Store(cluster.NodeID(""))
				return false
			}
		}
		return true
	})
	return leader, peer
}

// TestTransferToNonVoter: the library would depose the leader for it.
func TestTransferToNonVoter(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	other := c.addNode("n4")
	other.join = true
	other.start()
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(within(t, testTimeout), cluster.MemberAdd{
			ID: "n4", RaftAddress: other.addr,
			HTTPAddress: "http-n4",
		})
	})
	eventually(t, "n4 is healthy", func() bool { return healthy(leader, "n4") })
	term := leader.Status().Term
	wantCode(t, leader.TransferTo(within(t, testTimeout), to("n4")), cluster.CodeBadRequest)
	if st := leader.Status(); st.Role != cluster.Leader || st.Term != term {
		t.Errorf("it disturbed the leader: %+v", st)
	}
}

// TestTransferToLaggingPeer: retried to one that lags, it would hang in the library, with its flag set for ever.
func TestTransferToLaggingPeer(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	leader, target := c.lagging(1)
	refusedTransfer(t, leader, target.id, "could not be brought up to date")
	refusedTransfer(t, leader, target.id, "no second one in this term")
	for _, p := range leader.Peers() { // so that another is chosen
		if (p.TransferBlocked != "") != (p.ID == target.id) {
			t.Errorf("node %s: %q", p.ID, p.TransferBlocked)
		}
	}
}

// TestTransferToUnresponsivePeer: the target has just fallen silent, and no node knows that yet. Writes wait for the
// transfer no longer than the library does.
func TestTransferToUnresponsivePeer(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	leader, target := c.lagging(1)
	target.cut.Store(true)
	refusedTransfer(t, leader, target.id, "does not answer")
	c.write("a", "1")
}

func TestTransferToFarLaggingPeer(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	leader, target := c.lagging(2 * 32)
	refusedTransfer(t, leader, target.id, "not caught up")
}

// TestTransferArrivesWhenTheTargetLeads: the target gets TimeoutNow and fails to be elected. The loss of leadership
// alone is no success.
func TestTransferArrivesWhenTheTargetLeads(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	target := c.others(leader)[0]
	eventually(t, "nobody lags", func() bool {
		return healthy(leader, target.id) &&
			healthy(leader, c.others(leader)[1].id)
	})
	target.drop(func(m transport.Message) bool { return true })
	var failed *consensus.TransferError
	if err := leader.TransferTo(within(t, testTimeout), to(target.id)); !errors.As(err, &failed) ||
		!failed.TimeoutNowSent() {
		t.Errorf("got %v, want a failure of a target that was told", err)
	}
	if target.Status().Role == cluster.Leader {
		t.Error("the target leads alone")
	}
	target.drop(nil)
	c.write("a", "1")
}

// TestReadBeforeLeaderStart has a leader that cannot commit anything in its term. What earlier leaders have
// acknowledged is in its log, and not in its state.
func TestReadBeforeLeaderStart(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	leader := c.leaderThatCommitsNothing()
	ctx, cancel := context.WithTimeout(context.Background(), timeoutMin)
	defer cancel()
	if err := leader.ReadBarrier(ctx); err == nil && !leader.has("a", "1") {
		t.Error("a read that misses an acknowledged write")
	}
	for _, n := range c.nodes {
		n.drop(nil)
	}
	c.everywhere("a", "1")
}

// TestLeaseEndsFirst: the lease is revoked before TimeoutNow is sent, and by each membership change. The target's
// voters ignore leader stickiness, so a lease would not protect the leader.
func TestLeaseEndsFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	for _, n := range c.nodes {
		n.start()
	}
	leader := c.leader()
	target := c.others(leader)[0]
	eventually(t, "a lease, and a healthy target", func() bool {
		return leader.Status().LeaseRemaining > 0 && healthy(leader, target.id)
	})
	before := leader.LeaseFloor()
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(within(t, testTimeout), cluster.MemberAdd{ID: "n4", RaftAddress: "127.0.0.1:1"})
	})
	if !leader.LeaseFloor().After(before) {
		t.Error("a membership change left the lease as it was")
	}
	eventually(t, "a lease again", func() bool { return leader.Status().LeaseRemaining > 0 })
	told := make(chan time.Duration, 8)
	leader.drop(func(m transport.Message) bool {
		if m.Kind == "timeout_now" {
			told <- leader.Status().LeaseRemaining
		}
		return false
	})
	if err := leader.TransferTo(within(t, testTimeout), to(target.id)); err != nil {
		t.Fatal(err)
	}
	if left := <-told; left != 0 {
		t.Errorf("told to stand with %v of the lease left", left)
	}
}

func to(id cluster.NodeID) cluster.TransferNotice {
	return cluster.TransferNotice{To: id, Trigger: "transfer", Reason: "a test"}
}

// TestTransferWaitsForWritesInFlight: the writes in flight are committed before TimeoutNow is sent. Otherwise their
// outcome would be unknown.
func TestTransferWaitsForWritesInFlight(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 5)
	leader := c.leader()
	target := c.others(leader)[0]
	eventually(t, "nobody lags", func() bool {
		for _, n := range c.others(leader) {
			if !healthy(leader, n.id) {
				return false
			}
		}
		return true
	})
	told := make(chan struct{}, 8)
	leader.drop(func(m transport.Message) bool {
		if m.Kind == "timeout_now" {
			told <- struct{}{}
		}
		return m.Kind == "append" && m.Size > 0 && m.To != target.id
	})
	written := make(chan error, 1)
	go func() { written <- leader.put("a", "1") }()
	eventually(t, "the write is on the target", func() bool {
		return target.Status().LastLogIndex == leader.Status().LastLogIndex &&
			leader.Status().LastLogIndex > leader.Status().CommitIndex
	})
	refusedTransfer(t, leader, target.id, "writes in flight")
	if len(told) > 0 {
		t.Error("the target was told to stand")
	}
	leader.drop(nil)
	if err := <-written; err != nil {
		t.Errorf("the write: %v", err)
	}
}

// TestTransferToANodeThatIsGone: writes continue immediately.
func TestTransferToANodeThatIsGone(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	target := c.others(leader)[0]
	eventually(t, "nobody lags", func() bool {
		return healthy(leader, target.id) &&
			healthy(leader, c.others(leader)[1].id)
	})
	term := leader.Status().Term
	target.stop()
	var failed *consensus.TransferError
	// it is in contact still
	if err := leader.TransferTo(within(t, testTimeout), to(target.id)); !errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
	eventually(t, "a write", func() bool { return leader.put("a", "1") == nil })
	if st := leader.Status(); st.Role != cluster.Leader || st.Term != term {
		t.Errorf("it disturbed the leader: %+v", st)
	}
	target.start()
}

// TestStuckTransferWithoutWrites: the watchdog finds the transfer flag that the library leaves set, even without
// writes.
func TestStuckTransferWithoutWrites(t *testing.T) {
	t.Parallel()
	untilStuck(t, func(t *testing.T) bool {
		c, old := beginStuckTransfer(t)
		before := old.Instance()
		probed := old.ProbeFlag()
		eventually(t, "it is rebuilt, or was not stuck", func() bool {
			select {
			case <-probed:
				return true
			default:
				return old.Instance() != before
			}
		})
		old.slowTo.Store(cluster.NodeID(""))
		c.write("c", "1")
		c.everywhere("c", "1")
		return old.Instance() != before
	})
}

// TestOrderedElectionWaitsForTheLease: an operator orders an election although a leader is alive and has a lease. The
// new leader serves nothing, and transfers leadership to no node, before that lease has expired.
func TestOrderedElectionWaitsForTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	var old atomic.Pointer[testNode]
	left := make(chan time.Duration, 8)
	for _, n := range c.nodes {
		n.ordered.Store(true)
		n.tasks = append(n.tasks, func(context.Context, uint64) {
			if old := old.Load(); old != nil {
				left <- old.Status().LeaseRemaining
			}
		})
		n.start()
	}
	leader := c.leader()
	target, other := c.others(leader)[0], c.others(leader)[1]
	eventually(t, "a lease, and voters that may vote", func() bool {
		return leader.Status().LeaseRemaining > 0 && healthy(leader, target.id) && target.MayVote() && other.MayVote()
	})
	old.Store(leader)
	leader.cut.Store(true)
	if err := target.tr.Raft().StartElection(within(t, testTimeout), target.Status().Term,
		cluster.CauseOperator); err != nil {
		t.Fatal(err)
	}
	refused := ""
	acked := make(chan time.Duration, 1) // what was left of the lease when a write was acknowledged
	var write sync.Once
	for len(left) == 0 {
		if target.Status().Role == cluster.Leader {
			write.Do(func() {
				go func() {
					if err := target.put("early", "1"); err != nil {
						t.Errorf("a write while the lease is waited for: %v", err)
					}
					acked <- leader.Status().LeaseRemaining
				}()
			})
		}
		if target.Status().Role == cluster.Leader && refused == "" {
			var failed *consensus.TransferError
			if err := target.TransferTo(within(t, testTimeout), to(other.id)); errors.As(err, &failed) {
				refused = failed.Reason
			}
		}
		time.Sleep(time.Millisecond)
	}
	if rest := <-left; rest > 0 {
		t.Errorf("it serves while the leader before has %v of its lease left", rest)
	}
	if rest := <-acked; rest > 0 {
		t.Errorf("a write was acknowledged while the leader before has %v of its lease left", rest)
	}
	if !strings.Contains(refused, "lease of the previous leader") && !strings.Contains(refused, "not in contact") {
		t.Errorf("it would hand leadership over meanwhile: %q", refused)
	}
	leader.cut.Store(false)
	c.write("a", "1")
}

// TestOrderToACandidate: no node may start an election by itself. A node without a leader then stays a candidate that
// waits for pre-votes. An operator can still order it to start an election.
func TestOrderToACandidate(t *testing.T) {
	t.Parallel()
	for _, by := range []cluster.ElectionCause{cluster.CauseOperator, cluster.CauseTransferFailed} {
		c, old := startCluster(t, 3)
		c.write("a", "1")
		c.everywhere("a", "1")
		for _, n := range c.nodes {
			n.idle.Store(true)
		}
		old.stop()
		target, other := c.others(old)[0], c.others(old)[1]
		eventually(t, "both wait for pre-votes that nobody gives", func() bool {
			return target.Status().Role == cluster.Candidate && other.Status().Role == cluster.Candidate
		})
		eventually(t, "it leads in the term after", func() bool { // one election may fail on a busy machine
			term := target.Status().Term
			if err := target.tr.Raft().StartElection(within(t, testTimeout), term, by); err != nil {
				return false
			}
			for end := time.Now().Add(timeoutMax); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if st := target.Status(); st.Role == cluster.Leader {
					return st.Term == term+1
				}
			}
			return false
		})
		c.write("b", "1")
		old.start()
		c.everywhere("b", "1")
	}
}
