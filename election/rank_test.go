package election

import (
	"testing"

	"northstar/cluster"
)

// TestReplayingNodeRanksBelow: of two nodes with the same log, the one that still applies it comes last. One with a
// longer log comes first nevertheless: only it can win.
func TestReplayingNodeRanksBelow(t *testing.T) {
	t.Parallel()
	replays := cluster.Claim{
		NodeID: "n1", IsVoter: true, Eligible: true, Priority: 200, LastLogTerm: 3, LastLogIndex: 60_000, AppliedIndex: 20_000,
	}
	ready := replays
	ready.NodeID, ready.Priority, ready.AppliedIndex = "n2", 100, 59_500
	var servers []cluster.Server
	for _, id := range []cluster.NodeID{"n1", "n2"} {
		servers = append(servers, cluster.Server{ID: id, Suffrage: cluster.Voter})
	}
	first := func() Ranked { return Params{}.rank([]cluster.Claim{replays, ready}, servers)[0] }
	if got := first(); got.ID != "n2" {
		t.Errorf("%s ranks first, although it has 40,000 entries to apply", got.ID)
	}
	ready.LastLogIndex--
	if got := first(); got.ID != "n1" || got.Why != "log 3/60000, priority 200, 40000 entries to apply" {
		t.Errorf("with the longer log, %s ranks first: %s", got.ID, got.Why)
	}
}
