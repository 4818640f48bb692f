package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"
)

// ElectorConfig configures a MonitoredElector. Only Role is required.
type ElectorConfig struct {
	Role string // as logs and metrics name it
	// Healthy returns nil while this process can do the work of the role. It is called while this process holds the
	// role. After CheckFailures errors in a row the tenure ends, and the role is released as soon as its work has
	// stopped: when Campaign is called, or the lease would have ended. That Campaign continues when Healthy returns
	// nil. A call that does not return within CheckTimeout counts as an error. Nil: no check.
	Healthy       func(ctx context.Context) error
	CheckInterval time.Duration // 0: DefaultCheckInterval
	CheckTimeout  time.Duration // 0: DefaultCheckTimeout
	CheckFailures int           // 0: DefaultCheckFailures
	// Logger receives elections, ends of tenures and failed checks. Nil: nothing is logged.
	Logger *slog.Logger
}

func (c ElectorConfig) check() (ElectorConfig, error) {
	c.CheckInterval = cmp.Or(c.CheckInterval, DefaultCheckInterval)
	c.CheckTimeout = cmp.Or(c.CheckTimeout, DefaultCheckTimeout)
	c.CheckFailures = cmp.Or(c.CheckFailures, DefaultCheckFailures)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if c.Role == "" {
		errs = append(errs, errors.New("role: empty"))
	}
	if c.CheckInterval < 0 || c.CheckTimeout < 0 || c.CheckFailures < 0 {
		errs = append(errs, errors.New("check interval, timeout and failures: must not be negative"))
	}
	return c, errors.Join(errs...)
}

// MonitoredElector adds a health check, logs and statistics to another Elector. Package rolemetrics makes Prometheus
// metrics of the statistics.
type MonitoredElector struct {
	elector Elector
	cfg     ElectorConfig
	check   *healthCheck // nil: none

	campaigning chan struct{}   // capacity 1: held during Campaign
	closed      context.Context // ended by Close
	close       context.CancelFunc

	mu        sync.Mutex
	stats     ElectorStats
	current   *Leadership // the latest tenure; nil: none yet
	electedAt time.Time
	renewed   *Deadline         // whose renewals count; nil: no tenure, or one whose loss is recorded
	renewals  DurationHistogram // of renewed, that are counted already
	watched   chan struct{}     // closed when the latest tenure is no longer watched; nil: none yet
	unhealthy *unhealthyTenure  // nil: the latest tenure did not end by the check
}

var _ Elector = (*MonitoredElector)(nil)

// unhealthyTenure is a tenure that the check has ended. Its role is still held.
type unhealthyTenure struct {
	stop     sync.Once
	stopped  chan struct{} // closed when its work has stopped
	released chan struct{} // closed when the role was released, as far as that is possible
}

func (u *unhealthyTenure) markStopped() { u.stop.Do(func() { close(u.stopped) }) }

// NewElector returns e with what the configuration adds. Use only the result to campaign.
func NewElector(e Elector, cfg ElectorConfig) (*MonitoredElector, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("elector configuration: %w", err)
	}
	m := &MonitoredElector{elector: e, cfg: cfg, campaigning: make(chan struct{}, 1)}
	m.closed, m.close = context.WithCancel(context.Background())
	m.stats.Role = cfg.Role
	m.stats.Losses = map[LossCause]uint64{}
	if cfg.Healthy != nil {
		m.check = &healthCheck{healthy: cfg.Healthy, timeout: cfg.CheckTimeout}
	}
	return m, nil
}

// Campaign implements Elector. After a tenure that the health check has ended, it first releases the role and waits
// until the check passes.
func (m *MonitoredElector) Campaign(ctx context.Context) (*Leadership, error) {
	select {
	case m.campaigning <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("campaign for role %s: %w", m.cfg.Role, context.Cause(ctx))
	}
	defer func() { <-m.campaigning }()
	return UntilClosed(ctx, m.closed, m.campaign)
}

