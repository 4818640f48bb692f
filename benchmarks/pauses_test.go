package main

import (
	"context"
	"testing"
	"time"
)

// A pause in which a soak run ends counts until its deadline, or until it is broken off.
func TestSoakEnd(t *testing.T) {
	t.Parallel()
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	for name, tt := range map[string]struct{ acked, ended, want int }{
		"at the deadline": {acked: 2, ended: 61, want: 58},
		"broken off":      {acked: 2, ended: 40, want: 38},
		"a longer before": {acked: 50, ended: 61, want: 50},
	} {
		ctx, cancel := context.WithDeadline(t.Context(), at(60))
		s := &soakRun{began: began, lastAck: began}
		s.acked(at(tt.acked), at(tt.acked))
		s.end(ctx, at(tt.ended))
		if want := time.Duration(tt.want) * time.Second; s.longest != want {
			t.Errorf("%s: %v, want %v", name, s.longest, want)
		}
		cancel()
	}
}

// A pause after the gap counts until the end of the round.
func TestLongestAfter(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	w := &writer{acks: []time.Time{at(0), at(50), at(53), at(60), at(61)}}
	for _, tt := range []struct{ resumed, ended, want int }{
		{50, 62, 7}, {50, 90, 29}, {60, 60, 0}, {61, 65, 4}, {62, 90, 0}, {0, 62, 50},
	} {
		got := w.longestAfter(at(tt.resumed), at(tt.ended))
		if want := time.Duration(tt.want) * time.Millisecond; got != want {
			t.Errorf("resumed at %d, ended at %d ms: %v, want %v", tt.resumed, tt.ended, got, want)
		}
	}
}
