package proc

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// writers writes growing numbers, each goroutine to a key of its own, and stores what was acknowledged.
type writers struct {
	cluster *Cluster
	keys    int

	mu       sync.Mutex
	acked    []uint64 // by key: the highest number acknowledged
	tried    []uint64 // by key: the highest number sent
	revision uint64   // highest acknowledged
	total    int
	broken   error // a violated guarantee
}

func newWriters(c *Cluster, keys int) *writers {
	return &writers{cluster: c, keys: keys, acked: make([]uint64, keys), tried: make([]uint64, keys)}
}

// meanwhile writes until stop is called, or the test ends; stop waits for that.
func (w *writers) meanwhile(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { w.run(ctx) })
	stop = func() { cancel(); writing.Wait() }
	t.Cleanup(stop)
	return stop
}

// run writes until ctx ends. A write without a response may or may not have happened; the next write of that key uses a
// higher number in either case.
func (w *writers) run(ctx context.Context) {
	var wg sync.WaitGroup
	for k := range w.keys {
		wg.Go(func() {
			for turn := k; ctx.Err() == nil; turn++ {
				node := w.cluster.Nodes[turn%len(w.cluster.Nodes)]
				n := w.next(k)
				before := w.highest()
				try, cancel := context.WithTimeout(ctx, 2*time.Second)
				a, err := put(try, node, fmt.Sprintf("w%d", k), fmt.Sprint(n))
				cancel()
				switch {
				case err == nil && a.Status == http.StatusOK:
					w.ack(k, n, a.Revision, before)
				case err != nil && ctx.Err() == nil:
					pause(2 * time.Millisecond) // the node is down: do not spin
				}
			}
		})
	}
	wg.Wait()
}

func (w *writers) next(k int) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried[k]++
	return w.tried[k]
}

func (w *writers) highest() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revision
}

func (w *writers) ack(k int, n, revision, before uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision <= before && w.broken == nil {
		w.broken = fmt.Errorf("write %d of w%d got revision %d, though %d was acknowledged before it began", n, k,
			revision, before)
	}
	w.acked[k] = max(w.acked[k], n)
	w.revision = max(w.revision, revision)
	w.total++
}

// check reads every key and fails if an acknowledged write is missing.
func (w *writers) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		t.Fatal(w.broken)
	}
	for k, want := range w.acked {
		if want == 0 {
			continue
		}
		a := mustGet(t, w.cluster, fmt.Sprintf("w%d", k))
		var got uint64
		if a.Status == http.StatusOK {
			if _, err := fmt.Sscan(string(a.Body), &got); err != nil {
				t.Fatalf("w%d holds %q", k, a.Body)
			}
		}
		if got < want || got > w.tried[k] {
			t.Fatalf("w%d: acknowledged %d, sent up to %d, read %d (status %d)", k, want, w.tried[k], got, a.Status)
		}
		// A value that was read must stay, even if the response to its write was lost.
		w.acked[k] = got
		if a.Revision > w.revision {
			w.revision = a.Revision
		}
	}
}
