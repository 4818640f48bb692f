package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// refusedTransfer returns an error unless a leader refuses a transfer for the reason why, and sends no TimeoutNow.
func refusedTransfer(t *testing.T, leader *testNode, target cluster.NodeID, why string) error {
	t.Helper()
	var failed *consensus.TransferError
	err := leader.TransferTo(within(t, testTimeout), to(target))
	if !errors.As(err, &failed) || failed.TimeoutNowSent() || !strings.Contains(err.Error(), why) {
		return fmt.Errorf("got %w, want: %s", err, why)
	}
	return nil
}

// awaitHealthy waits until a leader has all others in contact and caught up, or has lost leadership.
func (c *testCluster) awaitHealthy(leader *testNode) {
	c.t.Helper()
	eventually(c.t, "nobody lags", func() bool {
		return leader.Status().Role != cluster.Leader ||
			!slices.ContainsFunc(c.others(leader), func(n *testNode) bool { return !healthy(leader, n.id) })
	})
}

// awaitWrite waits until a leader takes writes again after a transfer, or has lost leadership.
func awaitWrite(t *testing.T, leader *testNode) {
	t.Helper()
	eventually(t, "a write", func() bool {
		return leader.put("a", "1") == nil || leader.Status().Role != cluster.Leader
	})
}

// whileLagging is whileLeading with a peer that lacks the leader's last entries and gets them too late.
func (c *testCluster) whileLagging(what string, entries int, step func(leader, peer *testNode) error) {
	c.t.Helper()
	c.whileLeading(what, func(leader *testNode) error {
		peer := c.others(leader)[0]
		c.awaitHealthy(leader)
		leader.slowTo.Store(peer.id)
		defer leader.slowTo.Store(cluster.NodeID(""))
		for i := range entries {
			if err := leader.put(fmt.Sprint("b", i), "1"); err != nil {
				return err
			}
		}
		return step(leader, peer)
	})
}

// TestTransferToNonVoter: the library would depose the leader for it.
func TestTransferToNonVoter(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
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
	c.whileLagging("two transfers are refused", 1, func(leader, target *testNode) error {
		err := errors.Join(refusedTransfer(t, leader, target.id, "could not be brought up to date"),
			refusedTransfer(t, leader, target.id, "no second one in this term"))
		for _, p := range leader.Peers() { // so that another is chosen
			if (p.TransferBlocked != "") != (p.ID == target.id) {
				err = errors.Join(err, fmt.Errorf("node %s: %q", p.ID, p.TransferBlocked))
			}
		}
		return err
	})
}

// TestTransferToUnresponsivePeer: the target has just fallen silent, and no node knows that yet. Writes wait for the
// transfer no longer than the library does.
func TestTransferToUnresponsivePeer(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.whileLagging("a transfer is refused", 1, func(leader, target *testNode) error {
		target.cut.Store(true)
		defer target.cut.Store(false)
		if err := refusedTransfer(t, leader, target.id, "does not answer"); err != nil {
			return err
		}
		awaitWrite(t, leader)
		return nil
	})
}

func TestTransferToFarLaggingPeer(t *testing.T) {
	t.Parallel()
	c, _ := startCalmCluster(t, 3)
	c.whileLagging("a transfer is refused", 2*32, func(leader, target *testNode) error {
		return refusedTransfer(t, leader, target.id, "not caught up")
	})
}

