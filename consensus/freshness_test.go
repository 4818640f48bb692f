package consensus

import (
	"testing"
	"time"

	"northstar/consensus/raftnode"
)

// The state is as old as the newest message of a leader all of which is applied.
func TestFreshness(t *testing.T) {
	t.Parallel()
	first, start := new(raftnode.Instance), time.Unix(100, 0)
	f := freshness{sleep: newSuspendWatch(func() time.Duration { return 0 }, start)} // as if the clock were stopped
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	age := func(of *raftnode.Instance, applied uint64, s int, want time.Duration) {
		t.Helper()
		f.now = func() time.Time { return at(s) }
		if got := f.age(of, applied); got != want {
			t.Errorf("applied %d, after %d s: %v, want %v", applied, s, got, want)
		}
	}
	age(first, 5, 0, -1)
	f.leaderHas(first, 7, 5, at(0))
	age(first, 6, 1, -1)
	age(first, 7, 1, time.Second)
	f.leaderHas(first, 9, 6, at(1)) // 7 is not applied yet
	age(first, 8, 3, 3*time.Second)
	f.leaderHas(first, 9, 8, at(3))
	age(first, 8, 4, 4*time.Second)
	age(first, 9, 4, time.Second)
	age(first, 9, 60, 57*time.Second) // no vote and no step-down makes it younger
	age(new(raftnode.Instance), 9, 4, -1)
}

// Of two connections, one may have been idle for long before it brings a message.
func TestFreshness_OldBound(t *testing.T) {
	t.Parallel()
	of, start := new(raftnode.Instance), time.Unix(100, 0)
	f := freshness{sleep: newSuspendWatch(func() time.Duration { return 0 }, start)}
	f.leaderHas(of, 7, 7, start.Add(10*time.Second))
	f.leaderHas(of, 9, 7, start.Add(time.Second))
	f.now = func() time.Time { return start.Add(11 * time.Second) }
	if got := f.age(of, 9); got != time.Second {
		t.Errorf("age %v, want 1s", got)
	}
}

// Go's clock stops while the machine is suspended, and the state grows older.
func TestFreshness_Suspend(t *testing.T) {
	t.Parallel()
	of, now, suspended := new(raftnode.Instance), time.Unix(100, 0), time.Duration(0)
	start := now
	f := freshness{
		now:   func() time.Time { return now },
		sleep: newSuspendWatch(func() time.Duration { return now.Sub(start) + suspended }, start),
	}
	age := func(want time.Duration) {
		t.Helper()
		if got := f.age(of, 7); got != want {
			t.Errorf("age %v, want %v", got, want)
		}
	}
	f.leaderHas(of, 7, 7, now)
	now = now.Add(time.Second)
	age(time.Second)
	suspended = 20 * time.Second
	age(21 * time.Second)
	f.leaderHas(of, 7, 7, now.Add(-time.Millisecond)) // from before the suspension
	age(21 * time.Second)
	now = now.Add(time.Second)
	age(22 * time.Second)
	f.leaderHas(of, 7, 7, now)
	age(0)
	now = now.Add(time.Second)
	suspended = 25 * time.Second
	f.leaderHas(of, 7, 7, now) // no one has looked since the suspension
	age(5 * time.Second)
}

// The time is read under the lock: a wait for the lock after it would look like a suspension.
func TestFreshness_WaitIsNoSuspension(t *testing.T) {
	t.Parallel()
	var f freshness
	f.sleep = newSuspendWatch(func() time.Duration { return 0 }, time.Unix(100, 0))
	f.now = func() time.Time {
		if f.mu.TryLock() {
			t.Error("the time is read without the lock")
			f.mu.Unlock()
		}
		return time.Unix(100, 0)
	}
	f.age(new(raftnode.Instance), 7)
}
