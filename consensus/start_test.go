package consensus

import (
	"testing"
	"time"
)

// TestMayVoteAfterStart: the lease is enabled, and a node may have acknowledged one before it started. It grants no
// vote until that lease has expired on every clock.
func TestMayVoteAfterStart(t *testing.T) {
	t.Parallel()
	var clock time.Duration
	n := &Node{cfg: Config{TimeoutMin: 150 * time.Millisecond}, peers: newPeerBook()}
	if n.MayVote() {
		t.Error("before it has asked the others")
	}
	n.peersProbed.Store(true)
	if !n.MayVote() {
		t.Error("without a lease")
	}
	n.lease = newLease(100*time.Millisecond, func() time.Duration { return clock }, time.Now)
	for _, tt := range []struct {
		at  time.Duration
		may bool
	}{{0, false}, {299 * time.Millisecond, false}, {300 * time.Millisecond, true}} {
		clock = tt.at
		if n.MayVote() != tt.may {
			t.Errorf("after %v: %v", tt.at, !tt.may)
		}
	}
}
