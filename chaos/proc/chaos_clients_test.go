package proc

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/client"
	"northstar/cluster"
	"northstar/state"
)

// chaosClients are the clients of the cluster for one segment.
type chaosClients struct {
	*traffic.Traffic
	s       *suite
	ctx     context.Context
	cancel  context.CancelFunc
	library *client.Client
}

const (
	libraryUsers = 2 // clients with the Go client, in addition to those over plain HTTP
	opLimit      = 3 * time.Second
)

// users is the suite's cluster as its traffic reaches it.
type users struct{ s *suite }

func (u users) Nodes() (all []traffic.Node) {
	for _, n := range u.s.cluster.Nodes {
		all = append(all, traffic.Node{ID: n.ID, HTTP: n.HTTP})
	}
	return all
}

func (u users) Leader() int                { return max(0, slices.Index(u.s.cluster.Nodes, u.s.leading())) }
func (u users) Epoch() uint64              { return 0 }
func (u users) Key(i int) string           { return fmt.Sprintf("k%d-%d", u.s.fault(), i) }
func (u users) Violated(v check.Violation) { u.s.violated(v) }

func (u users) Acknowledged() {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.s.acks = append(u.s.acks, u.s.now())
}

func (u users) Machine(string) *traffic.Machine {
	transport := &http.Transport{}
	return &traffic.Machine{Client: &http.Client{Transport: transport}, Close: transport.CloseIdleConnections}
}

func (s *suite) startClients() *chaosClients {
	c := &chaosClients{s: s}
	c.ctx, c.cancel = context.WithCancel(s.t.Context())
	var endpoints []string
	for _, n := range s.cluster.Nodes {
		endpoints = append(endpoints, n.HTTP)
	}
	var err error
	if c.library, err = client.New(client.Config{Endpoints: endpoints, Timeout: opLimit}); err != nil {
		s.t.Fatal(err)
	}
	seed := s.seed + uint64(s.key)<<32
	c.Traffic = traffic.New(c.ctx, traffic.Config{
		Seed: seed, Start: s.start,
		Rand: func(a, b string, n uint64) *rand.Rand {
			h := fnv.New64a()
			_, _ = fmt.Fprintf(h, "%q %q %d", a, b, n)
			return rand.New(rand.NewPCG(seed, h.Sum64()))
		},
		HTTPClients: 3, Campaigners: 3, Watchers: 1, Operators: 3, Attachers: 2,
		EvictInterval: traffic.Between(100*time.Millisecond, 4*time.Second),
		Keys:          3, ThinkTime: traffic.Between(0, 60*time.Millisecond), AnyNodeRatio: 1, Timeout: opLimit,
		MinTTL: chaosTTL,
	}, users{s})
	since := mustPut(s.t, s.cluster, "segment", "begins").Revision
	c.Start()
	for i := range libraryUsers {
		c.AddClient(100+i, func(_ int, f func(context.Context, traffic.KV) error) error {
			ctx, cancel := context.WithTimeout(c.ctx, opLimit)
			defer cancel()
			return f(ctx, libraryKV{c.library})
		})
		c.Go(func() { c.campaignWithLibrary(100 + i) })
	}
	c.StartWatchers(since)
	c.AddWatcher("library", since, c.followLibrary)
	return c
}

// stop stops the clients, waits until the watches are complete, and stops them.
func (c *chaosClients) stop() {
	c.Stop()
	behind := c.WatchersBehind()
	for deadline := time.Now().Add(soon); behind != "" && time.Now().Before(deadline); behind = c.WatchersBehind() {
		pause(20 * time.Millisecond)
	}
	if behind != "" {
		c.s.violated(check.Violation{Invariant: check.WatchOrder, Detail: behind})
	}
	for _, v := range append(c.StopWatchers(), append(c.CheckAudit(soon), c.checkAttached()...)...) {
		c.s.violated(v)
	}
	c.cancel()
	c.library.Close()
}

// checkAttached checks that no session outlived its connection.
func (c *chaosClients) checkAttached() []check.Violation {
	c.s.mu.Lock()
	faults := c.s.faultIntervals()
	var gaps []check.FaultInterval
	for _, g := range c.s.gaps() {
		gaps = append(gaps, check.FaultInterval{From: g.From, To: g.To})
	}
	c.s.mu.Unlock()
	return c.CheckAttached(faults, gaps, soon)
}

// libraryKV is the cluster through the Go client.
type libraryKV struct{ c *client.Client }

// asAttempt converts an error to one that states the outcome: it certainly did not happen, or it is unknown.
func asAttempt(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Retry {
		return cluster.Errorf(cluster.CodeNoLeader, "%w", err)
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "%w", err)
}

