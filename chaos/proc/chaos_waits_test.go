package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"testing"
	"time"
)

// waits records when threads of the nodes were runnable without a processor, as the kernel counts it. Other programs,
// and the nodes themselves, cause such waits. A machine may delay the nodes and not the test itself.
type waits struct {
	mu      sync.Mutex
	pids    map[string]int         // of the nodes, by ID
	threads map[string]threadTimes // as last read, by path
	sum     threadTimes
	kept    []waited // the newest, in order
}

// threadTimes is how long a thread has run, and has waited for a processor.
type threadTimes struct{ ran, waited time.Duration }

// waited is the total wait of all nodes at one time.
type waited struct {
	at  time.Time
	sum time.Duration
}

const (
	waitsLook = 50 * time.Millisecond
	waitsKept = 200_000
)

// follow sets the process of a node.
func (w *waits) follow(id string, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pids == nil {
		w.pids = map[string]int{}
	}
	w.pids[id] = pid
}

// watch reads the kernel's counters until ctx ends.
func (w *waits) watch(ctx context.Context) {
	for ; ctx.Err() == nil; pause(waitsLook) {
		w.mu.Lock()
		var pids []int
		for _, pid := range w.pids {
			pids = append(pids, pid)
		}
		w.mu.Unlock()
		read := map[string]threadTimes{}
		for _, pid := range pids {
			files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is valid
			for _, path := range files {
				line, _ := os.ReadFile(path) // the thread may have ended
				var ran, waited int64
				if n, _ := fmt.Sscan(string(line), &ran, &waited); n == 2 {
					read[path] = threadTimes{time.Duration(ran), time.Duration(waited)}
				}
			}
		}
		w.note(time.Now(), read)
	}
}

// note adds the run and wait times of the current threads since the previous call.
func (w *waits) note(now time.Time, read map[string]threadTimes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, t := range read {
		last := w.threads[path]
		w.sum.ran += max(0, t.ran-last.ran)
		w.sum.waited += max(0, t.waited-last.waited)
	}
	w.threads = read
	w.kept = append(w.kept[max(0, len(w.kept)+1-waitsKept):], waited{now, w.sum.waited})
}

// within returns for how long all nodes together waited in an interval, as far as it was sampled.
func (w *waits) within(from, to time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := sort.Search(len(w.kept), func(i int) bool { return w.kept[i].at.After(from) }) - 1
	last := sort.Search(len(w.kept), func(i int) bool { return !w.kept[i].at.Before(to) })
	if len(w.kept) == 0 {
		return 0
	}
	return w.kept[min(last, len(w.kept)-1)].sum - w.kept[max(0, first)].sum
}

func (w *waits) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("the nodes' threads ran for %v and waited %v for a processor", w.sum.ran.Round(time.Millisecond),
		w.sum.waited.Round(time.Millisecond))
}

func TestWaits(t *testing.T) {
	begin := time.Now()
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	const ms = time.Millisecond
	var w waits
	if got := w.within(begin, at(time.Second)); got != 0 {
		t.Errorf("nothing was read: %v", got)
	}
	for _, r := range []struct {
		at   time.Duration
		read map[string]threadTimes
	}{
		{0, map[string]threadTimes{"1": {ms, 2 * ms}}},
		{50 * ms, map[string]threadTimes{"1": {2 * ms, 4 * ms}, "2": {ms, 10 * ms}}},
		{100 * ms, map[string]threadTimes{"2": {2 * ms, 15 * ms}}},
		{150 * ms, map[string]threadTimes{"2": {3 * ms, 15 * ms}, "3": {0, 30 * ms}}},
	} {
		w.note(at(r.at), r.read)
	}
	for _, tt := range []struct{ from, to, want time.Duration }{
		{0, 50 * ms, 12 * ms},
		{60 * ms, 90 * ms, 5 * ms},
		{50 * ms, 200 * ms, 35 * ms},
		{-50 * ms, 10 * ms, 12 * ms},
		{200 * ms, 300 * ms, 0},
	} {
		if got := w.within(at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("%v to %v: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
	if want := (threadTimes{5 * ms, 49 * ms}); w.sum != want {
		t.Errorf("%v, want %v", w.sum, want)
	}
}