// TestTransferArrivesWhenTheTargetLeads: the target gets TimeoutNow and fails to be elected. The loss of leadership
// alone is no success.
func TestTransferArrivesWhenTheTargetLeads(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	eventually(t, "a target that was told", func() bool {
		leader := c.leader()
		target := c.others(leader)[0]
		c.awaitHealthy(leader)
		target.drop(func(m transport.Message) bool { return true })
		defer target.drop(nil)
		err := leader.TransferTo(within(t, testTimeout), to(target.id))
		if err == nil || target.Status().Role == cluster.Leader {
			t.Fatalf("the target leads alone: %v", err)
		}
		var failed *consensus.TransferError
		return errors.As(err, &failed) && failed.TimeoutNowSent()
	})
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

// transferOnce makes one transfer by a leader with a lease. After one that fails another node leads in the end: a
// second one may be refused in that term.
func (c *testCluster) transferOnce(leader *testNode) (ok bool) {
	c.t.Helper()
	c.awaitHealthy(leader)
	if err := leader.TransferTo(within(c.t, testTimeout), to(c.others(leader)[0].id)); err != nil {
		c.t.Log(err)
		c.transferTo(c.others(leader)[1])
		return false
	}
	return true
}

// TestLeaseAfterAFailedTransfer: a transfer fails, and the leader continues. It has a lease again if the target
// certainly got no TimeoutNow. Otherwise it has none for the rest of the term: the target may start an election yet.
func TestLeaseAfterAFailedTransfer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	lease := func(leader *testNode) bool { return leader.Status().LeaseRemaining > 0 }
	c.whileLagging("the lease continues", 1, func(leader, target *testNode) error {
		if err := refusedTransfer(t, leader, target.id, "could not be brought up to date"); err != nil {
			return err
		}
		eventually(t, "a lease, or leadership is lost", func() bool {
			return lease(leader) || leader.Status().Role != cluster.Leader
		})
		return nil
	})
	c.whileLeading("the lease is revoked", func(leader *testNode) error {
		c.awaitHealthy(leader)
		leader.drop(func(m transport.Message) bool { return m.Kind == "timeout_now" })
		defer leader.drop(nil)
		var failed *consensus.TransferError
		err := leader.TransferTo(within(t, testTimeout), to(c.others(leader)[1].id))
		if !errors.As(err, &failed) || !failed.TimeoutNowSent() {
			return fmt.Errorf("got %w, want a failed transfer whose outcome is unknown", err)
		}
		awaitWrite(t, leader)
		term := leader.Status().Term
		for end := time.Now().Add(timeoutMax); time.Now().Before(end); time.Sleep(slowdown * time.Millisecond) {
			if lease(leader) && leader.Status().Term == term {
				return errors.New("there is a lease after TimeoutNow may have been sent")
			}
		}
		return nil
	})
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
	c.elect()
	lease := func(leader *testNode) {
		t.Helper()
		eventually(t, "a lease, or leadership is lost", func() bool {
			return leader.Status().LeaseRemaining > 0 || leader.Status().Role != cluster.Leader
		})
	}
	c.whileLeading("an addition ends the lease", func(leader *testNode) error {
		lease(leader)
		before := leader.LeaseFloor()
		next := len(leader.Status().Servers) + 1
		err := leader.AddMember(within(t, testTimeout), cluster.MemberAdd{
			ID: cluster.NodeID(fmt.Sprint("n", next)), RaftAddress: fmt.Sprint("127.0.0.1:", next),
		})
		if err == nil && !leader.LeaseFloor().After(before) {
			return errors.New("a membership change left the lease as it was")
		}
		return err
	})
	remaining := make(chan time.Duration, 100)
	for _, n := range c.nodes {
		n.drop(func(m transport.Message) bool {
			if m.Kind == "timeout_now" {
				remaining <- n.Status().LeaseRemaining
			}
			return false
		})
	}
	eventually(t, "a transfer by a leader with a lease", func() bool {
		leader := c.leader()
		lease(leader)
		return c.transferOnce(leader)
	})
	for len(remaining) > 0 {
		if left := <-remaining; left != 0 {
			t.Errorf("TimeoutNow was sent with %v of the lease left", left)
		}
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
	c.whileLeading("a transfer with a write in flight is refused", func(leader *testNode) error {
		target := c.others(leader)[0]
		c.awaitHealthy(leader)
		var sent atomic.Bool
		leader.drop(func(m transport.Message) bool {
			if m.Kind == "timeout_now" {
				sent.Store(true)
			}
			return m.Kind == "append" && m.Size > 0 && m.To != target.id
		})
		defer leader.drop(nil)
		written := make(chan error, 1)
		go func() { written <- leader.put("a", "1") }()
		eventually(t, "the write is on the target, or was answered", func() bool {
			return len(written) > 0 || target.Status().LastLogIndex == leader.Status().LastLogIndex &&
				leader.Status().LastLogIndex > leader.Status().CommitIndex
		})
		err := refusedTransfer(t, leader, target.id, "writes in flight")
		if sent.Load() {
			err = errors.Join(err, errors.New("TimeoutNow was sent to the target"))
		}
		leader.drop(nil)
		return errors.Join(err, <-written)
	})
}

// TestTransferToStoppedNode: writes continue immediately.
func TestTransferToStoppedNode(t *testing.T) {
	t.Parallel()
	c, _ := startClusterAt(t, 2, 3)
	c.whileLeading("a transfer is refused, and a write taken", func(leader *testNode) error {
		target := c.others(leader)[0]
		c.awaitHealthy(leader)
		target.stop()
		defer target.start()
		var failed *consensus.TransferError // it is in contact still
		if err := leader.TransferTo(within(t, testTimeout), to(target.id)); !errors.As(err, &failed) {
			return fmt.Errorf("got %w", err)
		}
		awaitWrite(t, leader)
		return nil
	})
}

// TestStopEndsATransfer: a leader stops while a leader task waits for the target to lead. The task does not hold up the
// stop, even if election timeouts are longer than a stop may take.
func TestStopEndsATransfer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.pace = calm
	order := make(chan *testNode)
	result := make(chan error, 1)
	for _, n := range c.nodes {
		n.tasks = append(n.tasks, func(ctx context.Context, _ uint64) {
			select {
			case target := <-order:
				result <- n.TransferTo(context.Background(), to(target.id))
			case <-ctx.Done():
			}
		})
		n.start()
	}
	leader := c.elect()
	target := c.others(leader)[0]
	c.awaitHealthy(leader)
	target.drop(func(m transport.Message) bool { return m.Kind == "vote" }) // it is not elected
	order <- target
	eventually(t, "the target is a candidate", func() bool { return target.Status().Role == cluster.Candidate })
	leader.stop()
	wantCode(t, <-result, cluster.CodeTransferFailed)
}