func (l libraryKV) Read(ctx context.Context, key, consistency string) (traffic.Reading, error) {
	e, err := l.c.Get(ctx, key, client.Consistency(consistency))
	if errors.Is(err, client.ErrNotFound) {
		return traffic.Reading{}, nil
	}
	if err != nil {
		return traffic.Reading{}, asAttempt(err)
	}
	return traffic.Reading{Value: string(e.Value), Revision: e.Revision}, nil
}

func (l libraryKV) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	var o client.WriteOptions
	var revision uint64
	var err error
	if cmd.Idempotency != nil {
		o.IdempotencyKey = cmd.Idempotency.Key
	}
	if cmd.Fence != nil {
		o.Fence, o.NoIdempotencyKey = &client.Fence{Role: cmd.Fence.Role, Token: cmd.Fence.Token}, true
	}
	if cmd.Kind == state.KindPut {
		if o.IfAbsent = cmd.Put.IfAbsent; cmd.Put.IfRevision != nil {
			o.IfRevision = *cmd.Put.IfRevision
		}
		res, putErr := l.c.Put(ctx, cmd.Put.Key, cmd.Put.Value, o)
		revision, err = res.Revision, putErr
	} else {
		if cmd.Delete.IfRevision != nil {
			o.IfRevision = *cmd.Delete.IfRevision
		}
		res, deleteErr := l.c.Delete(ctx, cmd.Delete.Key, o)
		revision, err = res.Revision, deleteErr
	}
	if errors.Is(err, client.ErrConditionFailed) || errors.Is(err, client.ErrNotFound) ||
		errors.Is(err, client.ErrFenced) {
		e, _ := errors.AsType[*client.Error](err)
		return state.Result{Err: e.Problem, Revision: e.Problem.Revision}, nil
	}
	if err != nil {
		return state.Result{}, asAttempt(err)
	}
	return state.Result{Revision: revision}, nil
}

// followLibrary watches with the Go client, which resumes automatically.
func (c *chaosClients) followLibrary(ctx context.Context, w *traffic.Watcher) string {
	for ch, err := range c.library.Watch(ctx, "", client.WatchOptions{Since: w.Resume()}) {
		if errors.Is(err, client.ErrCompacted) {
			return w.Compacted("the Go client")
		}
		if err != nil {
			return ""
		}
		c := check.Change{Revision: ch.Revision, Key: ch.Key, Value: string(ch.Value), More: ch.More}
		if why := w.Add(c); why != "" {
			return why
		}
	}
	return ""
}

// heldAt returns the time before it asks how long a role is still held, and reports whether it is: then it was held
// at that time. This goroutine may be delayed between the two.
func heldAt(now, validFor func() time.Duration) (at time.Duration, valid bool) {
	at = now()
	return at, validFor() > 0
}

func TestHeldAt(t *testing.T) {
	t.Parallel()
	for deadline, want := range map[time.Duration]bool{time.Second / 2: false, 3 * time.Second / 2: true} {
		clock := time.Duration(0)
		delayed := func(d time.Duration) time.Duration { // by a second after each look at the clock
			clock += time.Second
			return d
		}
		at, valid := heldAt(
			func() time.Duration { return delayed(clock) },
			func() time.Duration { return delayed(deadline - clock) },
		)
		if valid != want || valid && at >= deadline {
			t.Errorf("deadline %v: held at %v: %v", deadline, at, valid)
		}
	}
}

// chaosTTL is the shortest TTL of sessions.
const chaosTTL = 1500 * time.Millisecond

// campaignWithLibrary campaigns with the Go client, and holds the role as long as the client allows it.
func (c *chaosClients) campaignWithLibrary(id int) {
	random := rand.New(rand.NewPCG(c.s.seed, uint64(1000+id)))
	k, err := c.library.NewCandidate(client.CandidateConfig{
		Role:    traffic.Role,
		Session: client.SessionConfig{TTL: chaosTTL},
	})
	if err != nil {
		c.s.t.Error(err)
		return
	}
	for n := 0; c.Pause(10 * time.Millisecond); {
		requested := c.s.now()
		ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
		l, err := k.Campaign(ctx)
		cancel()
		if err != nil {
			continue
		}
		t := check.Tenure{Client: id, Session: l.Session, Token: l.Token, RequestedAt: requested, GrantedAt: c.s.now()}
		until := time.Now().Add(time.Duration(random.IntN(800)) * time.Millisecond)
		for {
			at, valid := heldAt(c.s.now, l.ValidFor)
			if !valid {
				break
			}
			if t.Until = at; !time.Now().Before(until) {
				break
			}
			n++
			ctx, cancel := context.WithTimeout(c.ctx, time.Second)
			c.FencedWrite(ctx, libraryKV{c.library}, id, l.Token, n)
			cancel()
		}
		if t.Until > 0 {
			c.Roles.Won(t)
		}
		ctx, cancel = context.WithTimeout(c.ctx, time.Second)
		_ = l.Resign(ctx) // otherwise it ends with its session
		cancel()
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	_ = k.Close(ctx) // otherwise it ends by its TTL
}
