package consensus

import (
	"errors"
	"slices"
	"testing"
	"time"

	"northstar/cluster"
)

// A commit index is sent once to each subscriber, not to one that the next entries tell, and not before the last
// message has ended and a pause is over.
func TestSubscribersDue(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	s := newSubscribers()
	want := func(what string, now time.Time, commit uint64, wantWait time.Duration, want ...cluster.NodeID) {
		t.Helper()
		got, wait := s.due(now, commit)
		if slices.Sort(got); !slices.Equal(got, want) || wait != wantWait {
			t.Errorf("%s: %q and %v, want %q and %v", what, got, wait, want, wantWait)
		}
	}
	s.add("n2", at(time.Second))
	s.add("n3", at(time.Minute))
	want("the first", at(0), 10, 0, "n2", "n3")
	want("in progress", at(subscriberPause), 11, 0)
	s.sent("n2", nil)
	want("the same", at(subscriberPause), 10, 0)
	want("too soon", at(subscriberPause/2), 11, subscriberPause/2)
	want("the next", at(subscriberPause), 11, 0, "n2")
	s.sent("n2", nil)
	s.carry(12)
	want("carried by entries", at(2*subscriberPause), 12, 0)
	want("beyond the entries", at(2*subscriberPause), 13, 0, "n2")
	s.sent("n2", nil)
	s.sent("n3", errors.New("not reached"))
	want("not reached", at(3*subscriberPause), 14, 0, "n2")
	s.sent("n2", nil)
	want("the subscription has ended", at(time.Second), 15, 0)
	if len(s.nodes) != 0 {
		t.Errorf("%d subscribers are left", len(s.nodes))
	}
}
