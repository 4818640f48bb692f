package storage

import (
	"context"
	"errors"
	"reflect"
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
			StallAfter: time.Second, OnFatal: func(error) {}, Logger: hclog.NewNullLogger(),
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
		w := newWatch()
		do := func(n int, d time.Duration) {
			for range n {
				id := w.begin(OpAppend, time.Now())
				time.Sleep(d)
				w.end(id, time.Now(), true)
			}
		}
		near := func(want time.Duration) {
			t.Helper()
			if got, _ := w.p99(time.Now()); got < want || float64(got) > 1.11*float64(want) {
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
		if got, n := w.p99(time.Now()); got < 90*time.Second || n != 1 {
			t.Error("a very long operation does not show")
		}
		id := w.begin(OpRead, time.Now())
		w.end(id, time.Now(), false)
	})
}
