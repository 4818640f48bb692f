package client

import (
	"context"
	"fmt"
	"sync"
)

// ErrDraining: the gate takes no more work.
var ErrDraining = fmt.Errorf("%w: draining", ErrNotLeader)

// Gate keeps a process from acting when it cannot prove that it leads. It is open
// while the tenure that it follows lasts by the local clock, and looks at that at
// every question: renewals that come late shut it by themselves, and a process that
// was stopped finds it shut when it wakes. A new tenure, or the same one proven
// again, opens it again.
//
// A gate cannot hold back what has passed it: between Require and the effect the
// process may be stopped for any time. What must not happen then needs the fencing
// token at the place of the effect.
//
// The zero Gate is shut. Methods may be called by any goroutine.
type Gate struct {
	mu       sync.Mutex
	current  *Leadership // nil: none yet
	draining bool
	inFlight int           // calls of Do
	idle     chan struct{} // closed when flying becomes 0; nil unless somebody waits
}

// Bind makes the gate open as long as this tenure lasts, in the place of any it
// followed before, and ends a Drain.
func (g *Gate) Bind(l *Leadership) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.current, g.draining = l, false
}

// Require says whether this process may act now: nil, or an error of the kind
// ErrNotLeader with the cause.
func (g *Gate) Require() error {
	_, err := g.enter(0)
	return err
}

// Check is Require for work that was begun under a certain tenure: that one must
// still be the gate's.
func (g *Gate) Check(token uint64) error {
	l, err := g.enter(0)
	if err == nil && l.Token != token {
		err = fmt.Errorf("%w: token %d is of an earlier tenure, the present one has %d", ErrNotLeader, token, l.Token)
	}
	return err
}

// Do runs f if the gate is open, with a context that ends when it shuts and the
// tenure's fencing token, and counts it as in flight. Should the tenure be over when
// f returns without error, that is an error all the same: what f did last may have
// come too late.
func (g *Gate) Do(ctx context.Context, f func(ctx context.Context, token uint64) error) error {
	l, err := g.enter(1)
	if err != nil {
		return err
	}
	defer g.leave()
	ctx, cancel := l.Context(ctx, 0)
	defer cancel()
	if err := f(ctx, l.Token); err != nil {
		return err
	}
	return l.Cause()
}

// Drain shuts the gate for new work and waits until none is in flight, or ctx ends:
// then the error says how much is. What is in flight may finish as long as the
// tenure lasts. Only Follow ends it.
func (g *Gate) Drain(ctx context.Context) error {
	for {
		g.mu.Lock()
		g.draining = true
		if g.inFlight == 0 {
			g.mu.Unlock()
			return nil
		}
		if g.idle == nil {
			g.idle = make(chan struct{})
		}
		idle, flying := g.idle, g.inFlight
		g.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("drain: %d calls are still in flight: %w", flying, context.Cause(ctx))
		}
	}
}

// InFlight counts the calls of Do that have not returned.
func (g *Gate) InFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight
}

// acquire counts n calls in if the gate is open.
func (g *Gate) enter(n int) (*Leadership, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.draining:
		return nil, ErrDraining
	case g.current == nil:
		return nil, ErrNotLeader
	}
	if err := g.current.Cause(); err != nil {
		return nil, err
	}
	g.inFlight += n
	return g.current, nil
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	if g.inFlight == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}
