package client

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"
)

// waitingElector is elected after a wait, each time under the same lease.
type waitingElector struct {
	deadline *Deadline
	wait     time.Duration
	token    uint64
}

func (w *waitingElector) Campaign(context.Context) (*Leadership, error) {
	time.Sleep(w.wait)
	w.token++
	return w.deadline.Begin(Holder{Role: "r", Token: w.token}, nil)
}

func (w *waitingElector) Observe(context.Context) iter.Seq2[Holder, error] { return nil }

func (w *waitingElector) Close(context.Context) error {
	w.deadline.End(ErrResigned)
	return nil
}

// Renewals count while the role is held, and not between two tenures of one session.
func TestMonitoredElector_Durations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := NewDeadline(newClock().now)
		renew := func(took time.Duration) {
			sent := d.Now()
			time.Sleep(took)
			d.Extend(sent, time.Minute)
			synctest.Wait()
		}
		renew(0)
		m := monitor(t, &waitingElector{deadline: d, wait: 3 * time.Second}, ElectorConfig{})
		lead := func() *Leadership {
			l, err := m.Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return l
		}
		first := lead()
		renew(20 * time.Millisecond)
		first.End(ErrRoleLost)
		synctest.Wait()
		renew(time.Second) // without the role
		second := lead()
		renew(2 * time.Second)

		s := m.Stats()
		if s.CampaignTimes.Count != 2 || s.CampaignTimes.Sum != 6*time.Second {
			t.Errorf("campaigns: %+v", s.CampaignTimes)
		}
		if got := s.RenewalTimes; got.Count != 2 || got.Sum != 2020*time.Millisecond {
			t.Errorf("renewals: %+v", got)
		}
		if again := m.Stats().RenewalTimes; again != s.RenewalTimes {
			t.Errorf("counted twice: %+v", again)
		}
		for bound, want := range map[float64]uint64{0.01: 0, 0.025: 1, 1: 1, 2.5: 2, 60: 2} {
			if got := s.RenewalTimes.Buckets()[bound]; got != want {
				t.Errorf("at most %v s: %d, want %d", bound, got, want)
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-second.Done()
	})
}
