package roles

import (
	"context"
	"testing"
	"time"

	"northstar/cluster"
)

// A leader that cannot prove in time that it leads, since it is busy with its log, does not end the sessions of clients
// that try to renew them. They end a TTL after the last try.
func TestRenew_WithoutProof(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.set(func() {
			b.barrier = func(context.Context) error {
				time.Sleep(300 * time.Millisecond)
				return cluster.Errorf(cluster.CodeNoLeader, "the leader did not apply its log in time")
			}
		})
		var last time.Time
		for range 10 {
			last = time.Now()
			if err := b.renew(id); !cluster.IsCode(err, cluster.CodeNoLeader) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !b.lives(id) {
			t.Fatal("it ended although its client tried to renew it")
		}
		time.Sleep(3 * time.Second)
		if took := b.endedAt(id).Sub(last); took < time.Second || took > time.Second+late {
			t.Errorf("it ended %v after the last try", took)
		}
	})
}

// Neither a revoked session nor a passive connection gains time by that.
func TestRenew_WithoutProof_Revoked(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, passive := b.session(t, "a", time.Second), b.session(t, "b", time.Second)
		b.evictAfterElection(a)
		began := time.Now()
		b.set(func() {
			b.barrier = func(context.Context) error { return cluster.Errorf(cluster.CodeNoLeader, "busy") }
		})
		for range 20 {
			list := []cluster.Attachment{{Session: a}, {Session: passive, Passive: true}}
			_, err := b.RenewAttached(t.Context(), list)
			if !cluster.IsCode(err, cluster.CodeNoLeader) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for _, id := range []string{a, passive} {
			if b.lives(id) || b.endedAt(id).Sub(began) > time.Second+late {
				t.Errorf("%s ended late, or lives: %v", id, b.lives(id))
			}
		}
	})
}
