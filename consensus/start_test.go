package consensus

import (
	"testing"
	"time"

	"northstar/cluster"
)

// TestMayVoteAfterStart: the lease is enabled, and a node may have acknowledged one before it started. It grants no
// vote until that lease has expired on every clock.
func TestMayVoteAfterStart(t *testing.T) {
	t.Parallel()
	var clock time.Duration
	n := &Node{cfg: Config{TimeoutMin: 150 * time.Millisecond}, peers: newPeerRegistry()}
	if kind, _ := n.VoteObstacle(); kind != "starting" {
		t.Errorf("before it has asked the others: %q", kind)
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
		if kind, _ := n.VoteObstacle(); (kind == "") != tt.may || kind != "" && kind != "lease" {
			t.Errorf("after %v: %q", tt.at, kind)
		}
	}
	n.peers.refusedBy["n2"] = refusal{why: cluster.RefusedGeneration, at: time.Now()}
	if kind, _ := n.VoteObstacle(); kind != "newer_generation" {
		t.Errorf("a peer has a newer generation: %q", kind)
	}
}
