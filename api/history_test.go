package api

import (
	"testing"
	"time"

	"northstar/state"
)

func TestHistory_Samples(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	election := func(term uint64, gap time.Duration) state.Election {
		led := start.Add(time.Hour)
		return state.Election{Term: term, LeaderlessAt: led.Add(-gap).UnixNano(), LedAt: led.UnixNano()}
	}
	h := &history{last: reading{at: start, revision: 100, leader: "n1", election: election(1, time.Second)}}
	for _, c := range []struct {
		name    string
		now     reading
		writes  []time.Duration
		changes float64
		gapMS   int64
		p99     float64
	}{
		{"an idle cluster", reading{revision: 100, leader: "n1", election: election(1, time.Second)}, nil, 0, 0, 0},
		{
			"writes",
			reading{revision: 150, leader: "n1", election: election(1, time.Second)},
			[]time.Duration{time.Microsecond, 140 * time.Microsecond},
			10, 0, 0.15,
		},
		{"a failover", reading{revision: 150, leader: "n2", election: election(2, 40*time.Millisecond)}, nil, 0, 40, 0},
		{"the same leader", reading{revision: 150, leader: "n2", election: election(2, 40*time.Millisecond)}, nil, 0, 0, 0},
		{"no leader", reading{revision: 150, election: election(2, 40*time.Millisecond)}, nil, 0, 5000, 0},
		{"a recovery", reading{revision: 150 + 1<<40, leader: "n3", election: election(3, time.Hour)}, nil, 0, 5000, 0},
	} {
		for _, w := range c.writes {
			h.writes.observe(w)
		}
		c.now.at = h.last.at.Add(sampleInterval)
		h.add(c.now)
		got := h.samples[len(h.samples)-1]
		if got.ChangesPerS != c.changes || got.LeaderlessMS != c.gapMS || got.WriteP99MS != c.p99 {
			t.Errorf("%s: %+v, want %v changes, %v ms, p99 %v ms", c.name, got, c.changes, c.gapMS, c.p99)
		}
	}
	if got := h.after(at(20)); len(got) != 2 || !got[0].At.Equal(at(25)) {
		t.Errorf("after 20 s: %+v", got)
	}
}

// TestHistory_IsBounded: an open-ended run keeps half an hour.
func TestHistory_IsBounded(t *testing.T) {
	t.Parallel()
	var h history
	start := time.Now()
	for i := range 3 * maxSamples {
		h.add(reading{at: start.Add(time.Duration(i) * sampleInterval), leader: "n1"})
	}
	if got := h.after(time.Time{}); len(got) != maxSamples {
		t.Errorf("%d samples, want %d", len(got), maxSamples)
	}
}

func TestLatencies_Extremes(t *testing.T) {
	t.Parallel()
	var l latencies
	if got := l.takeP99(); got != 0 {
		t.Errorf("without a duration: %v", got)
	}
	l.observe(time.Hour)
	if got := l.takeP99(); got < 20*time.Second || got > time.Minute {
		t.Errorf("an hour: %v", got)
	}
	for range 198 {
		l.observe(time.Millisecond)
	}
	l.observe(time.Minute)
	l.observe(time.Minute)
	if got := l.takeP99(); got < time.Millisecond || got > 1500*time.Microsecond {
		t.Errorf("1 of 100 is slow: %v", got)
	}
}
