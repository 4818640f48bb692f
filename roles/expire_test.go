package roles

import (
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
