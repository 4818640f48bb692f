package api

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

const (
	sampleInterval = 5 * time.Second
	maxSamples     = int(30 * time.Minute / sampleInterval)
)

// history holds the samples of the dashboard's graphs: of the last half hour, in memory. Its methods may be called by
// any goroutine.
type history struct {
	writes latencies

	mu      sync.Mutex
	samples []apiv1.DashboardSample // oldest first
	last    reading                 // of the newest sample
}

// reading is the state of a node that a sample is made from.
type reading struct {
	at       time.Time
	revision uint64
	election state.Election // the newest
	term     uint64
	leader   cluster.NodeID
	silent   time.Duration // since a leader was last heard, while there is none; < 0: never
	// counted is what the samples have of the time without a leader, until the record of the next election is known.
	counted  time.Duration
	fsyncP99 time.Duration
}

// observe counts the duration of a request if that was a client's write, and not a wait for a role.
func (h *history) observe(c *request, took time.Duration) {
	if c.write && c.route.Role == token.Client && c.route.Kind == openapi.Unary {
		h.writes.observe(took)
	}
}

// observeCall counts the duration of a call likewise, unless that made a request to this API, which counts.
func (h *history) observeCall(k *Call) {
	if !k.native {
		h.observe(k.c, time.Since(k.start))
	}
}

// run adds a sample at each interval.
func (h *history) run(ctx context.Context, reads Reads) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	h.last = newReading(reads, time.Now())
	for {
		select {
		case <-tick.C:
			h.add(newReading(reads, time.Now()))
		case <-ctx.Done():
			return
		}
	}
}

func newReading(reads Reads, now time.Time) reading {
	st, view := reads.Status(), reads.View()
	r := reading{
		at: now, revision: view.Revision(), term: st.Term, leader: st.LeaderID, silent: st.LeaderContactAge,
		fsyncP99: st.Disk.FsyncP99,
	}
	if all := view.Elections(); len(all) > 0 {
		r.election = all[len(all)-1]
	}
	return r
}

// add adds the sample of the interval since the previous reading.
func (h *history) add(r reading) {
	p99 := h.writes.takeP99()
	h.mu.Lock()
	defer h.mu.Unlock()
	gap := leaderless(h.last, r)
	if r.leader == "" || r.term > r.election.Term { // a leader is known before the record of its election
		r.counted = h.last.counted + gap // 0 before, if there was a leader
	}
	h.samples = append(h.samples, apiv1.DashboardSample{
		At: r.at.UTC(), ChangesPerS: changeRate(h.last, r), WriteP99MS: milliseconds(p99),
		LeaderlessMS: gap.Milliseconds(), DiskP99MS: milliseconds(r.fsyncP99),
	})
	if len(h.samples) > maxSamples {
		h.samples = append(h.samples[:0:0], h.samples[1:]...)
	}
	h.last = r
}

// after returns the samples after a time, oldest first.
func (h *history) after(t time.Time) []apiv1.DashboardSample {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := len(h.samples)
	for i > 0 && h.samples[i-1].At.After(t) {
		i--
	}
	return append([]apiv1.DashboardSample(nil), h.samples[i:]...)
}

// changeRate returns the revisions for each second between two readings. A recovery of the cluster skips revisions.
func changeRate(before, after reading) float64 {
	const skipped = 1 << 39
	took := after.at.Sub(before.at).Seconds()
	if after.revision < before.revision || after.revision-before.revision > skipped || took <= 0 {
		return 0
	}
	return math.Round(float64(after.revision-before.revision)/took*10) / 10
}

// leaderless returns how long the cluster had no leader between two readings. If there is none now, that is since the
// last one was heard. Otherwise it is what the record of a new election says, without what earlier samples have of it.
// Earlier elections of the same interval are left out.
func leaderless(before, after reading) time.Duration {
	interval := after.at.Sub(before.at)
	e := after.election
	switch {
	case after.leader == "" && (before.leader == "" || after.silent < 0):
		return interval
	case after.leader == "":
		return min(interval, after.silent)
	case e.Term == before.election.Term || e.LeaderlessAt == 0:
		return 0
	}
	return min(interval, max(0, time.Duration(e.LedAt-e.LeaderlessAt)-before.counted))
}

func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}

// latencies counts durations in buckets, each half as long again as the one before.
type latencies [32]atomic.Uint64

const (
	firstLatency  = 100 * time.Microsecond
	latencyGrowth = 1.5
)

func (l *latencies) observe(d time.Duration) {
	i := 0
	if d > firstLatency {
		i = int(math.Ceil(math.Log(float64(d)/float64(firstLatency)) / math.Log(latencyGrowth)))
	}
	l[min(i, len(l)-1)].Add(1)
}

// takeP99 returns the upper bound of the bucket with the 99th percentile, 0 without any duration, and resets the
// counts.
func (l *latencies) takeP99() time.Duration {
	var counts [len(l)]uint64
	total := uint64(0)
	for i := range l {
		counts[i] = l[i].Swap(0)
		total += counts[i]
	}
	if total == 0 {
		return 0
	}
	below := uint64(0)
	for i, n := range counts {
		if below += n; below*100 >= total*99 {
			return time.Duration(float64(firstLatency) * math.Pow(latencyGrowth, float64(i)))
		}
	}
	return 0
}
