package consensus_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"northstar/cluster"
)

// A follower that has applied the read index has every write that was acknowledged before, and it gets there without
// waiting for the next write or for the leader's periodic commit index.
func TestReadIndex(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("counter", "-1")
	for _, n := range c.others(leader) {
		var sent, toOthers atomic.Int64
		countCommitMessages(leader, n, &sent, &toOthers)
		for i, behind := 0, 0; behind < 20; i++ { // a follower that has applied the write already needs no message
			value := fmt.Sprint(n.id, i)
			c.write("counter", value)
			ctx, by, before := within(t, testTimeout), n.Asker(), sent.Load()
			lags := by.Applied < leader.Applied()
			index, err := leader.ReadIndex(ctx, by)
			if lags && sent.Load() == before {
				t.Fatalf("with read index %d, %s got no commit index", index, n.id)
			}
			if err == nil {
				err = n.AwaitApplied(ctx, index)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !n.has("counter", value) {
				t.Fatalf("%s has not applied what was acknowledged before", n.id)
			}
			if lags {
				behind++
			}
		}
	}
	for _, n := range c.others(leader) {
		_, err := n.ReadIndex(within(t, testTimeout), leader.Asker())
		wantCode(t, err, cluster.CodeNoLeader)
	}
}

// A leader that is cut off gives no read index.
func TestReadIndex_DeposedLeader(t *testing.T) {
	t.Parallel()
	c, old := startCluster(t, 3)
	c.write("a", "1")
	other := c.others(old)[0]
	old.cut.Store(true)
	_, err := old.ReadIndex(within(t, testTimeout), cluster.Asker{ID: other.id})
	wantCode(t, err, cluster.CodeNoLeader)
	old.cut.Store(false)
}

// A node that has applied more than is committed, as after an abandoned restore, gets no read index.
func TestReadIndex_AppliedAboveCommit(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "1")
	by := c.others(leader)[0].Asker()
	by.Applied = leader.Applied() + 1000
	_, err := leader.ReadIndex(within(t, testTimeout), by)
	wantCode(t, err, cluster.CodeNoLeader)
}

// The question of a voter that is in the leader's term is its acknowledgement: with the leader it is a majority of
// three voters. Nothing else is.
func TestReadIndex_AskerConfirms(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		nodes  int
		change func(by *cluster.Asker)
		want   bool
	}{
		{"a voter", 3, func(*cluster.Asker) {}, true},
		{"of five", 5, func(*cluster.Asker) {}, false},
		{"in another term", 3, func(by *cluster.Asker) { by.Term++ }, false},
		{"of an earlier build", 3, func(by *cluster.Asker) { by.Term, by.Incarnation = 0, "" }, false},
		{"with another data directory", 3, func(by *cluster.Asker) { by.Incarnation += "x" }, false},
		{"no member", 3, func(by *cluster.Asker) { by.ID = "n9" }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, leader := startCalmCluster(t, tc.nodes)
			c.write("a", "1")
			c.everywhere("a", "1") // the asker, too, is in the leader's term
			by := c.others(leader)[0].Asker()
			by.Applied = leader.Applied()
			tc.change(&by)
			leader.cut.Store(true) // no heartbeat is acknowledged any more
			defer leader.cut.Store(false)
			index, err := leader.ReadIndex(within(t, testTimeout), by)
			if tc.want && (err != nil || index < leader.Applied()) {
				t.Errorf("index %d of %d, %v", index, leader.Applied(), err)
			} else if !tc.want {
				wantCode(t, err, cluster.CodeNoLeader)
			}
		})
	}
}

// TestReadsAfterAFailedTransfer: after a transfer that has failed, the leader asks whether raft.Raft takes entries
// again. The entry with that question is the last one of the log. Reads do not wait for a write after it.
func TestReadsAfterAFailedTransfer(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	c.whileLeading("reads after the question", func(leader *testNode) error {
		before := leader.Status()
		<-leader.ProbeFlag()
		if st := leader.Status(); st.CommitIndex == before.CommitIndex && st.Term == before.Term {
			return errors.New("the question was not committed")
		}
		ctx, follower := within(t, testTimeout), c.others(leader)[0]
		if err := leader.ReadBarrier(ctx); err != nil {
			return fmt.Errorf("a read of the leader: %v", err) // if it leads no longer, the next one is asked
		}
		index, err := leader.ReadIndex(ctx, follower.Asker())
		if err == nil {
			err = follower.AwaitApplied(ctx, index)
		}
		if err != nil {
			return fmt.Errorf("a read of a follower: %v", err)
		}
		return nil
	})
}
