package bridge

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"northstar/client"
)

const (
	ttl       = time.Second
	stopEarly = 200 * time.Millisecond
)

// system is a role or a lock with leases: what its holder does not renew is free after the TTL.
type system struct {
	mu     sync.Mutex
	owner  *grant // nil: free
	tokens uint64
	down   bool // requests fail, and so do renewals
}

func newSystem() *system { return &system{} }

// grant is a tenure.
type grant struct {
	s        *system
	token    uint64
	deadline *client.Deadline
	expires  time.Time // guarded by s.mu
	stop     context.CancelFunc
}

var errDown = errors.New("the system is down")

// wait waits until the system is free.
func (s *system) wait(ctx context.Context, whenDown error) (*grant, error) {
	for {
		s.mu.Lock()
		switch {
		case s.down:
			if whenDown != nil {
				s.mu.Unlock()
				return nil, whenDown
			}
		case s.owner == nil || !time.Now().Before(s.owner.expires):
			defer s.mu.Unlock()
			return s.grant(), nil
		}
		s.mu.Unlock()
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// grant makes the caller the owner. The caller holds s.mu.
func (s *system) grant() *grant {
	s.tokens++
	began := time.Now()
	g := &grant{
		s: s, token: s.tokens, expires: began.Add(ttl),
		deadline: client.NewDeadline(func() time.Duration { return time.Since(began) }),
	}
	g.deadline.Extend(0, ttl-ttl/10)
	s.owner = g
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	go g.deadline.Run(ctx)
	go g.renew(ctx)
	return g
}

func (g *grant) renew(ctx context.Context) {
	for pause(ctx, ttl/5) == nil {
		g.s.mu.Lock()
		switch {
		case g.s.owner != g || !time.Now().Before(g.expires):
			g.deadline.End(client.ErrRoleLost)
		case !g.s.down:
			sent := g.deadline.Now()
			g.expires = time.Now().Add(ttl)
			g.deadline.Extend(sent, ttl-ttl/10)
		}
		g.s.mu.Unlock()
	}
}

// release frees the system.
func (g *grant) release(ctx context.Context) error {
	g.stop()
	g.deadline.End(client.ErrResigned)
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case g.s.down:
		return errDown
	}
	if g.s.owner == g {
		g.s.owner = nil
	}
	return nil
}

// Acquire implements Lock.
func (s *system) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	g, err := s.wait(ctx, errDown)
	if err != nil {
		return nil, nil, err
	}
	return g.deadline, g.release, nil
}

// set makes the system fail or respond.
func (s *system) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// revoke ends the owner's tenure. The system stays held until the owner releases it or the lease ends.
func (s *system) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != nil {
		s.owner.deadline.End(client.ErrRoleLost)
	}
}

// elector is a candidate for a system that is a role.
type elector struct {
	s    *system
	last *grant // nil: none yet
}

func (e *elector) Campaign(ctx context.Context) (*client.Leadership, error) {
	for {
		if err := e.Close(ctx); err != nil && ctx.Err() != nil {
			return nil, err
		}
		g, err := e.s.wait(ctx, nil)
		if err != nil {
			return nil, err
		}
		e.last = g
		l, err := g.deadline.Begin(client.Holder{Role: "r", Token: g.token}, g.release)
		if err == nil { // not revoked meanwhile
			return l, nil
		}
	}
}

func (e *elector) Observe(ctx context.Context) iter.Seq2[client.Holder, error] {
	return func(yield func(client.Holder, error) bool) { yield(client.Holder{Role: "r"}, nil) }
}

// Close releases what the last campaign has won.
func (e *elector) Close(ctx context.Context) error {
	if e.last == nil {
		return nil
	}
	return e.last.release(ctx)
}

// recorder detects two processes that act at the same time.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	acting map[string]bool
	turns  map[string]int
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, acting: map[string]bool{}, turns: map[string]int{}}
}

func (r *recorder) begin(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other := range r.acting {
		r.t.Errorf("%s acts beside %s", name, other)
	}
	r.acting[name] = true
	r.turns[name]++
}

func (r *recorder) end(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.acting, name)
}

// lead acts until its tenure is over, and then takes some time to stop.
func (r *recorder) lead(name string, linger time.Duration) func(context.Context, *client.Leadership) error {
	return func(ctx context.Context, _ *client.Leadership) error {
		r.begin(name)
		defer r.end(name)
		<-ctx.Done()
		time.Sleep(linger)
		return ctx.Err()
	}
}
