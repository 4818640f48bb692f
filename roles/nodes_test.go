package roles

import (
	"testing"
	"time"

	"northstar/state"
)

func TestDeadNodesArePurged(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Second), b.session(t, "c", 24*time.Hour)
		for id, session := range map[string]string{"w1": a, "w2": c} {
			node := state.AppNode{ID: id, Session: session, Status: state.AppActive}
			if r := b.apply(state.Command{
				Kind:       state.KindAppNodePut,
				AppNodePut: &state.AppNodePut{Node: node},
			}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		time.Sleep(nodeRetention)
		if n, _ := b.View().AppNode("w1"); n == nil || n.Status != state.AppDead {
			t.Fatalf("%+v", n)
		}
		time.Sleep(2 * deadNodeSweepInterval)
		if _, ok := b.View().AppNode("w1"); ok {
			t.Fatal("still there")
		}
		if n, _ := b.View().AppNode("w2"); n == nil || n.Status != state.AppActive {
			t.Fatalf("%+v", n)
		}
	})
}
