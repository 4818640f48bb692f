package consensus_test

import (
	"testing"
	"time"

	"northstar/state"
)

// TestSpread: an operator who is told that failover is paused may count on it
// that those know who would replace the leader a moment later.
func TestSpread(t *testing.T) {
	c, leader := startCluster(t, 3)
	// One that has just been started answers nothing yet, and is not waited for.
	for _, n := range c.others(leader) {
		eventually(t, string(n.id)+" answers", func() bool { return inContact(leader, n.id) })
	}
	for i := range 10 {
		paused := i%2 == 0
		r, err := leader.Propose(t.Context(), state.Command{Kind: state.KindSettings, Settings: &state.SettingsChange{AutoFailover: !paused}})
		if err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
		leader.Spread(t.Context())
		for _, n := range c.others(leader) {
			if n.View().AutoFailover(time.Now()) == paused {
				t.Errorf("change %d: node %s does not know it", i, n.id)
			}
		}
	}
	// Who does not answer is not waited for.
	others := c.others(leader)
	others[0].stop()
	if r, err := leader.Propose(t.Context(), state.Command{Kind: state.KindSettings, Settings: &state.SettingsChange{}}); err != nil || r.Err != nil {
		t.Fatal(err, r.Err)
	}
	leader.Spread(t.Context())
	if others[1].View().AutoFailover(time.Now()) {
		t.Error("with one node gone the other does not know it")
	}
}
