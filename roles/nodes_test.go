package roles

import (
	"fmt"
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

// More dead nodes than one command removes are gone after one sweep: what is registered again and again does not fill
// the registry.
func TestManyDeadNodesArePurged(t *testing.T) {
	withLeader(t, func(b *bench) {
		session := b.session(t, "fleet", time.Second)
		for i := range 1200 {
			node := state.AppNode{ID: fmt.Sprint("w", i), Session: session, Status: state.AppActive}
			if r := b.apply(state.Command{
				Kind:       state.KindAppNodePut,
				AppNodePut: &state.AppNodePut{Node: node},
			}); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		time.Sleep(nodeRetention + deadNodeSweepInterval*3/2) // one sweep, as they died in the first minute
		left := 0
		for range b.View().AppNodesAfter("") {
			left++
		}
		if left != 0 {
			t.Fatalf("%d nodes are left", left)
		}
	})
}
