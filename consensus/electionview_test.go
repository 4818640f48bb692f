package consensus_test

import (
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
	"northstar/transport"
)

func autoFailover(on bool) state.Command {
	return state.Command{Kind: state.KindSettings, Settings: &state.SettingsChange{AutoFailover: on}}
}

// commit proposes a command on the leader until it is applied.
func (c *testCluster) commit(cmd state.Command) {
	c.t.Helper()
	c.onLeader("a command", func(n *testNode) error {
		r, err := n.Propose(within(c.t, testTimeout), cmd)
		if err == nil && r.Err != nil {
			return r.Err
		}
		return err
	})
}

// TestElectionView_Restart: failover is paused, and a follower may not lead. Both hold when it restarts and has heard
// no leader yet, whether the snapshot or the log says so. The leader, restarted, knows that it led last.
func TestElectionView_Restart(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	follower := c.others(leader)[0]
	auto := func(n *testNode) bool { return n.ElectionView().AutoFailover(time.Now()) }
	snapshot := func() {
		eventually(t, "a snapshot", func() bool { return follower.TakeSnapshot() == nil })
	}
	restarted := func(n *testNode, paused bool, priority int, led cluster.NodeID) {
		t.Helper()
		for _, m := range c.others(nil) {
			m.stop()
		}
		n.start()
		eventually(t, "it has probed the others", n.MayStartElection)
		m, _ := n.ElectionView().Member(n.id)
		_, last := n.ElectionView().LeaderStart()
		claim := n.Claim()
		if auto(n) == paused || claim.Paused != paused || m.Priority != priority || claim.Priority != priority ||
			last != led || n.LedLast() != (led == n.id) || n.Status().Lifecycle != cluster.Active {
			t.Errorf("%s: paused %v, priority %d, %s led last, %s; it claims %+v", n.id, !auto(n), m.Priority, last,
				n.Status().Lifecycle, claim)
		}
		for _, m := range c.nodes {
			if m != n {
				m.start()
			}
		}
		c.elect()
		c.transferTo(leader)
		for _, m := range c.nodes {
			eventually(t, "it has caught up, and knows who leads", func() bool {
				_, last := m.ElectionView().LeaderStart()
				return m.Status().CaughtUp && m.ElectionView() == m.View() && last == leader.id
			})
		}
	}
	none := 0
	c.commit(autoFailover(false))
	c.commit(state.Command{
		Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{ID: follower.id, Priority: &none},
	})
	for _, n := range c.nodes {
		eventually(t, "the record is changed", func() bool { m, ok := n.View().Member(follower.id); return ok && m.Priority == 0 })
	}
	restarted(follower, true, 0, leader.id)
	restarted(leader, true, cluster.DefaultPriority, leader.id)
	snapshot()
	restarted(follower, true, 0, leader.id)
	c.commit(autoFailover(true))
	eventually(t, "failover is on", func() bool { return auto(follower) })
	restarted(follower, false, 0, leader.id)
}

// TestElectionView_UncommittedEntry: a pause is in the log of one node and never committed. It holds back that node
// until another leads.
func TestElectionView_UncommittedEntry(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	last := leader.Status().LastLogIndex
	leader.cut.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = leader.Propose(within(t, testTimeout), autoFailover(false))
	}()
	eventually(t, "it is in the log", func() bool { return leader.Status().LastLogIndex > last })
	leader.stop()
	<-done
	leader.cut.Store(false)
	others := c.others(nil)
	for _, n := range others {
		n.stop()
	}
	leader.start()
	eventually(t, "Raft runs", func() bool { return len(leader.Status().Servers) > 0 })
	if leader.View().AppliedIndex() != 0 || leader.ElectionView().AutoFailover(time.Now()) {
		t.Errorf("as of entry %d, failover is not paused", leader.ElectionView().AppliedIndex())
	}
	leader.stop()
	for _, n := range others {
		n.start()
	}
	c.elect()
	c.write("a", "1")
	leader.start()
	c.everywhere("a", "1")
	eventually(t, "the pause is gone", func() bool {
		return leader.Status().CaughtUp && leader.ElectionView().AutoFailover(time.Now())
	})
}

// TestElectionView_OverwrittenEntry: as before, but the leader that overwrites the pause dies before it has committed
// an entry. The node that had the pause now has the newest log. It must not hold back any longer: no other node can
// be elected.
func TestElectionView_OverwrittenEntry(t *testing.T) {
	t.Parallel()
	c, old := startCalmCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	last, term := old.Status().LastLogIndex, old.Status().Term
	old.cut.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = old.Propose(within(t, testTimeout), autoFailover(false))
	}()
	eventually(t, "it is in the log", func() bool { return old.Status().LastLogIndex > last })
	next, behind := c.others(old)[0], c.others(old)[1]
	for _, n := range c.others(nil) {
		n.stop()
	}
	<-done
	old.cut.Store(false)
	old.idle.Store(true)
	behind.idle.Store(true)
	overwritten := func() bool { return old.Claim().LastLogTerm > term }
	next.drop(func(m transport.Message) bool { // the append after it would tell old of the commit
		return m.Kind == "append" && (m.To == behind.id && m.Size > 0 || m.To == old.id && overwritten())
	})
	for _, n := range c.nodes {
		n.start()
	}
	eventually(t, "the pause is overwritten", overwritten)
	next.stop()
	eventually(t, "the pause no longer counts", func() bool { return !old.Claim().Paused })
	if old.View().AppliedIndex() > last {
		t.Errorf("the new leader's entry is applied: %d", old.View().AppliedIndex())
	}
	old.idle.Store(false)
	if l := c.leader(); l != old {
		t.Errorf("%s leads", l.id)
	}
}
