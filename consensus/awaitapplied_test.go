package consensus_test

import (
	"testing"
	"time"

	"northstar/state"
)

// TestAwaitAppliedEverywhere: an operator learns that automatic failover is paused. From then on, every node that could
// replace a failed leader must know it too.
func TestAwaitAppliedEverywhere(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	set := func(auto bool) {
		t.Helper()
		eventually(t, "a leader that hears from all takes the change", func() bool {
			leader = c.leader()
			for _, n := range c.others(leader) {
				if !inContact(leader, n.id) { // just started: it answers nothing yet, and is not waited for
					return false
				}
			}
			r, err := leader.Propose(t.Context(), state.Command{
				Kind:     state.KindSettings,
				Settings: &state.SettingsChange{AutoFailover: auto},
			})
			return err == nil && r.Err == nil
		})
		leader.AwaitAppliedEverywhere(t.Context())
	}
	for i := range 10 {
		auto := i%2 == 1
		set(auto)
		for _, n := range c.others(leader) {
			if n.View().AutoFailover(time.Now()) != auto {
				t.Errorf("change %d: node %s does not know it", i, n.id)
			}
		}
	}
	// Who does not answer is not waited for.
	gone := c.others(leader)[0]
	gone.stop()
	set(false)
	for _, n := range c.others(leader) {
		if n.View().AutoFailover(time.Now()) {
			t.Errorf("with one node gone node %s does not know it", n.id)
		}
	}
}
