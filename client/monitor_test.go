package client

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// health is a check whose result a test sets.
type health struct {
	err    atomic.Pointer[error]
	called atomic.Int64
}

func (h *health) set(err error) { h.err.Store(&err) }

func (h *health) check(context.Context) error {
	h.called.Add(1)
	if err := h.err.Load(); err != nil {
		return *err
	}
	return nil
}

var errSick = errors.New("the disk is gone")

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func monitor(t *testing.T, e Elector, cfg ElectorConfig) *MonitoredElector {
	t.Helper()
	cfg.Role = "r"
	m, err := NewElector(e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A holder whose check fails three times stops, releases the role, and campaigns again when the check passes.
func TestMonitoredElector_GivesUpAnUnhealthyHolder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		var h health
		var log syncBuffer
		m := monitor(t, candidate(t, c, 30*time.Second), ElectorConfig{
			Healthy: h.check, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tenures := make(chan *Leadership, 10)
		var runs sync.WaitGroup
		runs.Go(func() {
			_ = RunAsLeader(ctx, m, 0, func(ctx context.Context, l *Leadership) error {
				tenures <- l
				<-ctx.Done()
				time.Sleep(100 * time.Millisecond) // its work stops
				if f.holder("r") == "" {
					t.Error("the role was released while the work went on")
				}
				return ctx.Err()
			})
		})
		first := <-tenures
		time.Sleep(12 * time.Second)
		h.set(errSick)
		time.Sleep(DefaultCheckInterval * 2)
		h.set(nil) // two failures are not three
		time.Sleep(DefaultCheckInterval)
		h.set(errSick)
		time.Sleep(time.Second)
		if err := first.Cause(); err != nil {
			t.Fatalf("ended after two failures in a row: %v", err)
		}
		before := time.Now()
		<-first.Done()
		if err := first.Cause(); !errors.Is(err, ErrUnhealthy) || !errors.Is(err, errSick) ||
			!errors.Is(err, ErrNotLeader) || time.Since(before) > 3*DefaultCheckInterval {
			t.Errorf("after %v: %v", time.Since(before), err)
		}
		time.Sleep(time.Second)
		if f.holder("r") != "" || f.sessionCount() != 0 {
			t.Error("the role is not released")
		}
		time.Sleep(time.Minute)
		if len(tenures) != 0 {
			t.Fatal("elected while the check fails")
		}
		h.set(nil)
		second := <-tenures
		if second.Token <= first.Token {
			t.Errorf("token %d after %d", second.Token, first.Token)
		}
		s := m.Stats()
		if !s.Leading || s.Token != second.Token || s.Elections != 2 || s.Losses[LossUnhealthy] != 1 ||
			s.CheckFailures < 5 || s.CheckError != nil {
			t.Errorf("%+v", s)
		}
		cancel()
		runs.Wait()
		synctest.Wait()
		if s := m.Stats(); s.Leading || s.Token != 0 || s.Losses[LossResigned] != 1 {
			t.Errorf("%+v", s)
		}
		for _, want := range []string{
			"elected for the role", "the health check failed", "lost the role", "passes again", "released the role",
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is not in the log:\n%s", want, log.String())
			}
		}
	}, "n1")
}

// A holder that hangs, and so does not react to the end of its tenure, keeps the role until the lease would have
// ended, and no longer.
func TestMonitoredElector_ReleasesTheRoleOfAHolderThatHangs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		hung := make(chan struct{})
		defer close(hung)
		m := monitor(t, candidate(t, c, 30*time.Second), ElectorConfig{
			Healthy: func(context.Context) error { <-hung; return nil }, CheckFailures: 2,
		})
		l, err := m.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		if !errors.Is(l.Cause(), ErrUnhealthy) || !errors.Is(l.Cause(), errCheckTimeout) {
			t.Error(l.Cause())
		}
		if f.holder("r") == "" {
			t.Error("the role is free while its holder may still act")
		}
		time.Sleep(30 * time.Second)
		if f.holder("r") != "" {
			t.Error("the role of a hung holder is not released")
		}
		if m.Stats().Checks != 2 {
			t.Errorf("%+v", m.Stats())
		}
	}, "n1")
}

