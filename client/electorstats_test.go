package client

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"
)

// While the gate is shut because the connection of the session has broken, the statistics do not say that it leads. The
// tenure goes on.
func TestMonitoredElector_StatsWithoutProof(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 30*time.Second)
		m := monitor(t, k, ElectorConfig{})
		if s := m.Stats(); s.Leading || s.Token != 0 {
			t.Errorf("before the first election: %+v", s)
		}
		l, err := m.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var g Gate
		g.Bind(l)
		k.Session().deadline.doubt(new(atomic.Bool))
		if s := m.Stats(); !errors.Is(g.Require(), ErrUnproven) || s.Leading || s.Token != l.Token {
			t.Errorf("the gate: %v; %+v", g.Require(), s)
		}
		k.Session().deadline.prove()
		if s := m.Stats(); g.Require() != nil || !s.Leading || s.Token != l.Token {
			t.Errorf("the gate: %v; %+v", g.Require(), s)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

// A lock without tokens has elections, too: no two of its tenures are the same.
func TestMonitoredElector_ElectionsWithoutTokens(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, _ *fakeCluster) {
		m := monitor(t, lockElector{}, ElectorConfig{})
		for n := range uint64(3) {
			l, err := m.Campaign(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s := m.Stats(); s.Elections != n+1 || s.Tenure > time.Second {
				t.Errorf("%+v", s)
			}
			time.Sleep(time.Minute)
			if err := l.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

// A role that was kept although the lease lapsed was won once. The time since the election goes on.
func TestMonitoredElector_CountsElections(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		clk := newClock()
		k, err := c.NewCandidate(CandidateConfig{
			Role: "r", Session: SessionConfig{TTL: 10 * time.Second, Clock: clk.now},
		})
		if err != nil {
			t.Fatal(err)
		}
		m := monitor(t, k, ElectorConfig{})
		first, err := m.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		clk.jump(10 * time.Second)
		second, err := m.Campaign(t.Context())
		if err != nil || second.Token != first.Token || !errors.Is(first.Cause(), ErrLeaseLapsed) {
			t.Fatalf("%+v, %v; the first tenure: %v", second, err, first.Cause())
		}
		if s := m.Stats(); s.Elections != 1 || s.Tenure < time.Minute {
			t.Errorf("%+v", s)
		}
		if err := second.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := m.Stats(); s.Elections != 2 || s.Tenure > time.Second || s.Losses[LossLapsed] != 1 {
			t.Errorf("%+v", s)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

// lockElector wins each campaign immediately, with a tenure without a token.
type lockElector struct{}

func (lockElector) Campaign(context.Context) (*Leadership, error) {
	d := NewDeadline(nil)
	d.Extend(d.Now(), time.Hour)
	return d.Begin(Holder{Role: "r", AcquiredAt: time.Now()}, func(context.Context) error {
		d.End(ErrResigned)
		return nil
	})
}

func (lockElector) Observe(context.Context) iter.Seq2[Holder, error] { return nil }

func (lockElector) Close(context.Context) error { return nil }
