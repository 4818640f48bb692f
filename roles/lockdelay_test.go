package roles

import (
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// restoreHeld has a role held with a TTL, and a backup put in the place of the state.
func (b *bench) restoreHeld(ttl time.Duration) {
	b.t.Helper()
	b.campaign(b.t, "r", b.session(b.t, "old", ttl), 0)
	b.restore(b.t, b.state.Snapshot())
}

// campaignSession has a new session campaign for roles, whose requests wait here.
func (b *bench) campaignSession(name string, roles ...string) {
	b.t.Helper()
	id := b.session(b.t, name, time.Hour)
	for _, role := range roles {
		b.campaign(b.t, role, id, 0)
		release := b.TrackWaiter(role, id)
		b.t.Cleanup(func() { release(false) })
	}
}

// vacantUntil waits until a role is held, which it must be within a moment after
// the time d, and not before.
func (b *bench) vacantUntil(role string, began time.Time, d time.Duration) {
	b.t.Helper()
	for b.holder(role) == "" && time.Since(began) < d+late {
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(began); b.holder(role) == "" || took < d {
		b.t.Fatalf("%s is held by %q after %v, want %v", role, b.holder(role), took, d)
	}
}

func TestLockDelay_AfterRestore(t *testing.T) {
	withLeader(t, func(b *bench) {
		time.Sleep(time.Second)
		b.restoreHeld(5 * time.Second)
		began := time.Now()
		b.campaignSession("new", "r", "other")
		if b.holder("other") != "new" {
			t.Fatal("a role that nobody held waits")
		}
		b.vacantUntil("r", began, 5*time.Second)
	})
}

// A lock delay that has passed does not start again. This also holds without any candidate for the role during the
// delay, and under the next leader.
func TestLockDelay_RestoreOnce(t *testing.T) {
	withLeader(t, func(b *bench) {
		b.restoreHeld(2 * time.Second)
		time.Sleep(2*time.Second + late)
		b.end()
		b.lead()
		b.campaignSession("new", "r")
		if b.holder("r") != "new" {
			t.Fatal("still waited for")
		}
	})
}

// A new leader does not know since when it is waited: it begins afresh. A pause of
// the leader's process counts for nothing.
func TestLockDelay_RestoreLaterLeader(t *testing.T) {
	withLeader(t, func(b *bench) {
		b.restoreHeld(5 * time.Second)
		b.campaignSession("new", "r")
		time.Sleep(4 * time.Second)
		b.end()
		b.lead()
		began := time.Now()
		time.Sleep(2 * time.Second)
		b.clock.jump(time.Minute)
		b.vacantUntil("r", began, 5*time.Second)
	})
}

// After a recovery every role waits, of which there need be no record.
func TestLockDelay_Recovery(t *testing.T) {
	withLeader(t, func(b *bench) {
		b.apply(state.Command{Kind: state.KindClusterInit, ClusterInit: &state.ClusterInit{
			ClusterID:  "c",
			Generation: cluster.Generation{Number: 1},
		}})
		b.campaign(t, "long", b.session(t, "old", 15*time.Second), 0)
		b.apply(state.Command{
			Kind:     state.KindRecovery,
			Recovery: &state.Recovery{Generation: cluster.Generation{Number: 2, RecoveryID: "r"}, LockDelay: true},
		})
		b.campaignSession("new", "long", "unknown")
		b.end()
		b.lead()
		began := time.Now()
		b.vacantUntil("unknown", began, 15*time.Second)
		b.vacantUntil("long", began, 15*time.Second)
		b.campaignSession("later", "another")
		if b.holder("another") != "later" {
			t.Fatal("a role waits after that")
		}
	})
}
