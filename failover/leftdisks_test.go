package failover

import (
	"testing"
	"time"

	"northstar/cluster"
	"northstar/election"
	"northstar/state"
)

// The node whose slow disk leadership has left is known from the elections that all nodes have.
func TestLeftDisks(t *testing.T) {
	t.Parallel()
	now := time.Unix(10_000, 0)
	const slow = "the leader's disk is slow: median 20ms against p99 1ms on node n2"
	led := func(node cluster.NodeID, trigger, reason string, ago time.Duration) state.Election {
		return state.Election{Node: node, Trigger: trigger, Reason: reason, LedAt: now.Add(-ago).UnixNano()}
	}
	first := led("n1", election.TriggerTimeout, "", time.Hour)
	for name, tt := range map[string]struct {
		elections []state.Election
		moved     time.Duration // ago; 0: never
		left      cluster.NodeID
	}{
		"none": {[]state.Election{first}, 0, ""},
		"slow": {[]state.Election{first, led("n2", election.TriggerDiskStall, slow, time.Minute)}, time.Minute, "n1"},
		"a hang": {
			[]state.Election{first, led("n2", election.TriggerDiskStall, "it hangs", time.Minute)}, time.Minute, "",
		},
		"long ago": {
			[]state.Election{first, led("n2", election.TriggerDiskStall, slow, election.SlowDiskInterval)},
			election.SlowDiskInterval, "",
		},
		"another trigger": {[]state.Election{first, led("n2", election.TriggerTimeout, slow, time.Minute)}, 0, ""},
		"by a fast clock": {[]state.Election{first, led("n2", election.TriggerDiskStall, slow, -time.Minute)}, 0, ""},
		"another one since": {
			[]state.Election{
				first, led("n2", election.TriggerDiskStall, slow, time.Minute),
				led("n3", election.TriggerDiskStall, "it hangs", time.Second),
			}, time.Second, "n1",
		},
		"the first that is known": {
			[]state.Election{led("n2", election.TriggerDiskStall, slow, time.Minute)}, time.Minute, "",
		},
	} {
		moved, left := leftDisks(tt.elections, now)
		if left != tt.left || moved.IsZero() != (tt.moved == 0) || tt.moved != 0 && !moved.Equal(now.Add(-tt.moved)) {
			t.Errorf("%s: moved at %v, left %q; want %v ago, %q", name, moved, left, tt.moved, tt.left)
		}
	}
}