func TestMonitoredElector_ReturnsALiveTenure(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		m := monitor(t, candidate(t, c, 3*time.Second), ElectorConfig{})
		first, err := m.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		second, err := m.Campaign(t.Context())
		s := m.Stats()
		if err != nil || second != first || s.Elections != 1 || s.Campaigns != 2 || s.Tenure < 500*time.Millisecond ||
			s.RenewalAge < 0 || s.RenewalAge > time.Second+100*time.Millisecond {
			t.Errorf("%+v, %v", s, err)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

func TestElectorConfig_Checks(t *testing.T) {
	t.Parallel()
	for _, cfg := range []ElectorConfig{
		{},
		{Role: "r", CheckInterval: -1},
		{Role: "r", CheckTimeout: -1},
		{Role: "r", CheckFailures: -1},
	} {
		if _, err := NewElector(nil, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// An ineligible candidate is not elected, leaves the queue, and takes part again.
func TestCandidate_Eligible(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		var eligible health
		eligible.set(errSick)
		k, err := c.NewCandidate(CandidateConfig{
			Role: "r", Eligible: eligible.check, Session: SessionConfig{TTL: 3 * time.Second, Clock: newClock().now},
		})
		if err != nil {
			t.Fatal(err)
		}
		limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := k.Campaign(limit); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errSick) ||
			f.sessionCount() != 0 {
			t.Errorf("%v, %d sessions", err, f.sessionCount())
		}
		other := candidate(t, c, 3*time.Second)
		held, err := other.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		eligible.set(nil)
		elected := make(chan *Leadership, 1)
		go func() {
			l, err := k.Campaign(t.Context())
			if err != nil {
				t.Error(err)
			}
			elected <- l
		}()
		time.Sleep(time.Second)
		if f.sessionCount() != 2 {
			t.Errorf("%d sessions: the candidate does not wait in the queue", f.sessionCount())
		}
		eligible.set(errSick)
		time.Sleep(2 * time.Second)
		if f.sessionCount() != 1 {
			t.Errorf("%d sessions: an ineligible candidate waits", f.sessionCount())
		}
		if err := held.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if f.holder("r") != "" || len(elected) != 0 {
			t.Error("an ineligible candidate is elected")
		}
		eligible.set(nil)
		l := <-elected
		eligible.set(errSick) // a holder keeps its role
		limit, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if again, err := k.Campaign(limit); err != nil || again.Token != l.Token {
			t.Errorf("%+v, %v", again, err)
		}
	}, "n1")
}

// A candidate that campaigns while it holds the role loses it in an outage. It is asked then, and does not queue.
func TestCandidate_EligibleAfterHolding(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var cutOff atomic.Bool
		f.reject = func(r *http.Request) error {
			if cutOff.Load() && r.UserAgent() == "holder" {
				return fail(cluster.CodeNoLeader)
			}
			return nil
		}
		c, err := New(Config{Endpoints: []string{"n1:1"}, Dial: fc.net.dial, UserAgent: "holder"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var eligible health
		k, err := c.NewCandidate(CandidateConfig{
			Role: "r", Eligible: eligible.check, Session: SessionConfig{TTL: 3 * time.Second, Clock: newClock().now},
		})
		if err != nil {
			t.Fatal(err)
		}
		held, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cutOff.Store(true)
		time.Sleep(2 * time.Second) // too little of the lease is left to return the tenure
		eligible.set(errSick)
		if held.Cause() != nil {
			t.Fatal(held.Cause())
		}
		again := make(chan *Leadership, 1)
		go func() {
			l, err := k.Campaign(t.Context())
			if err != nil {
				t.Error(err)
			}
			again <- l
		}()
		elected, done := fc.next(t)
		<-elected
		cutOff.Store(false)
		time.Sleep(10 * time.Second)
		if f.sessionCount() != 1 {
			t.Errorf("%d sessions: an ineligible candidate waits", f.sessionCount())
		}
		done()
		time.Sleep(DefaultSessionTTL)
		if f.holder("r") != "" || len(again) != 0 {
			t.Error("an ineligible candidate is elected")
		}
		eligible.set(nil)
		if l := <-again; l == nil || l.Token <= held.Token {
			t.Errorf("%+v after token %d", l, held.Token)
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

func (f *fakeRoles) holder(role string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holders[role].SessionID
}

func (f *fakeRoles) sessionCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions)
}