func (m *MonitoredElector) campaign(ctx context.Context) (*Leadership, error) {
	for {
		if err := m.waitHealthy(ctx); err != nil {
			return nil, fmt.Errorf("campaign for role %s: %w: %w", m.cfg.Role, ErrUnhealthy, err)
		}
		m.mu.Lock()
		m.stats.Campaigns++
		m.mu.Unlock()
		start := time.Now()
		l, err := m.elector.Campaign(ctx)
		if err != nil {
			return nil, err
		}
		if l := m.begin(l, time.Since(start)); l != nil {
			return l, nil
		}
	}
}

// Observe implements Elector.
func (m *MonitoredElector) Observe(ctx context.Context) iter.Seq2[Holder, error] {
	return m.elector.Observe(ctx)
}

// Close implements Elector.
func (m *MonitoredElector) Close(ctx context.Context) error {
	m.close()
	m.mu.Lock()
	u := m.unhealthy
	m.mu.Unlock()
	if u != nil {
		u.markStopped()
	}
	return m.elector.Close(ctx)
}

// begin starts to watch a new tenure, whose campaign took so long. A tenure that is already watched is returned as it
// is; nil: the health check has ended it meanwhile.
func (m *MonitoredElector) begin(l *Leadership, campaign time.Duration) *Leadership {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unhealthy != nil {
		return nil
	}
	if m.current != nil && m.current.Token == l.Token && m.current.Cause() == nil {
		return m.current
	}
	previous, watched := m.watched, make(chan struct{})
	m.countRenewals()
	// A tenure with the same token was kept although its lease lapsed. Those of a lock have none.
	if m.current == nil || l.Token == 0 || m.current.Token != l.Token {
		m.electedAt = time.Now()
		m.stats.Elections++
	}
	m.current, m.watched = l, watched
	m.renewed, m.renewals = l.deadline, l.deadline.renewalTimes()
	m.stats.CampaignTimes.observe(campaign)
	m.cfg.Logger.Info("elected for the role", "role", l.Role, "token", l.Token, "session", l.Session)
	go func() {
		defer close(watched)
		if previous != nil {
			<-previous // one health check at a time
		}
		m.watch(l)
	}()
	return l
}

// watch checks the holder's health during a tenure, and records why the tenure has ended.
func (m *MonitoredElector) watch(l *Leadership) {
	ctx, cancel := l.Context(context.Background(), 0)
	defer cancel()
	for failures := 0; m.check != nil; {
		if pause(ctx, m.cfg.CheckInterval) != nil {
			break
		}
		err := m.check.run(ctx)
		if ctx.Err() != nil {
			break
		}
		m.recordCheck(err)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		m.cfg.Logger.Warn("the health check failed", "role", l.Role, "token", l.Token, "failures", failures,
			"limit", m.cfg.CheckFailures, "error", err)
		if failures >= m.cfg.CheckFailures {
			m.endUnhealthy(l, err)
			return
		}
	}
	<-l.Done()
	m.recordLoss(l)
}

// endUnhealthy ends the tenure here, and releases the role when its work has stopped. The holder has as long for that
// as after a revocation: until its lease ends.
func (m *MonitoredElector) endUnhealthy(l *Leadership, err error) {
	left := l.ValidFor()
	u := &unhealthyTenure{stopped: make(chan struct{}), released: make(chan struct{})}
	m.mu.Lock()
	m.unhealthy = u
	m.mu.Unlock()
	defer close(u.released)
	l.End(fmt.Errorf("%w: %w", ErrUnhealthy, err)) // after this the owner may call Campaign
	m.recordLoss(l)
	select {
	case <-u.stopped:
	case <-time.After(left):
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := l.Resign(ctx); err != nil {
		m.cfg.Logger.Warn("cannot release the role: it is free when the lease has expired", "role", l.Role, "error", err)
	}
}

// waitHealthy returns when the role was released and the check passes, if the check has ended the last tenure.
func (m *MonitoredElector) waitHealthy(ctx context.Context) error {
	m.mu.Lock()
	u := m.unhealthy
	m.mu.Unlock()
	if u == nil {
		return nil
	}
	u.markStopped()
	select {
	case <-u.released:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		err := m.check.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.recordCheck(err)
		if err == nil {
			break
		}
		if err := pause(ctx, m.cfg.CheckInterval); err != nil {
			return err
		}
	}
	m.cfg.Logger.Info("the health check passes again", "role", m.cfg.Role)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unhealthy = nil
	return nil
}