// TestStuckTransferWithoutWrites: the watchdog finds the transfer flag that the library leaves set, even without
// writes.
func TestStuckTransferWithoutWrites(t *testing.T) {
	t.Parallel()
	c, old := beginStuckTransfer(t)
	before := old.Instance()
	probed := old.ProbeFlag()
	eventually(t, "it is rebuilt", func() bool {
		select {
		case <-probed: // it was deposed
			if l := c.leader(); l == old {
				probed = old.ProbeFlag()
			} else if healthy(l, old.id) {
				_ = l.TransferTo(within(t, testTimeout), to(old.id))
			}
		default:
		}
		return old.Instance() != before
	})
	c.write("c", "1")
	c.everywhere("c", "1")
}

// TestRequestedElection_WaitsForLease: an operator requests an election although a leader is alive and has a lease. The
// new leader serves nothing, and transfers leadership to no node, before that lease has expired.
func TestRequestedElection_WaitsForLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	var old atomic.Pointer[testNode]
	left := make(chan time.Duration, 8)
	for _, n := range c.nodes {
		n.overLive.Store(true)
		n.tasks = append(n.tasks, func(context.Context, uint64) {
			if old := old.Load(); old != nil && old != n { // its own task may run late
				left <- old.Status().LeaseRemaining
			}
		})
		n.start()
	}
	c.elect()
	var leader, target, other *testNode
	eventually(t, "a lease, and voters that may vote", func() bool {
		leader = c.leader()
		target, other = c.others(leader)[0], c.others(leader)[1]
		return leader.Status().LeaseRemaining > 0 && healthy(leader, target.id) && target.MayVote() && other.MayVote()
	})
	old.Store(leader)
	leader.cut.Store(true)
	if _, err := target.tr.Raft().StartElection(within(t, testTimeout), target.Status().Term,
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
		t.Errorf("it serves while the previous leader has %v of its lease left", rest)
	}
	if rest := <-acked; rest > 0 {
		t.Errorf("a write was acknowledged while the previous leader has %v of its lease left", rest)
	}
	if !strings.Contains(refused, "lease of the previous leader") && !strings.Contains(refused, "not in contact") {
		t.Errorf("it would transfer leadership meanwhile: %q", refused)
	}
	leader.cut.Store(false)
	c.write("a", "1")
}

// TestRequestedElection_OnPreVoteCandidate: no node may start an election by itself. A node without a leader then stays
// a candidate that waits for pre-votes. An operator's request can still make it start an election.
func TestRequestedElection_OnPreVoteCandidate(t *testing.T) {
	t.Parallel()
	for _, by := range []cluster.ElectionCause{cluster.CauseOperator, cluster.CauseTransferFailed} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			t.Parallel()
			c, _ := startCluster(t, 3)
			c.write("a", "1")
			c.everywhere("a", "1")
			for _, n := range c.nodes {
				n.idle.Store(true)
			}
			old := c.leader()
			old.stop()
			target, other := c.others(old)[0], c.others(old)[1]
			eventually(t, "both wait for pre-votes that nobody gives", func() bool {
				return target.Status().Role == cluster.Candidate && other.Status().Role == cluster.Candidate
			})
			eventually(t, "it leads in the term after", func() bool { // one election may fail on a busy machine
				term := target.Status().Term
				if _, err := target.tr.Raft().StartElection(within(t, testTimeout), term, by); err != nil {
					return false
				}
				for end := time.Now().Add(timeoutMax); time.Now().Before(end); time.Sleep(slowdown * time.Millisecond) {
					if st := target.Status(); st.Role == cluster.Leader {
						return st.Term == term+1
					}
				}
				return false
			})
			for _, n := range c.nodes { // it may lose its place again on a busy machine
				n.idle.Store(false)
			}
			c.write("b", "1")
			old.start()
			c.everywhere("b", "1")
		})
	}
}

