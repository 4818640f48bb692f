package consensus_test

import (
	"testing"

	"northstar/cluster"
)

// TestSurvivorComesBackByItself kills both survivors while a quorum is recovered: the other one before it was told to
// set its data aside, and the recovered one before it could tell. Both start again. The same request is accepted on
// either, and the other survivor comes back without one.
func TestSurvivorComesBackByItself(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 5)
	c.write("a", "1")
	c.everywhere("a", "1")
	chosen, other := c.others(leader)[0], c.others(leader)[1]
	eventually(t, "its data directory is recorded",
		func() bool { return recordsOnDisk(chosen)[other.id].Incarnation != "" })
	lose(leader, c.others(leader)[2], c.others(leader)[3])
	request := c.recoveryRequest(chosen, other)
	old := other.Identity()
	other.stop()
	g, err := chosen.Recover(within(t, testTimeout), request)
	if err != nil {
		t.Fatal(err)
	}
	if plan, _, ok := chosen.ResumeRecovery(request); !ok || plan.Chosen != chosen.id || len(plan.Survivors) != 2 ||
		len(plan.Lost) != 3 {
		t.Errorf("on the recovered node: %+v, %v", plan, ok)
	}
	wrong := request
	wrong.Survivors = request.Survivors[:1]
	if _, _, ok := chosen.ResumeRecovery(wrong); ok {
		t.Error("another request is taken for the same")
	}
	chosen.restart()
	other.start()
	eventually(t, "the other one knows who was recovered", func() bool {
		plan, of, ok := other.ResumeRecovery(request)
		return ok && plan.Chosen == chosen.id && of == g || other.asides.Load() > 0
	})
	eventually(t, "it sets its data aside", func() bool { return other.asides.Load() > 0 })
	other.restart()
	eventually(t, "it is a voter again",
		func() bool { return other.Status().Suffrage() == cluster.Voter && other.has("a", "1") })
	if id := other.Identity(); id.Generation != g || id.Incarnation == old.Incarnation {
		t.Errorf("it is %+v, and was %+v", id, old)
	}
	if _, _, ok := chosen.ResumeRecovery(request); ok {
		t.Error("the recovery is complete, and the request is accepted again")
	}
	if p := chosen.LocalPeer(); len(p.Survivors) != 0 {
		t.Errorf("the recovered node still asks %v to set data aside", p.Survivors)
	}
}
