package state

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"northstar/cluster"
)

func cursor(t testing.TB, s *State, prefix string, since uint64) *Cursor {
	t.Helper()
	c, err := s.Feed().Cursor(prefix, since)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// given lists changes as "revision:key", with a ! after a deleted key.
func given(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "%d:%s", c.Revision, c.Key)
		if c.Deleted {
			b.WriteByte('!')
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func wantNext(t testing.TB, c *Cursor, limit int, want string) {
	t.Helper()
	changes, err := c.Next(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	if got := given(changes); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// wantNothing checks without waiting that a cursor has no changes.
func wantNothing(t testing.TB, c *Cursor) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped")
	cancel(stop)
	if changes, err := c.Next(ctx, 10); !errors.Is(err, stop) {
		t.Fatalf("got %q, %v", given(changes), err)
	}
}

func TestFeedHistory(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, put("a/1", "x"), put("b/1", "y"), put("a/2", "z"), del("a/1"))
	c := cursor(t, s, "a/", 0)
	wantNext(t, c, 2, "1:a/1 3:a/2")
	wantNext(t, c, 2, "4:a/1!")
	wantNothing(t, c)
	wantNext(t, cursor(t, s, "", 2), 10, "3:a/2 4:a/1!")
	wantNext(t, cursor(t, s, "", 3), 0, "4:a/1!")
	wantNothing(t, cursor(t, s, "", 4))
	changes, err := cursor(t, s, "b", 0).Next(t.Context(), 1)
	item, _ := s.View().Get("b/1")
	want := []Change{{Key: "b/1", Value: []byte("y"), Revision: 2, Item: &item, Last: true}}
	if err != nil || !reflect.DeepEqual(changes, want) {
		t.Fatalf("got %+v, %v", changes, err)
	}
}

type nextResult struct {
	changes []Change
	err     error
}

// follow calls Next once in a new goroutine.
func follow(ctx context.Context, c *Cursor) <-chan nextResult {
	got := make(chan nextResult, 1)
	go func() {
		changes, err := c.Next(ctx, 100)
		got <- nextResult{changes, err}
	}()
	return got
}

func TestFeedWakesOnlyWhatMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		waiting := map[string]<-chan nextResult{}
		for _, prefix := range []string{"", "a", "a/b", "a/b/c", "b"} {
			waiting[prefix] = follow(ctx, cursor(t, s, prefix, 0))
		}
		second := follow(ctx, cursor(t, s, "a/b", 0)) // two of one prefix
		synctest.Wait()
		if n := s.Feed().waiting.Len(); n != 5 {
			t.Fatalf("%d groups wait", n)
		}
		watched, begun := s.Watched()
		if !watched || len(begun) != 1 {
			t.Errorf("watched: %v, and the channel has %d elements", watched, len(begun))
		}
		mustApply(t, s, put("x", ""), put("a/b", ""), put("a/z", ""))
		synctest.Wait()
		for prefix, want := range map[string]string{"": "1:x 2:a/b 3:a/z", "a": "2:a/b 3:a/z", "a/b": "2:a/b"} {
			select {
			case r := <-waiting[prefix]:
				if given(r.changes) != want || r.err != nil {
					t.Errorf("%q: got %q, %v", prefix, given(r.changes), r.err)
				}
			default:
				t.Errorf("%q was not woken", prefix)
			}
		}
		if r := <-second; given(r.changes) != "2:a/b" {
			t.Errorf("second: %+v", r)
		}
		if n := s.Feed().waiting.Len(); n != 2 {
			t.Errorf("%d groups wait on, want a/b/c and b", n)
		}
		cancel()
		for _, prefix := range []string{"a/b/c", "b"} {
			if r := <-waiting[prefix]; !errors.Is(r.err, context.Canceled) {
				t.Errorf("%q: %+v", prefix, r)
			}
		}
		if n := s.Feed().waiting.Len(); n != 0 {
			t.Errorf("%d groups were left behind", n)
		}
		if watched, _ := s.Watched(); watched {
			t.Error("nobody waits, and the state is watched")
		}
	})
}

