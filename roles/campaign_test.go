package roles

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

func (b *bench) holder(role string) string {
	r, _ := b.View().Role(role)
	if r == nil {
		return ""
	}
	return r.Current.Holder
}

// lose ends a session as if its connection had broken.
func (b *bench) lose(id string) {
	b.t.Helper()
	if r := b.apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
		IDs:   []string{id},
		Cause: state.CauseDisconnected,
	}}); r.Err != nil {
		b.t.Fatal(r.Err)
	}
}

func TestTakeoverDelay(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Hour), b.session(t, "c", time.Hour)
		b.campaign(t, "r", a, 0)
		b.campaign(t, "r", c, time.Second)
		left := b.TrackWaiter("r", c)
		defer left(false)
		b.lose(a)
		time.Sleep(990 * time.Millisecond)
		if b.holder("r") != "" {
			t.Fatal("elected before the delay was over")
		}
		time.Sleep(150 * time.Millisecond)
		if b.holder("r") != "c" {
			t.Fatal("not elected after the delay")
		}
	})
}

// A takeover delay begins afresh with each leader, and is not lost.
func TestTakeoverDelay_AcrossLeaderChange(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Hour), b.session(t, "c", time.Hour)
		b.campaign(t, "r", a, 0)
		b.campaign(t, "r", c, time.Second)
		defer b.TrackWaiter("r", c)(false)
		b.lose(a)
		time.Sleep(900 * time.Millisecond)
		b.end()
		time.Sleep(time.Minute)
		b.lead()
		time.Sleep(900 * time.Millisecond)
		if b.holder("r") != "" {
			t.Fatal("elected before the delay was over")
		}
		time.Sleep(300 * time.Millisecond)
		if b.holder("r") != "c" {
			t.Fatal("not elected after the delay")
		}
	})
}

// An election that could not be proposed is tried again.
func TestDelayedElectionIsRetried(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Hour), b.session(t, "c", time.Hour)
		b.campaign(t, "r", a, 0)
		b.campaign(t, "r", c, time.Second)
		defer b.TrackWaiter("r", c)(false)
		failures := 3
		b.set(func() {
			b.propose = func(cmd state.Command) error {
				if cmd.Kind == state.KindRoleElect && failures > 0 {
					failures--
					return cluster.Errorf(cluster.CodeBusy, "busy")
				}
				return nil
			}
		})
		b.lose(a)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if b.holder("r") != "c" || failures != 0 {
			t.Fatalf("holder %q, %d failures left", b.holder("r"), failures)
		}
	})
}

// A candidate whose request is gone leaves the queue; one that asks again at the
// next leader keeps its place.
func TestOrphanedCandidates_AreWithdrawn(t *testing.T) {
	withLeader(t, func(b *bench) {
		holder := b.session(t, "holder", time.Hour)
		b.campaign(t, "r", holder, 0)
		ids := []string{}
		for i := range 50 {
			ids = append(ids, b.session(t, fmt.Sprint(i), time.Hour))
			b.campaign(t, "r", ids[i], 0)
		}
		b.end()
		b.lead()
		kept := b.TrackWaiter("r", ids[7])
		time.Sleep(orphanTimeout + time.Second)
		r, _ := b.View().Role("r")
		if len(r.Queue) != 1 || r.Queue[0].Session != ids[7] {
			t.Fatalf("%d candidates are left", len(r.Queue))
		}
		if role, err := b.Withdraw(b.t.Context(), "r", ids[7]); role != nil || err != nil {
			t.Fatalf("withdrawn although another request waits: %v, %v", role, err)
		}
		kept(false)
		if role, err := b.Withdraw(b.t.Context(), "r", ids[7]); err != nil || len(role.Queue) != 0 {
			t.Fatalf("%+v, %v", role, err)
		}
		if len(b.waiters) != 0 {
			t.Fatal("a finished waiter is still tracked")
		}
	})
}

// An abandoned candidate is withdrawn even if its client never returns.
func TestAbandonedCandidate_IsWithdrawn(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Hour), b.session(t, "c", time.Hour)
		b.campaign(t, "r", a, 0)
		left := b.TrackWaiter("r", c)
		b.campaign(t, "r", c, 0)
		left(false)
		time.Sleep(orphanTimeout + time.Second)
		if r, _ := b.View().Role("r"); r.Waits(c) {
			t.Fatal("still in the queue")
		}
	})
}

