package main

import (
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	for d := time.Duration(8); d < time.Hour; d += d/7 + 1 {
		if b := bucketOf(d); top(b) <= d || top(b) > d+d/4+1 {
			t.Fatalf("%v is in bucket %d, which ends at %v", d, b, top(b))
		}
	}
	var l latencies
	for i := 1; i <= 1000; i++ {
		l.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500, 0.99: 990, 1: 1000} {
		want *= time.Millisecond
		if got := l.quantile(q); got < want || got > want+want/8 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if l.count() != 1000 {
		t.Errorf("count %d", l.count())
	}
}

func TestRecent(t *testing.T) {
	l := &delays{}
	now := time.Now()
	l.note(delay{now.Add(-3 * time.Second), time.Second})
	l.note(delay{now, 2 * time.Millisecond})
	if got := l.recent(time.Second); got != 2*time.Millisecond {
		t.Errorf("recent: %v", got)
	}
	if got := l.recent(time.Minute); got != time.Second {
		t.Errorf("recent in a minute: %v", got)
	}
}

func TestElectionsSince(t *testing.T) {
	all := elections{{Term: 9}, {Term: 7}, {Term: 3}}
	if got := all.since(3); len(got) != 2 || got[1].Term != 7 {
		t.Errorf("since 3: %+v", got)
	}
	if got := all.since(9); len(got) != 0 {
		t.Errorf("since 9: %+v", got)
	}
	if all.term() != 9 || elections(nil).term() != 0 {
		t.Error("term")
	}
}
