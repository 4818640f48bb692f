package raftnode

import (
	"math"
	"testing"
)

func TestLogSize(t *testing.T) {
	t.Parallel()
	var s logSize
	if n := s.since(0); n != 0 {
		t.Errorf("an empty log has %d bytes", n)
	}
	const entry = sizeMarkBytes / 4
	for i := uint64(1); i <= 400; i++ {
		s.add(i, entry)
	}
	near := func(got, want uint64) bool { return got <= want+sizeMarkBytes && want <= got+sizeMarkBytes }
	for after, want := range map[uint64]uint64{0: 400, 100: 300, 399: 1, 400: 0, 500: 0} {
		if got := s.since(after); !near(got, want*entry) {
			t.Errorf("%d bytes after entry %d, want %d", got, after, want*entry)
		}
	}
	if got := s.trailing(400 * entry); got != math.MaxUint64 {
		t.Errorf("%d entries fit, want all", got)
	}
	if got := s.trailing(250 * entry); got > 250 || got < 246 {
		t.Errorf("%d entries fit, want 250", got)
	}
	if got := s.since(100); got < 250*entry {
		t.Errorf("%d bytes after an entry that is forgotten, want more than were asked for", got)
	}
	if got := s.trailing(0); got != 0 {
		t.Errorf("%d entries have no bytes", got)
	}
	s.reset(1000)
	if n := s.since(1000); n != 0 || s.trailing(0) != math.MaxUint64 {
		t.Errorf("%d bytes after a restored snapshot", n)
	}
	s.add(1001, 10)
	if n := s.since(1000); n != 10 {
		t.Errorf("%d bytes after an entry of 10", n)
	}
}

func TestTrailingLogs(t *testing.T) {
	t.Parallel()
	var s logSize
	for i := uint64(1); i <= 1000; i++ {
		s.add(i, sizeMarkBytes)
	}
	for _, tc := range []struct{ configured, entries, want uint64 }{
		{10000, 300, 300}, {200, 300, 200}, {10000, 1, minTrailingBySize}, {10000, 2000, 10000},
	} {
		if got := s.trailingLogs(tc.configured, tc.entries*sizeMarkBytes); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}
