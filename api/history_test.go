package api

import (
	"net/http/httptest"
	"testing"
	"time"

	"northstar/api/openapi"
	"northstar/api/token"
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
		{
			"an outage begins",
			reading{revision: 150, election: election(2, 40*time.Millisecond), silent: time.Second},
			nil, 0, 1000, 0,
		},
		{"it ends", reading{revision: 150, leader: "n1", election: election(3, 3*time.Second)}, nil, 0, 2000, 0},
		{"another begins", reading{revision: 150, election: election(3, 0), silent: 2 * time.Second}, nil, 0, 2000, 0},
		{"it goes on", reading{revision: 150, election: election(3, 0), silent: 7 * time.Second}, nil, 0, 5000, 0},
		{"it ends late", reading{revision: 150, leader: "n1", election: election(4, 8*time.Second)}, nil, 0, 1000, 0},
		{"a later one", reading{revision: 150, leader: "n1", election: election(5, time.Second)}, nil, 0, 1000, 0},
		{"a third begins", reading{revision: 150, election: election(5, 0), silent: time.Second}, nil, 0, 1000, 0},
		{"its record is to come", reading{revision: 150, leader: "n1", term: 6, election: election(5, 0)}, nil, 0, 0, 0},
		{"and comes", reading{revision: 150, leader: "n1", term: 6, election: election(6, 3*time.Second)}, nil, 0, 2000, 0},
		{"a cut begins", reading{revision: 150, term: 6, election: election(6, 0), silent: time.Second}, nil, 0, 1000, 0},
		{"the leader was there", reading{revision: 150, leader: "n1", term: 6, election: election(6, 0)}, nil, 0, 0, 0},
		{"it fails", reading{revision: 150, leader: "n2", term: 7, election: election(7, time.Second)}, nil, 0, 1000, 0},
		{"no leader since the start", reading{revision: 150, election: election(7, 0), silent: -1}, nil, 0, 5000, 0},
		{"a recovery", reading{revision: 150 + 1<<40, leader: "n3", election: election(8, time.Hour)}, nil, 0, 5000, 0},
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
	if got := h.after(at(80)); len(got) != 2 || !got[0].At.Equal(at(85)) {
		t.Errorf("after 80 s: %+v", got)
	}
}

// TestHistory_Writes: writes of both protocols count, and nothing that waits for a role or renews a session.
func TestHistory_Writes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		request := func(method, path string) func() { return func() { n.do(method, path, "{}") } }
		call := func(kind openapi.ResponseKind, write, native bool) func() {
			return func() {
				r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/x", nil)
				r.RemoteAddr = loopback
				call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "x", Role: token.Client, Kind: kind, Write: write})
				if err != nil {
					t.Fatal(err)
				}
				call.native = native
				call.Leave(nil)
			}
		}
		for name, c := range map[string]struct {
			do   func()
			want bool
		}{
			"PUT":             {request("PUT", "/v1/kv/a"), true},
			"GET":             {request("GET", "/v1/kv/a"), false},
			"campaign":        {request("POST", "/v1/roles/r/campaign"), false},
			"renewal":         {request("POST", "/v1/sessions/s/renew"), false},
			"no route":        {request("POST", "/v1/nowhere"), false},
			"put of etcd":     {call(openapi.Unary, true, false), true},
			"range of etcd":   {call(openapi.Unary, false, false), false},
			"lock of etcd":    {call(openapi.LongPoll, true, false), false},
			"lease keepalive": {call(openapi.Stream, true, false), false},
			"proclaim":        {call(openapi.Unary, true, true), false}, // its request to this API counts
		} {
			c.do()
			if got := n.history.writes.takeP99() > 0; got != c.want {
				t.Errorf("%s: counted %v, want %v", name, got, c.want)
			}
		}
	})
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
