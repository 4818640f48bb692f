package node

import (
	"testing"
	"time"

	"northstar/cluster"
	"northstar/failover"
)

// A node that may not start an election says why, also before it has a record.
func TestElectionObstacle(t *testing.T) {
	t.Parallel()
	may := candidacyFacts{
		suffrage: cluster.Voter,
		record:   cluster.Member{ID: "n1", Priority: 100, Eligible: true, Lifecycle: cluster.Active},
	}
	const drainedText = "it is drained"
	for name, tt := range map[string]struct {
		change   func(*candidacyFacts)
		priority int
		eligible bool
		want     string
	}{
		"none":         {func(*candidacyFacts) {}, 0, true, ""},
		"stopping":     {func(f *candidacyFacts) { f.stopping = true }, 100, true, "it is about to stop"},
		"split brain":  {func(f *candidacyFacts) { f.splitBrain = "two" }, 100, true, "it is part of a split brain"},
		"no vote":      {func(f *candidacyFacts) { f.suffrage = cluster.NonVoter }, 100, true, "it has no vote"},
		"consensus":    {func(f *candidacyFacts) { f.consensus = "its disk is full" }, 100, true, "its disk is full"},
		"the record":   {func(f *candidacyFacts) { f.record.Priority = 0 }, 100, true, "it has priority 0"},
		"drained":      {func(f *candidacyFacts) { f.record.Lifecycle = cluster.Draining }, 100, true, drainedText},
		"paused":       {func(f *candidacyFacts) { f.paused = true }, 100, true, "automatic failover is paused"},
		"two lost":     {func(f *candidacyFacts) { f.backoff.Lost = 2 }, 100, true, ""},
		"no record":    {func(f *candidacyFacts) { f.record = cluster.Member{} }, 100, true, ""},
		"priority 0":   {func(f *candidacyFacts) { f.record = cluster.Member{} }, 0, true, "it has priority 0"},
		"not eligible": {func(f *candidacyFacts) { f.record = cluster.Member{} }, 100, false, "it is not eligible"},
		"many lost": {
			func(f *candidacyFacts) { f.backoff = failover.Backoff{Lost: 4, Pause: 600 * time.Millisecond} }, 100, true,
			"it has lost 4 elections in a row, and waits 600ms after each",
		},
	} {
		cfg := Default()
		cfg.ID, cfg.Priority, cfg.Eligible = "n1", tt.priority, tt.eligible
		facts := may
		tt.change(&facts)
		if got := facts.obstacle(&cfg); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A node without a leader says what keeps it from electing one, but not while it starts.
func TestElectionWarning(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		leader   cluster.NodeID
		obstacle string
		running  time.Duration
		want     string
	}{
		"no leader": {
			"", "its disk is full", time.Minute, "this node knows no leader and starts no election: its disk is full",
		},
		"leader":   {"n1", "its disk is full", time.Minute, ""},
		"starting": {"", "it has not reached enough peers since it started", time.Second, ""},
		"may":      {"", "", time.Minute, ""},
	} {
		if got := electionWarning(tt.leader, tt.obstacle, tt.running); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
