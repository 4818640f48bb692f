package storage

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func TestStalledAndHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		g, f := guardOver(m)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- g.Run(ctx) }()

		release := make(chan struct{})
		m.setHook(func(string) error { <-release; return nil })
		stored := make(chan error, 1)
		go func() { stored <- g.Log().StoreLogs(entries(1, 1, 1, 10)) }()
		step := func(d time.Duration, stalled bool) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if g.Stalled() != stalled {
				t.Errorf("stalled: %v", !stalled)
			}
		}
		step(300*time.Millisecond, false)
		step(time.Millisecond, true)
		step(exitAfter-time.Second, true)
		if errs := f.all(); len(errs) != 0 {
			t.Errorf("fatal too early: %v", errs)
		}
		step(time.Minute, true)
		if errs := f.all(); len(errs) != 1 || errs[0] != g.Err() {
			t.Errorf("hung: %v, %v", errs, g.Err())
		}
		close(release)
		if err := <-stored; err != nil {
			t.Errorf("the hung write ended with %v", err)
		}
		step(0, false)
		if err := g.Log().StoreLogs(entries(2, 1, 1, 10)); err == nil {
			t.Error("a write after the fatal error succeeded")
		}
		cancel()
		if err := <-ran; err != g.Err() { //nolint:errorlint // that very error
			t.Errorf("Run: %v", err)
		}
	})
}

func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		took := map[string]time.Duration{}
		g := Guard(m, GuardConfig{
			StallMin: time.Second, StallMax: time.Second, OnFatal: func(error) {}, Logger: hclog.NewNullLogger(),
			Observe: func(op string, d time.Duration) { took[op] = d },
		})
		m.setHook(func(string) error { time.Sleep(3 * time.Millisecond); return nil })
		mustStore(t, g.Log(), entries(1, 1, 1, 10))
		g.cache.clear()
		err := errors.Join(g.Log().GetLog(1, new(raft.Log)), g.Stable().SetUint64([]byte(keyCurrentTerm), 1),
			g.Save("x", nil), g.Log().DeleteRange(1, 1))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]time.Duration{}
		for _, op := range []string{OpAppend, OpRead, OpVote, OpSave, OpTruncate} {
			want[op] = 3 * time.Millisecond
		}
		if !reflect.DeepEqual(took, want) {
			t.Errorf("observed %v", took)
		}
	})
}

func TestSyncP99(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(time.Second)
		do := func(n int, d time.Duration) {
			for range n {
				id, _ := w.begin(OpAppend, time.Now())
				time.Sleep(d)
				w.end(id, time.Now(), true)
			}
		}
		near := func(want time.Duration) {
			t.Helper()
			if got, _, _ := w.quantiles(time.Now()); got < want || float64(got) > 1.11*float64(want) {
				t.Errorf("p99 %s, want %s", got, want)
			}
		}
		near(0)
		do(990, time.Millisecond)
		do(10, 100*time.Millisecond)
		near(time.Millisecond)
		do(5, 100*time.Millisecond)
		near(100 * time.Millisecond)
		time.Sleep(45 * time.Second)
		near(100 * time.Millisecond)
		time.Sleep(20 * time.Second)
		near(0)
		do(1, 300*time.Second)
		if got, n, _ := w.quantiles(time.Now()); got < 90*time.Second || n != 1 {
			t.Error("a very long operation does not show")
		}
		id, _ := w.begin(OpRead, time.Now())
		w.end(id, time.Now(), false)
	})
}

// The median of the last seconds forgets what was before. It needs some operations, and two windows.
func TestMedianOfTheLastSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatch(time.Second)
		do := func(n int, took time.Duration) {
			for range n {
				id, _ := w.begin(OpAppend, time.Now())
				time.Sleep(took)
				w.end(id, time.Now(), true)
			}
		}
		check := func(want time.Duration) {
			t.Helper()
			time.Sleep(p99TTL)
			if _, _, got := w.quantiles(time.Now()); got < want || float64(got) > 1.11*float64(want) {
				t.Errorf("median %v, want %v", got, want)
			}
		}
		do(minRecent, 20*time.Millisecond)
		check(0) // too early
		time.Sleep(2 * recentWindows * windowSize)
		do(7, 20*time.Millisecond)
		check(0) // too few
		do(1, 20*time.Millisecond)
		check(20 * time.Millisecond)
		do(101, 20*time.Millisecond)
		do(100, time.Millisecond)
		check(20 * time.Millisecond)
		time.Sleep(recentWindows * windowSize)
		check(0)
		do(minRecent, time.Millisecond)
		check(time.Millisecond)
	})
}

