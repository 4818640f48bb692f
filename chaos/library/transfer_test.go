package library

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A transfer's nil means that leadership was lost, to whomever.
func TestTransferSucceedsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		transfer := n.LeadershipTransferToServer("b", "b")
		time.Sleep(10 * time.Millisecond) // b is told, and does nothing
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", n.CurrentTerm()+1, 1, 1, 0))
		err := transfer.Error()
		leader, _ := n.LeaderWithID()
		if err != nil || leader != "c" {
			t.Fatalf("%v, the leader is %q", err, leader)
		}
		t.Logf("to b: nil, and %s leads", leader)
	})
}

// A transfer to a node without a vote is accepted, deposes the leader, and
// ends with nil.
func TestTransferToNonVoterDeposes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := start(t, "a", newDisk(1, "abD"))
		b := start(t, "b", newDisk(1, "abD"), patient)
		d := start(t, "D", newDisk(1, "abD"))
		connect(a, b, d)
		await(t, "a leads", func() bool { return a.State() == raft.Leader && d.LastIndex() > 1 && b.LastIndex() > 1 })
		term := a.CurrentTerm()
		err := a.LeadershipTransferToServer("D", "D").Error()
		if err != nil || a.CurrentTerm() == term {
			t.Fatalf("%v, term %d after %d", err, a.CurrentTerm(), term)
		}
		t.Logf("nil; term %d after %d, and D does not lead: %v", a.CurrentTerm(), term, d.State())
	})
}

// As long as a TimeoutNow hangs every write is refused, also when the transfer
// has long been given up.
func TestHungTimeoutNowRefusesWrites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if _, ok := cmd.(*raft.TimeoutNowRequest); ok {
				return n.wire.hang()
			}
			return agree(to, cmd, data)
		})
		given := n.LeadershipTransferToServer("b", "b").Error()
		time.Sleep(time.Minute)
		err := n.Apply([]byte("x"), 0).Error()
		if given == nil || !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			t.Fatalf("%v, then %v", given, err)
		}
		t.Logf("%v; a minute later: %v", given, err)
	})
}

// A transfer is tried again while the peer's append hangs. When leadership is
// lost meanwhile, the flag that refuses writes stays, over the next election too.
// In real time: what hangs here hangs for ever, and no bubble ends with it.
func TestTransferToLaggingPeerRefusesWritesForEver(t *testing.T) {
	const timeout = 300 * time.Millisecond
	n := start(t, "a", newDisk(1, "abc"), func(c *raft.Config) {
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = timeout, timeout, timeout
	})
	n.lead(t)
	lagging := make(chan struct{})
	var hangs atomic.Bool
	n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
		if to == "b" && !isHeartbeat(cmd) {
			hangs.Store(true)
			<-lagging
		}
		return agree(to, cmd, data)
	})
	n.Apply([]byte("b lags"), 0)
	await(t, "an append to b hangs", hangs.Load)
	if err := n.LeadershipTransferToServer("b", "b").Error(); err == nil {
		t.Fatal("the first transfer succeeds")
	}
	await(t, "a second one has begun, and ended", func() bool {
		err := n.LeadershipTransferToServer("b", "b").Error()
		return !errors.Is(err, raft.ErrLeadershipTransferInProgress) && !errors.Is(err, raft.ErrEnqueueTimeout)
	})
	lost := n.CurrentTerm() + 1
	for range 2 { // with the second it has become a follower for certain
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", lost, 1, 1, 0))
	}
	close(lagging)
	n.wire.set(agree)
	await(t, "it leads again", func() bool { return n.State() == raft.Leader && n.CurrentTerm() > lost })
	time.Sleep(4 * timeout) // no transfer may take more than one
	await(t, "a write is refused", func() bool {
		return errors.Is(n.Apply([]byte("x"), 0).Error(), raft.ErrLeadershipTransferInProgress)
	})
	t.Logf("elected again in term %d, %v ago: %v", n.CurrentTerm(), 4*timeout, raft.ErrLeadershipTransferInProgress)
}
