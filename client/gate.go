package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrDraining: the gate accepts no new work.
var ErrDraining = fmt.Errorf("%w: draining", ErrNotLeader)

// errReopened is the error of a Drain that Bind has ended.
var errReopened = errors.New("drain: the gate was bound to a tenure meanwhile")

// Gate is a leadership guard: it prevents a process from acting unless it can prove that it leads. The gate is open
// while its tenure lasts by the local clock, which each call reads. Late renewals therefore close it automatically,
// and a suspended process finds it closed when it resumes. A new or renewed tenure opens it again. It is closed, too,
// from when the connection of an attached session without grace breaks until the session is attached again.
//
// A gate cannot stop work that has already passed it: the process may be suspended between Require and the effect.
// Protect such effects with the fencing token at the target system.
//
// The zero Gate is closed. Methods are safe for concurrent use.
type Gate struct {
	mu       sync.Mutex
	current  *Leadership // nil: none yet
	draining bool
	refused  uint64        // calls of Require, Check and Do
	inFlight int           // calls of Do
	woken    chan struct{} // closed by wakeDrain; nil if no Drain waits
}

// Bind opens the gate for this tenure, replaces the previous one, and ends a Drain.
func (g *Gate) Bind(l *Leadership) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.current, g.draining = l, false
	g.wakeDrain()
}

// Require returns nil if this process may act now. Otherwise it returns an error that wraps ErrNotLeader.
func (g *Gate) Require() error {
	_, err := g.enter(0)
	return g.counted(err)
}

// Check is Require for work that began under a certain tenure: the gate must still be bound to it. A Drain
// does not refuse it: it may finish while the tenure lasts.
func (g *Gate) Check(token uint64) error {
	g.mu.Lock()
	l, err := g.tenure()
	g.mu.Unlock()
	if err == nil && l.Token != token {
		err = fmt.Errorf("%w: token %d is of an earlier tenure, the present one has %d", ErrNotLeader, token, l.Token)
	}
	return g.counted(err)
}

// Do runs f if the gate is open, and counts it as in flight. The context of f ends with the tenure; token is the
// tenure's fencing token. If the tenure has ended when f returns nil, Do returns an error: the last effects of f may
// have come too late. While a session attaches again, Do waits, before f and after it, until ctx ends.
func (g *Gate) Do(ctx context.Context, f func(ctx context.Context, token uint64) error) error {
	l, err := g.enter(1)
	for errors.Is(err, ErrUnproven) {
		if err = l.waitProven(ctx); err == nil {
			l, err = g.enter(1)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return g.counted(err)
	}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.inFlight--; g.inFlight == 0 {
			g.wakeDrain()
		}
	}()
	work, cancel := l.Context(ctx, 0)
	defer cancel()
	if err := f(work, l.Token); err != nil {
		return err
	}
	return l.waitProven(ctx)
}

// Drain closes the gate for new work and waits until none is in flight. If ctx ends first, the error has the number
// of calls in flight. Those may finish while the tenure lasts. Only Bind ends the draining; a Drain that waits then
// returns an error.
func (g *Gate) Drain(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = true
	for g.inFlight > 0 {
		if g.woken == nil {
			g.woken = make(chan struct{})
		}
		woken := g.woken
		g.mu.Unlock()
		select {
		case <-woken:
		case <-ctx.Done():
		}
		g.mu.Lock()
		switch {
		case !g.draining:
			return errReopened
		case ctx.Err() != nil && g.inFlight > 0:
			return fmt.Errorf("drain: %d calls are still in flight: %w", g.inFlight, context.Cause(ctx))
		}
	}
	return nil
}

// wakeDrain wakes each Drain that waits. The caller holds mu.
func (g *Gate) wakeDrain() {
	if g.woken != nil {
		close(g.woken)
		g.woken = nil
	}
}

// InFlight returns the number of calls of Do that have not returned.
func (g *Gate) InFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight
}

// Refused returns the number of calls of Require, Check and Do that the gate has refused.
func (g *Gate) Refused() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// counted counts an error of the gate as a refusal, and returns it.
func (g *Gate) counted(err error) error {
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.refused++
	}
	return err
}

// enter adds n to the calls in flight if the gate is open for new work.
func (g *Gate) enter(n int) (*Leadership, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return nil, ErrDraining
	}
	l, err := g.tenure()
	if err == nil {
		g.inFlight += n
	}
	return l, err
}

// tenure returns the tenure that the gate is bound to; err is nil if this process can prove it. The caller holds mu.
func (g *Gate) tenure() (l *Leadership, err error) {
	if g.current == nil {
		return nil, ErrNotLeader
	}
	_, err = g.current.proven()
	return g.current, err
}
