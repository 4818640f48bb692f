package roles

import (
	"context"
	"sync"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// evictAfterElection makes a session hold a role, which an operator then takes from it.
func (b *bench) evictAfterElection(id string) {
	b.t.Helper()
	b.campaign(b.t, "r", id, 0)
	b.evict()
}

func (b *bench) evict() {
	b.t.Helper()
	if r := b.apply(state.Command{Kind: state.KindRoleTransfer, RoleTransfer: &state.RoleTransfer{
		Role:                "r",
		AwaitPreviousHolder: true,
	}}); r.Err != nil {
		b.t.Fatal(r.Err)
	}
}

// A session with a revoked role is not renewed by any number of requests. It ends one TTL after its last renewal;
// then the next candidate is elected.
func TestRevokedSession_IsNotRenewed(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, next := b.session(t, "a", 2*time.Second), b.session(t, "b", time.Hour)
		b.campaign(t, "r", a, 0)
		b.campaign(t, "r", next, 0)
		time.Sleep(time.Second)
		b.mustRenew(a)
		last := time.Now()
		b.evict()
		var renewals sync.WaitGroup
		defer renewals.Wait()
		for range 3000 { // also while one is always on its way
			renewals.Go(func() {
				if err := b.renew(a); err == nil {
					t.Error("renewed")
				}
			})
			if out, err := b.RenewAttached(b.t.Context(), []cluster.Attachment{held(a, "1")}); err != nil ||
				len(out.Alive) != 0 {
				t.Fatalf("%+v, %v", out, err)
			}
			if out, err := b.RenewAttached(b.t.Context(),
				[]cluster.Attachment{{Session: a, Stream: "2", Passive: true}}); err != nil || b.lives(a) &&
				len(out.Alive) != 1 {
				t.Fatalf("%+v, %v", out, err)
			}
			if !b.lives(a) {
				break
			}
		}
		if took := b.endedAt(a).Sub(last); took < 2*time.Second || took > 2*time.Second+late {
			t.Fatalf("ended %v after its last renewal", took)
		}
		if b.holder("r") != "b" {
			t.Fatalf("held by %q", b.holder("r"))
		}
	})
}

// The role is taken while a renewal of its holder is on its way.
func TestRenew_PendingDuringRevocation(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := b.session(t, "a", time.Second)
		b.set(func() {
			b.barrier = func(context.Context) error {
				b.set(func() { b.barrier = nil })
				b.evictAfterElection(a)
				return nil
			}
		})
		if err := b.renew(a); !cluster.IsCode(err, cluster.CodeFenced) {
			t.Fatal(err)
		}
	})
}

// A session that has acknowledged the revocation is renewed again.
func TestRevokedSession_Resigns(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, next := b.session(t, "a", time.Second), b.session(t, "b", time.Hour)
		b.evictAfterElection(a)
		b.campaign(t, "r", next, 0)
		if b.holder("r") != "" {
			t.Fatal("the role did not wait for the evicted session")
		}
		if r := b.apply(state.Command{Kind: state.KindRoleRelease, RoleRelease: &state.RoleRelease{
			Role:    "r",
			Session: a,
		}}); r.Err != nil || b.holder("r") != "b" {
			t.Fatalf("%v, held by %q", r.Err, b.holder("r"))
		}
		for range 10 {
			b.mustRenew(a)
			time.Sleep(900 * time.Millisecond)
		}
	})
}

// A new leader does not know when a session was last renewed: it counts afresh.
func TestRevokedSession_AfterLeaderChange(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := b.session(t, "a", 2*time.Second)
		b.evictAfterElection(a)
		time.Sleep(time.Second)
		b.end()
		b.lead()
		began := time.Now()
		time.Sleep(4 * time.Second)
		if took := b.endedAt(a).Sub(began); took < 2*time.Second || took > 2*time.Second+late {
			t.Fatalf("ended %v after the new leader began", took)
		}
	})
}
