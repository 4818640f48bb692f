// Package clientgo runs the leader election of Kubernetes' client-go, and so that of controller-runtime, on a
// NorthStar role. A Lock takes the place of a Lease object.
package clientgo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"northstar/client"
)

// Config configures a Lock. All fields but Attach are required.
type Config struct {
	Client *client.Client
	Role   string
	// Identity names this candidate. Each process needs its own, as with any other lock of client-go.
	Identity string
	// RenewDeadline and RetryPeriod are those of the LeaderElectionConfig. RetryPeriod may be short: candidates wait
	// in a queue, and a leader's renewals are not requests.
	RenewDeadline, RetryPeriod time.Duration
	// Attach frees the role as soon as this process dies, in place of after the session's TTL. The price: a broken
	// connection frees it, too, without waiting for this process. Another leader may then start up to RenewDeadline
	// and RetryPeriod before this one's loop has stopped. Until then only gates and fencing tokens keep the two apart;
	// see client.SessionConfig.Attach.
	Attach bool
}

// Lock is one candidate for a role, for one LeaderElector at a time. It implements resourcelock.Interface. Its
// methods are safe for concurrent use.
//
// client-go stops leading RetryPeriod and RenewDeadline after its last successful renewal at the latest. A renewal
// succeeds only while the tenure lasts that much longer. So a leader stops before another one is elected, unless
// Config.Attach is set. With ReleaseOnCancel, client-go would first release the role, also after a failed renewal. The
// Lock then keeps the role: the work has not stopped yet, and an unreachable cluster would delay its end.
type Lock struct {
	cfg       Config
	candidate *client.Candidate
	ttl       time.Duration // of the session

	mu      sync.Mutex
	waiting *campaign          // nil: none
	tenure  *client.Leadership // of the present leader's loop, also after it was lost; nil: it does not lead
	failing bool               // the last renewal of tenure has failed
	expiry  *time.Timer        // ends the session after a loop that did not release the role; nil: none
}

var _ resourcelock.Interface = (*Lock)(nil)

// minTTL is the shortest TTL of a session.
const minTTL = 500 * time.Millisecond

// New checks the configuration. It sends nothing; the election does.
func New(cfg Config) (*Lock, error) {
	switch {
	case cfg.Client == nil:
		return nil, errors.New("lock configuration: Client: missing")
	case cfg.Identity == "":
		return nil, errors.New("lock configuration: Identity: empty")
	case cfg.RenewDeadline <= 0 || cfg.RetryPeriod <= 0:
		return nil, errors.New("lock configuration: RenewDeadline and RetryPeriod: must be those of the election")
	}
	l := &Lock{cfg: cfg, ttl: max(minTTL, sessionTTL(cfg.required()))}
	var err error
	l.candidate, err = cfg.Client.NewCandidate(client.CandidateConfig{
		Role:    cfg.Role,
		Session: client.SessionConfig{Name: cfg.Identity, TTL: l.ttl, Attach: cfg.Attach},
	})
	return l, err
}

// required returns how long a tenure must last after a renewal, so that the loop stops in time.
func (cfg Config) required() time.Duration { return cfg.RenewDeadline + cfg.RetryPeriod }

// sessionTTL returns the TTL for a required validity. A session relies on nine tenths of its TTL. A campaign returns
// with half of that left at least, and later renewals leave more.
func sessionTTL(required time.Duration) time.Duration { return required * 7 / 3 }

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return l.cfg.Identity }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return "northstar role " + l.cfg.Role }

// Leadership returns the tenure of the leader, with its fencing token; nil unless this candidate's loop leads.
func (l *Lock) Leadership() *client.Leadership {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenure
}

// Get implements resourcelock.Interface. For a candidate it is the campaign: it returns when the candidate is
// elected, when another holder is seen for the first time, or when ctx ends. The context of the first Get bounds the
// campaign, which goes on between the calls.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	t := l.tenure
	if t == nil && (l.waiting == nil || l.waiting.over()) {
		l.waiting = l.newCampaign(ctx)
	}
	c := l.waiting
	l.mu.Unlock()
	switch {
	case t == nil:
		return c.wait(ctx)
	case t.Cause() == nil:
		return l.record(t.Holder)
	}
	return l.lost(ctx, t.Cause())
}