// A client gives up while its campaign is on its way through the log. The candidate is applied later, and withdrawn.
func TestAbandonedCandidate_AppliedLater(t *testing.T) {
	withLeader(t, func(b *bench) {
		a, c := b.session(t, "a", time.Hour), b.session(t, "c", time.Hour)
		b.campaign(t, "r", a, 0)
		b.TrackWaiter("r", c)(true)
		time.Sleep(4 * maxTick)
		b.campaign(t, "r", c, 0)
		time.Sleep(orphanTimeout)
		if r, _ := b.View().Role("r"); r.Waits(c) {
			t.Error("still in the queue")
		}
		time.Sleep(maxTick)
		b.SessionManager.mu.Lock()
		defer b.SessionManager.mu.Unlock()
		if n := len(b.SessionManager.leaderState.orphans); n != 0 {
			t.Errorf("%d candidates are still tracked", n)
		}
	})
}

// A campaign that was answered is forgotten with the next tick unless its candidate is in the queue. So the number of
// candidates that are looked at does not grow with the campaigns of 10 s. One in doubt is forgotten after that time.
func TestAnsweredCampaign_IsForgotten(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := b.session(t, "a", time.Hour)
		tracked := func() int {
			b.SessionManager.mu.Lock()
			defer b.SessionManager.mu.Unlock()
			return len(b.SessionManager.leaderState.orphans)
		}
		for i := range 1000 {
			role := fmt.Sprint("role", i)
			release := b.TrackWaiter(role, a)
			b.campaign(t, role, a, 0) // elected
			release(false)
		}
		first, second := b.TrackWaiter("r", a), b.TrackWaiter("r", a)
		first(true) // the second one is answered before this one's campaign is applied
		time.Sleep(2 * maxTick)
		second(false)
		time.Sleep(2 * maxTick)
		if n := tracked(); n != 1 {
			t.Errorf("%d candidates are tracked", n)
		}
		time.Sleep(orphanTimeout)
		if n := tracked(); n != 0 {
			t.Errorf("%d candidates are tracked for longer", n)
		}
	})
}

// The event log is told what happens, and is not flooded.
func TestRoleEvents(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := b.session(t, "a", time.Hour)
		b.campaign(t, "r", a, 0)
		synctest.Wait()
		b.lose(a)
		synctest.Wait()
		if len(b.events) != 2 || b.events[0].Type != "role" || b.events[0].Message != "a holds role r with token 2" ||
			b.events[1].Message != "a no longer holds role r: disconnected" ||
			b.events[1].Fields["cause"] != "disconnected" {
			t.Fatalf("%+v", b.events)
		}
		c := b.session(t, "c", time.Hour)
		for i := range 1000 {
			b.campaign(t, fmt.Sprint("role", i), c, 0)
			synctest.Wait()
		}
		if n := len(b.events); n > 2+maxEventBurst+5 {
			t.Fatalf("%d events", n)
		}
		time.Sleep(time.Second)
		b.campaign(t, "last", c, 0)
		synctest.Wait()
		if e := b.events[len(b.events)-1]; e.Fields["role"] != "last" || e.Fields["left_out"] == nil {
			t.Fatalf("%+v", e)
		}
	})
}

// However often the feed is left behind, a takeover delay is never missed.
func TestFollowsAfterARestore(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := b.session(t, "a", time.Hour)
		b.campaign(t, "r", a, 0)
		backup := b.state.Snapshot()
		synctest.Wait()
		b.restore(t, backup)
		synctest.Wait()
		if b.SessionManager.leaderState == nil || b.View().Sessions() != 0 {
			t.Fatal("not restored")
		}
		c, d := b.session(t, "c", time.Hour), b.session(t, "d", time.Hour)
		b.campaign(t, "other", c, 0)
		b.campaign(t, "other", d, time.Second)
		defer b.TrackWaiter("other", d)(false)
		b.lose(c)
		time.Sleep(1200 * time.Millisecond)
		if b.holder("other") != "d" {
			t.Fatalf("holder %q", b.holder("other"))
		}
		if err := b.renew(a); !cluster.IsCode(err, cluster.CodeSessionEnded) {
			t.Fatal(err)
		}
	})
}

func TestRemaining(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", 10*time.Second)
		time.Sleep(maxTick)
		b.mustRenew(id)
		time.Sleep(3 * time.Second)
		s, _ := b.View().Session(id)
		if left := b.Remaining(s); left < 6900*time.Millisecond || left > 7100*time.Millisecond {
			t.Fatal(left)
		}
		b.end()
		if left := b.Remaining(s); left != 10*time.Second {
			t.Fatal(left)
		}
	})
}