// rivals makes two followers of old start an election of the same term. The loser gets no votes, until the caller
// ends that.
func (c *testCluster) rivals(old *testNode) (winner, loser *testNode) {
	c.t.Helper()
	c.write("a", "1")
	c.everywhere("a", "1")
	winner, loser = c.others(old)[0], c.others(old)[1]
	term := old.Status().Term
	loser.drop(func(m transport.Message) bool { return m.Kind == "vote" })
	for _, n := range []*testNode{loser, winner} {
		if _, err := n.tr.Raft().StartElection(within(c.t, testTimeout), term, cluster.CauseOperator); err != nil {
			c.t.Fatal(err)
		}
	}
	return winner, loser
}

// TestCandidateFollowsTheLeaderOfItsTerm: two nodes start an election of the same term at an operator's request. The
// one that loses remains a candidate for raft.Raft. It says that it follows the other one.
func TestCandidateFollowsTheLeaderOfItsTerm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { // its candidacy takes longer than the test
		cfg.TimeoutMin, cfg.TimeoutMax = 4*cfg.TimeoutMin, 4*cfg.TimeoutMax
	}
	for _, n := range c.nodes {
		n.start()
	}
	old := c.leader()
	term := old.Status().Term
	winner, loser := c.rivals(old)
	eventually(t, "the other one leads", func() bool { return winner.Status().Role == cluster.Leader })
	loser.drop(nil)
	var st cluster.NodeStatus
	eventually(t, "it follows that one", func() bool {
		st = loser.Status()
		return st.LeaderID == winner.id
	})
	if st.Role != cluster.Follower || st.Term != term+1 {
		t.Errorf("it is %v of leader %s in term %d, want a follower in term %d", st.Role, st.LeaderID, st.Term, term+1)
	}
	// Leadership can be transferred to it nevertheless.
	c.write("b", "2")
	c.everywhere("b", "2")
	if err := winner.TransferTo(within(t, testTimeout), to(loser.id)); err != nil {
		t.Error(err)
	}
	if st := loser.Status(); st.Role != cluster.Leader {
		t.Errorf("it is %v of leader %s in term %d, and was to lead", st.Role, st.LeaderID, st.Term)
	}
}

// TestCandidateForgetsALostLeader: the loser of an election follows the winner of its term, and remains a candidate for
// raft.Raft. The winner is lost with an entry that only the third node has. That one needs the loser's pre-vote.
func TestCandidateForgetsALostLeader(t *testing.T) {
	t.Parallel()
	c, old := startCluster(t, 3)
	winner, loser := c.rivals(old)
	eventually(t, "it follows the other one", func() bool { return loser.Status().LeaderID == winner.id })
	winner.drop(func(m transport.Message) bool { return m.To == loser.id && m.Kind == "append" })
	c.write("b", "2")
	eventually(t, "the third node has the entry", func() bool { return old.has("b", "2") })
	winner.stop()
	loser.drop(nil)
	c.write("c", "3")
}

// TestStopAwaitsTheFlagProbe: a leader stops while it asks whether raft.Raft takes entries again. The entry with the
// question is committed, and the state machine is busy: raft.Raft may lose the answer if it shuts down now.
func TestStopAwaitsTheFlagProbe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	// A stop waits for writes for a second, and for the question for five.
	const timeout, busyFor = 250 * time.Millisecond, 2 * time.Second
	c.tune = func(cfg *consensus.Config) { cfg.TimeoutMin, cfg.TimeoutMax = timeout, 2*timeout }
	for _, n := range c.nodes {
		n.start()
	}
	for range 3 {
		leader := c.leader()
		busy, end := make(chan struct{}, 1), make(chan struct{})
		wait := func() {
			select {
			case busy <- struct{}{}:
			default:
			}
			<-end
		}
		leader.applied.Store(&wait)
		written := make(chan error, 1)
		go func() { written <- leader.put("a", "1") }()
		select {
		case <-busy:
		case err := <-written:
			t.Logf("leadership moved: %v", err)
		}
		last := leader.Status().LastLogIndex
		leader.ProbeFlag()
		eventually(t, "the question is committed, or it leads no longer", func() bool {
			st := leader.Status()
			return st.CommitIndex > last || st.Role != cluster.Leader
		})
		time.AfterFunc(busyFor, func() { leader.applied.Store(nil); close(end) })
		leader.stop()
		leader.start()
	}
}