// lost returns the record for a loop that has lost its tenure and has not stopped yet. The loop cannot stop before lost
// returns, so that takes no longer than the session certainly lives. It then returns cause.
func (l *Lock) lost(ctx context.Context, cause error) (*resourcelock.LeaderElectionRecord, []byte, error) {
	left := time.Duration(0)
	if s := l.candidate.Session(); s != nil {
		left = s.ValidFor()
	}
	if left == 0 {
		return nil, nil, cause
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, cause)
	defer cancel()
	r, err := l.cfg.Client.GetRole(ctx, l.cfg.Role)
	switch {
	case errors.Is(err, client.ErrNotFound):
		return l.record(client.Holder{})
	case err != nil:
		return nil, nil, err
	}
	h := client.Holder{Name: r.Holder, Session: r.SessionID, Token: r.Token}
	if r.AcquiredAt != nil {
		h.AcquiredAt = *r.AcquiredAt
	}
	return l.record(h)
}

// record returns the record of a holder. Its number of transitions is the fencing token.
func (l *Lock) record(h client.Holder) (*resourcelock.LeaderElectionRecord, []byte, error) {
	identity := h.Name
	if s := l.candidate.Session(); identity == l.cfg.Identity && (s == nil || s.ID() != h.Session) {
		// An earlier process of this name, for example. The loop must not take its role for its own.
		identity = fmt.Sprintf("%s (session %s)", identity, h.Session)
	}
	r := &resourcelock.LeaderElectionRecord{
		HolderIdentity: identity, LeaseDurationSeconds: int(l.ttl / time.Second),
		AcquireTime: metav1.NewTime(h.AcquiredAt), RenewTime: metav1.Now(), LeaderTransitions: int(h.Token),
	}
	raw, err := json.Marshal(r)
	return r, raw, err
}

// Create implements resourcelock.Interface. Get never asks for it.
func (l *Lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, r)
}

// Update implements resourcelock.Interface. It confirms the tenure, or releases it if r has no holder. It sends no
// request for the former: the session is renewed in the background.
func (l *Lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" {
		return l.release(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenure
	if t == nil {
		if t = l.waiting.won(); t == nil {
			return fmt.Errorf("%w of role %s", client.ErrNotLeader, l.cfg.Role)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := l.check(t)
	l.failing = err != nil
	if err == nil {
		l.tenure, l.waiting = t, nil
	}
	return err
}

// check returns nil if the tenure outlasts a loop that renews it for the last time now.
func (l *Lock) check(t *client.Leadership) error {
	if cause := t.Cause(); cause != nil {
		return cause
	}
	if left := t.ValidFor(); left < l.cfg.required() {
		return fmt.Errorf("role %s: renewals are late: the lease lasts %v longer, %v are required", l.cfg.Role, left,
			l.cfg.required())
	}
	return nil
}

var errNotReleased = errors.New("not released, because renewals have failed: the session ends after its TTL")

// release frees the role, unless renewals have failed. The loop releases it before it stops the work in that case, and
// RecordEvent ends the session later.
func (l *Lock) release(ctx context.Context) error {
	l.mu.Lock()
	t := l.tenure
	if t != nil && (l.failing || t.Cause() != nil) {
		l.mu.Unlock()
		return fmt.Errorf("role %s: %w", l.cfg.Role, errNotReleased)
	}
	l.tenure = nil
	l.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.Resign(ctx)
}

// RecordEvent implements resourcelock.Interface. When a loop stops without releasing the role, the session still
// lives for its TTL, so that the work of the loop can stop. If the loop runs again before that, it continues the
// tenure.
func (l *Lock) RecordEvent(what string) {
	if what != "stopped leading" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tenure == nil {
		return
	}
	l.tenure = nil
	var timer *time.Timer
	timer = time.AfterFunc(l.ttl, func() {
		l.mu.Lock()
		due := l.expiry == timer
		l.mu.Unlock()
		if due {
			l.end()
		}
	})
	l.expiry = timer
}

// end ends the session of a candidate that is no more. If its loop runs again, it makes a new one.
func (l *Lock) end() {
	s := l.candidate.Session()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.ttl)
	defer cancel()
	_ = s.Close(ctx) // after an error, it ends after its TTL
}