// A cursor without matching changes waits through any number of other changes. It has missed nothing, so it gets no
// compaction error.
func TestFeedIdleCursorOutlivesHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{HistoryRevisions: 4})
		quiet := cursor(t, s, "quiet/", 0)
		stopped, cancel := context.WithCancel(t.Context())
		first := follow(stopped, quiet)
		synctest.Wait()
		for range 20 {
			mustApply(t, s, put("busy", ""))
		}
		cancel() // also after it was woken in between
		if r := <-first; !errors.Is(r.err, context.Canceled) {
			t.Fatalf("got %+v", r)
		}
		again := follow(t.Context(), quiet)
		synctest.Wait()
		for range 20 {
			mustApply(t, s, put("busy", ""))
		}
		mustApply(t, s, put("busy", ""), put("quiet/1", ""), put("quiet/2", ""))
		if r := <-again; given(r.changes) != "42:quiet/1 43:quiet/2" || r.err != nil {
			t.Fatalf("got %q, %v", given(r.changes), r.err)
		}
	})
}

func TestFeedCompacted(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 3})
	behind := cursor(t, s, "", 0)
	for range 5 {
		mustApply(t, s, put("a", ""))
	}
	if _, err := behind.Next(t.Context(), 1); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Feed().Cursor("", 1); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
		t.Fatalf("got %v", err)
	}
	if floor := s.View().history.floor; floor != 2 {
		t.Fatalf("floor %d", floor)
	}
	wantNext(t, cursor(t, s, "", 2), 10, "3:a 4:a 5:a")
}

func TestHistory_SmallerLimitApplies(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 100, HistoryBytes: 1000})
	for range 10 {
		mustApply(t, s, put("a", strings.Repeat("x", 300)))
	}
	if n := s.View().history.changes.len(); n != 4 { // 3 would be 900 bytes
		t.Errorf("%d changes of 300 bytes", n)
	}
	mustApply(t, s, put("a", strings.Repeat("x", 5000)))
	if n := s.View().history.changes.len(); n != 1 {
		t.Errorf("%d changes beside one of 5000 bytes", n)
	}
	for range 200 {
		mustApply(t, s, put("a", ""))
	}
	if h := s.View().history; h.changes.len() != 100 || h.bytes != 0 {
		t.Errorf("%d empty changes, %d bytes", h.changes.len(), h.bytes)
	}
}

// Dropped history is freed: no block keeps many large values alive.
func TestHistoryBlocksAreBounded(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryBytes: 4 << 20})
	for range 64 {
		mustApply(t, s, put("a", strings.Repeat("x", 300<<10)))
	}
	h := s.View().history.changes
	for i, b := range h.blocks {
		held := 0
		for _, c := range b.items {
			if c.item != nil {
				held += len(c.item.Value)
			}
		}
		if held > historyBlockBytes {
			t.Fatalf("block %d of %d holds %d bytes", i, len(h.blocks), held)
		}
	}
}

// A cursor waits for a revision that this node has not reached yet: the node that returned it was ahead.
func TestFeedFutureSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		got := follow(t.Context(), cursor(t, s, "", 3))
		for range 3 {
			synctest.Wait()
			mustApply(t, s, put("a", ""))
		}
		synctest.Wait()
		select {
		case r := <-got:
			t.Fatalf("got %q too early", given(r.changes))
		default:
		}
		mustApply(t, s, put("a", ""))
		if r := <-got; given(r.changes) != "4:a" {
			t.Fatalf("got %q", given(r.changes))
		}
	})
}

// When a lagging node installs a snapshot, its cursors continue if the history in the snapshot reaches back far
// enough.
func TestFeedAcrossSnapshotInstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead, behind := New(Options{HistoryRevisions: 4}), New(Options{HistoryRevisions: 4})
		for _, s := range []*State{ahead, behind} {
			mustApply(t, s, put("a", ""), put("b", ""))
		}
		for _, k := range []string{"a", "b", "c"} {
			mustApply(t, ahead, put(k, ""))
		}
		waiting := follow(t.Context(), cursor(t, behind, "", 2))
		onlyC := cursor(t, behind, "c", 1)
		wantNothing(t, onlyC)
		waitingC := follow(t.Context(), onlyC)
		reading := cursor(t, behind, "", 0)
		wantNext(t, reading, 1, "1:a")
		synctest.Wait()
		restore(t, behind, snapshotOf(t, ahead)) // history: 2 to 5
		if r := <-waiting; given(r.changes) != "3:a 4:b 5:c" || r.err != nil {
			t.Errorf("waiting: %q, %v", given(r.changes), r.err)
		}
		if r := <-waitingC; given(r.changes) != "5:c" || r.err != nil {
			t.Errorf("waiting for c: %q, %v", given(r.changes), r.err)
		}
		wantNext(t, reading, 9, "2:b 3:a 4:b 5:c")

		tooFar := follow(t.Context(), cursor(t, behind, "a", 5))
		synctest.Wait()
		for range 6 {
			mustApply(t, ahead, put("x", ""))
		}
		restore(t, behind, snapshotOf(t, ahead))
		if r := <-tooFar; !cluster.IsCode(r.err, cluster.CodeHistoryCompacted) {
			t.Errorf("got %+v", r)
		}
	})
}