// OnHang is called as soon as an operation hangs, and again while it does. An operation that ends in time calls it not,
// and those that overlap hide none.
func TestOnHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []time.Time
		g := Guard(newMemStorage(), GuardConfig{
			StallMin: 150 * time.Millisecond, StallMax: 300 * time.Millisecond, OnFatal: func(error) {},
			OnHang: func() { calls = append(calls, time.Now()) }, Logger: hclog.NewNullLogger(),
		})
		save := func(d time.Duration) {
			_ = g.timed(OpSave, func() error { time.Sleep(d); return nil })
		}
		time.Sleep(recentWindows * windowSize)
		for range stallSamples {
			save(20 * time.Millisecond)
		}
		save(49 * time.Millisecond)
		time.Sleep(longestCount * longestPeriod)
		for range stallSamples {
			save(20 * time.Millisecond)
		}
		synctest.Wait()
		if len(calls) != 0 {
			t.Fatalf("called after %v, without an operation that hung", calls)
		}
		went := make(chan struct{})
		go func() { save(20 * time.Millisecond); close(went) }()
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		save(160 * time.Millisecond) // begins while the other one is in flight
		<-went
		time.Sleep(time.Second)
		synctest.Wait()
		var after []time.Duration
		for _, at := range calls {
			after = append(after, at.Sub(began).Truncate(time.Millisecond))
		}
		// Twice the longest but one or 50 ms, and two syncs of 20 ms, within the 10 % that the median has.
		want := []time.Duration{90 * time.Millisecond, 140 * time.Millisecond}
		if !slices.Equal(after, want) {
			t.Errorf("called after %v, want %v", after, want)
		}
	})
}

// A process that did not run waits for the operation a little longer.
func TestOnHang_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var called atomic.Int64
		g := Guard(newMemStorage(), GuardConfig{
			StallMin: 150 * time.Millisecond, StallMax: 300 * time.Millisecond, OnFatal: func(error) {},
			OnHang: func() { called.Add(1) }, Logger: hclog.NewNullLogger(),
		})
		_, _ = g.watch.begin(OpAppend, time.Now())
		time.Sleep(time.Second)
		g.armHang(-2 * maxLate)
		for _, want := range []int64{0, 1} {
			synctest.Wait()
			if got := called.Load(); got != want {
				t.Errorf("called %d times, want %d", got, want)
			}
			time.Sleep(maxLate + 1)
		}
	})
}

// A disk is stalled, and hangs, earlier if none of its operations took long in the last minutes.
func TestStallLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := guardOver(newMemStorage())
		after := func() (hangs, stalled time.Duration) {
			began := time.Now()
			_, _ = g.watch.begin(OpAppend, began)
			for !g.Stalled() {
				time.Sleep(time.Millisecond)
				if hangs == 0 && g.Hangs() {
					hangs = time.Since(began) - time.Millisecond
				}
			}
			stalled = time.Since(began) - time.Millisecond
			g.watch.mu.Lock()
			g.watch.inFlight = nil
			g.watch.mu.Unlock()
			return hangs, stalled
		}
		do := func(n int, took time.Duration) {
			for range n {
				id, _ := g.watch.begin(OpAppend, time.Now())
				time.Sleep(took)
				g.watch.end(id, time.Now(), true)
			}
		}
		const twoSyncs = 2 * time.Millisecond // of the median of the last minute
		check := func(what string, hangs, stalled time.Duration) {
			t.Helper()
			hangs, stalled = hangs+twoSyncs, stalled+twoSyncs
			if gotHangs, got := after(); got != stalled || gotHangs != hangs {
				t.Errorf("%s: hangs after %v, want %v; stalled after %v, want %v", what, gotHangs, hangs, got, stalled)
			}
		}
		do(stallSamples-1, time.Millisecond)
		check("little is known", 300*time.Millisecond, 300*time.Millisecond)
		do(1, time.Millisecond)
		check("soon after the start", 150*time.Millisecond, 150*time.Millisecond)
		time.Sleep(recentWindows * windowSize)
		check("a fast disk", 50*time.Millisecond, 150*time.Millisecond)
		do(1, 30*time.Millisecond)
		check("one that took a little longer", 50*time.Millisecond, 150*time.Millisecond)
		do(1, 60*time.Millisecond)
		check("one slow operation", 60*time.Millisecond, 180*time.Millisecond)
		do(1, 110*time.Millisecond)
		check("a slower one", 120*time.Millisecond, 300*time.Millisecond)
		time.Sleep(longestPeriod)
		do(minUsual, time.Millisecond)
		do(1, 100*time.Millisecond)
		check("as slow again, a minute later", 200*time.Millisecond, 300*time.Millisecond)
		time.Sleep(longestCount * longestPeriod)
		stalled, _ := g.watch.begin(OpAppend, time.Now())
		time.Sleep(100 * time.Millisecond)
		beside, _ := g.watch.begin(OpVote, time.Now())
		time.Sleep(201 * time.Millisecond)
		g.watch.end(beside, time.Now(), true)
		g.watch.end(stalled, time.Now(), true)
		do(stallSamples, time.Millisecond)
		check("ten minutes later, after a stall", 50*time.Millisecond, 150*time.Millisecond)
		for range 2 * maxInRow {
			do(1, 350*time.Millisecond)
			time.Sleep(time.Millisecond)
			do(1, time.Millisecond)
		}
		check("a disk that stalls again and again", 50*time.Millisecond, 150*time.Millisecond)
		do(maxInRow+2, 350*time.Millisecond)
		check("a disk that was that slow for some operations", 300*time.Millisecond, 300*time.Millisecond)
		time.Sleep(longestCount * longestPeriod)
		do(stallSamples, 100*time.Millisecond)
		check("a disk whose every sync takes 100 ms", 405*time.Millisecond, 505*time.Millisecond)
		do(2*stallSamples, 400*time.Millisecond)
		check("400 ms, longer than the longest timeout", 1162*time.Millisecond, 1162*time.Millisecond)
	})
}
