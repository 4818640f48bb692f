package client

import (
	"errors"
	"maps"
	"time"
)

// LossCause is why a tenure ended, as a short fixed word.
type LossCause string

// The causes of the end of a tenure.
const (
	LossResigned  LossCause = "resigned"  // this process released the role
	LossLost      LossCause = "lost"      // revoked by an operator, transferred, or taken from this process otherwise
	LossLapsed    LossCause = "lapsed"    // renewals were late
	LossUnhealthy LossCause = "unhealthy" // the health check failed
	LossEnded     LossCause = "ended"     // the session or the connection has ended
)

// LossCauses returns all causes.
func LossCauses() []LossCause {
	return []LossCause{LossResigned, LossLost, LossLapsed, LossUnhealthy, LossEnded}
}

func lossCause(err error) LossCause {
	switch {
	case errors.Is(err, ErrUnhealthy):
		return LossUnhealthy
	case errors.Is(err, ErrResigned), errors.Is(err, errSessionClosed):
		return LossResigned
	case errors.Is(err, ErrLeaseLapsed):
		return LossLapsed
	case errors.Is(err, ErrRoleLost):
		return LossLost
	}
	return LossEnded
}

// ElectorStats are what a MonitoredElector knows, at one moment.
type ElectorStats struct {
	Role       string
	Leading    bool          // this process holds the role and can prove it
	Token      uint64        // fencing token of the tenure; 0 without one
	Tenure     time.Duration // since the election; 0 without a tenure
	RenewalAge time.Duration // since the last successful renewal was sent; 0 without a tenure

	Campaigns uint64               // calls of Campaign
	Elections uint64               // of this process; a tenure that goes on after its lease lapsed counts once
	Losses    map[LossCause]uint64 // tenures that have ended

	CampaignTimes DurationHistogram // of campaigns that were successful, with their wait for the role
	RenewalTimes  DurationHistogram // of successful renewals during its tenures, from when they were sent

	Checks        uint64 // health checks
	CheckFailures uint64 // health checks that failed
	CheckError    error  // result of the last health check
}

// Stats returns the current statistics.
func (m *MonitoredElector) Stats() ElectorStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countRenewals()
	s := m.stats
	s.Losses = maps.Clone(m.stats.Losses)
	if m.current != nil && m.current.Cause() == nil {
		_, err := m.current.proven()
		s.Leading, s.Token = err == nil, m.current.Token
		s.Tenure, s.RenewalAge = time.Since(m.electedAt), m.current.renewalAge()
	}
	return s
}

// renewalAge returns the time since the last successful renewal was sent.
func (l *Leadership) renewalAge() time.Duration {
	l.deadline.mu.Lock()
	defer l.deadline.mu.Unlock()
	return l.deadline.validity - l.deadline.remaining()
}

func (m *MonitoredElector) recordCheck(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Checks++
	m.stats.CheckError = err
	if err != nil {
		m.stats.CheckFailures++
	}
}

// countRenewals adds the renewals of the current tenure since its last call. The caller holds mu.
func (m *MonitoredElector) countRenewals() {
	if m.renewed == nil {
		return
	}
	now := m.renewed.renewalTimes()
	m.stats.RenewalTimes.addSince(now, m.renewals)
	m.renewals = now
}

// recordLoss counts and logs the end of a tenure.
func (m *MonitoredElector) recordLoss(l *Leadership) {
	cause := lossCause(l.Cause())
	m.mu.Lock()
	m.stats.Losses[cause]++
	if m.current == l {
		m.countRenewals()
		m.renewed = nil // its session may go on without the role
	}
	m.mu.Unlock()
	args := []any{"role", l.Role, "token", l.Token, "cause", string(cause), "error", l.Cause()}
	if cause == LossResigned {
		m.cfg.Logger.Info("released the role", args...)
	} else {
		m.cfg.Logger.Warn("lost the role", args...)
	}
}