// A cursor that has returned a part of a transaction continues behind that when its node installs a snapshot, in which
// changes have other positions.
func TestFeedAcrossSnapshotInstall_InsideARevision(t *testing.T) {
	t.Parallel()
	for _, before := range []int{0, 30} { // changes that only the lagging node still has
		ahead, behind := New(Options{HistoryRevisions: 10}), New(Options{HistoryRevisions: 100})
		whole := Txn{}
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			whole.Success = append(whole.Success, Op{Put: &TxnPut{Key: key}})
		}
		for _, s := range []*State{ahead, behind} {
			for range before {
				mustApply(t, s, put("x", ""))
			}
			mustApply(t, s, Command{Kind: KindTxn, Txn: &whole})
		}
		mustApply(t, ahead, put("f", ""))
		reading := cursor(t, behind, "", uint64(before))
		rev := before + 1
		wantNext(t, reading, 2, fmt.Sprintf("%d:a %[1]d:b", rev))
		restore(t, behind, snapshotOf(t, ahead))
		ended, end := context.WithCancel(t.Context())
		end() // it does not wait
		for _, want := range []string{fmt.Sprintf("%d:c %[1]d:d", rev), fmt.Sprintf("%d:e %d:f", rev, rev+1)} {
			if changes, err := reading.Next(ended, 2); given(changes) != want || err != nil {
				t.Errorf("got %q, %v, want %q", given(changes), err, want)
			}
		}
	}
}

// Readers in other goroutines get every change once and in order during Apply. None of them is left waiting.
func TestFeedConcurrent(t *testing.T) {
	t.Parallel()
	const total = 3000 // a multiple of 4: the last change under k1 is total-3
	s := New(Options{HistoryRevisions: 2 * total})
	last := map[string]uint64{"": total, "k": total, "k1": total - 3, "k2": total - 2}
	done := make(chan error, len(last))
	for prefix, end := range last {
		c := cursor(t, s, prefix, 0)
		go func() {
			for want := uint64(0); want < end; {
				changes, err := c.Next(t.Context(), 7)
				if err != nil {
					done <- err
					return
				}
				for _, ch := range changes {
					for want++; !strings.HasPrefix(fmt.Sprint("k", want%4), prefix); want++ {
					}
					if ch.Revision != want {
						done <- fmt.Errorf("prefix %q: got %d, want %d", prefix, ch.Revision, want)
						return
					}
				}
			}
			done <- nil
		}()
	}
	for rev := uint64(1); rev <= total; {
		var batch []Command
		for range 1 + rev%5 {
			batch = append(batch, put(fmt.Sprint("k", rev%4), ""))
			rev++
		}
		mustApply(t, s, batch...)
	}
	for range last {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkFeedIdleWatchers measures what 1,000 watchers without matching changes add to a batch of 64 puts.
func BenchmarkFeedIdleWatchers(b *testing.B) {
	for _, watchers := range []int{0, 1000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			s := filled(b, 10_000)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			for i := range watchers {
				c := cursor(b, s, fmt.Sprintf("other/%d/", i), s.View().Revision())
				go func() {
					_, _ = c.Next(ctx, 1)
					ended <- struct{}{}
				}()
			}
			batch := putBatch(64, 0, 10_000)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				s.Apply(uint64(i), 1, batch)
			}
			b.StopTimer()
			cancel()
			for range watchers {
				<-ended
			}
		})
	}
}
