package proc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// stalls records when this machine suspended the tests, as far as that is visible from inside. Such a stall suspends
// the nodes too, and a leader may lose leadership by it.
type stalls struct {
	mu    sync.Mutex
	count int
	sum   time.Duration
	last  time.Time // end of the newest
	kept  []stall   // the newest
}

type stall struct{ from, to time.Time }

const (
	stallLook  = 10 * time.Millisecond
	stallLeast = 100 * time.Millisecond // a follower waits for its leader only a little longer than that
	stallsKept = 10000
)

// watch records stalls until ctx ends.
func (s *stalls) watch(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		pause(stallLook)
		s.note(began, time.Now())
	}
}

func (s *stalls) note(began, now time.Time) {
	late := now.Sub(began) - stallLook
	if late < stallLeast {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.sum += late
	s.last = now
	s.kept = append(s.kept[max(0, len(s.kept)+1-stallsKept):], stall{now.Add(-late), now})
}

// within returns for how long the machine was stalled in an interval.
func (s *stalls) within(from, to time.Time) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		begin, end := k.from, k.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(begin))
	}
	return sum
}

// deadline returns the deadline of an operation that may take the given time. The time counts from begin or from the
// last stall; the total is at most four times as long.
func (s *stalls) deadline(begin time.Time, within time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, most := begin.Add(within), begin.Add(4*within)
	if late := s.last.Add(within); late.After(until) {
		until = late
	}
	if until.After(most) {
		return most
	}
	return until
}

func (s *stalls) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("this machine stood still %d times so far, for %v in all", s.count,
		s.sum.Round(time.Millisecond))
}

func TestHostStallExtendsDeadline(t *testing.T) {
	const within = 20 * time.Second
	begin := time.Now()
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	for _, tt := range []struct {
		from, to time.Duration // between two samples
		want     time.Duration
	}{
		{-30 * time.Second, -29 * time.Second, within},
		{5 * time.Second, 5*time.Second + stallLook + stallLeast/2, within},
		{5 * time.Second, 6 * time.Second, 6*time.Second + within},
		{70 * time.Second, 79 * time.Second, 4 * within},
	} {
		var s stalls
		s.note(at(tt.from), at(tt.to))
		if got := s.deadline(begin, within).Sub(begin); got != tt.want {
			t.Errorf("%v to %v: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}

func TestStallsWithin(t *testing.T) {
	begin := time.Now()
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	var s stalls
	for i := range stallsKept + 1 { // the first one is dropped
		s.note(at(time.Duration(i)*time.Second-stallLook), at(time.Duration(i)*time.Second+500*time.Millisecond))
	}
	for _, tt := range []struct{ from, to, want time.Duration }{
		{0, 900 * time.Millisecond, 0},
		{1200 * time.Millisecond, 2300 * time.Millisecond, 600 * time.Millisecond},
		{3600 * time.Millisecond, 3900 * time.Millisecond, 0},
	} {
		if got := s.within(at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("%v to %v: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}
