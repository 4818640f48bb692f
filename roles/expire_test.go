package roles

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"northstar/state"
)

// A client starts and ends sessions with a long TTL again and again. The leader does not keep the timers of all.
func TestEndedSessionsLeaveNoTimers(t *testing.T) {
	withLeader(t, func(b *bench) {
		lasting := b.session(t, "lasting", time.Hour)
		for range 5 * fewTimers {
			id := b.session(t, "short-lived", time.Hour)
			b.mustRenew(id) // its timer starts
			if err := b.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
				IDs: []string{id}, Cause: state.CauseSessionEnded,
			}}).Err; err != nil {
				t.Fatal(err)
			}
		}
		for range 5 * fewTimers {
			b.session(t, "expires", time.Second)
		}
		time.Sleep(time.Minute)
		b.SessionManager.mu.Lock()
		timers, due := len(b.leaderState.sessions), len(b.leaderState.due)
		b.SessionManager.mu.Unlock()
		if timers > fewTimers+2 || due != timers || !b.lives(lasting) {
			t.Errorf("%d timers, %d of them due, the lasting session lives: %v", timers, due, b.lives(lasting))
		}
	})
}

// A session that begins while ended ones are dropped keeps its timer, and with that its connection.
func TestEndedSessionsAreDropped_BesideANewOne(t *testing.T) {
	withLeader(t, func(b *bench) {
		b.set(func() { b.barrier = func(context.Context) error { return nil } }) // no tick before all are there
		for range 2 * fewTimers {
			id := b.session(t, "short-lived", time.Hour)
			b.mustRenew(id)
			b.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
				IDs: []string{id}, Cause: state.CauseSessionEnded,
			}})
		}
		var id string
		var renewed atomic.Bool
		b.set(func() {
			b.viewed = func() {
				id = b.session(t, "new", time.Hour)
				go func() { b.renewAttached(held(id, "1")); renewed.Store(true) }()
				for range 1000 {
					runtime.Gosched() // it may have to wait until the tick is over
				}
			}
		})
		time.Sleep(time.Second)
		if !renewed.Load() {
			t.Fatal("it was not renewed")
		}
		b.SessionManager.mu.Lock()
		defer b.SessionManager.mu.Unlock()
		if timer := b.leaderState.sessions[id]; timer == nil || len(timer.streams) != 1 {
			t.Errorf("its connection was forgotten: %+v", timer)
		}
	})
}
