package proc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/testenv"
	"northstar/client"
)

// fleet is a large number of sessions, a tenth as many roles, and a watcher for each role.
type fleet struct {
	t        *testing.T
	cluster  *Cluster
	callers  *client.Client
	watchers *client.Client
	ttl      time.Duration
	sessions []*client.Session
	tokens   []uint64 // initial tokens of the roles
	vacated  atomic.Int64
	watching atomic.Int64
	stalls   stalls
}

// fleetSize returns the number of sessions of TestFleet: a few, or NORTHSTAR_FLEET, which are then renewed every 3 s.
func fleetSize(t *testing.T) (sessions int, ttl time.Duration) {
	if s := os.Getenv("NORTHSTAR_FLEET"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 10 {
			t.Fatalf("NORTHSTAR_FLEET: want a number from 10 on, got %q", s)
		}
		return n, 9 * time.Second
	}
	return 300, testenv.Slowdown() * 4 * time.Second
}

// Many sessions renew themselves, with many roles and a watcher of each. A crash of the leader ends no session, every
// tenure continues, and no watcher misses an event. Not parallel: this process renews each of the sessions every
// second or two.
func TestFleet(t *testing.T) {
	n, ttl := fleetSize(t)
	c := newCluster(t, 3, "--failover-takeover-delay", "1h")
	start(t, c)
	old := acquainted(t, c)
	f := &fleet{
		t: t, cluster: c, callers: clientOf(t, c), ttl: ttl, sessions: make([]*client.Session, n),
		tokens: make([]uint64, n/10),
	}
	var err error
	if f.watchers, err = client.New(client.Config{Endpoints: httpAddrs(c), ConnsPerNode: n}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() { stop(); watching.Wait(); f.watchers.Close() })
	watching.Go(func() { f.stalls.watch(ctx) })

	began := time.Now()
	f.each(len(f.sessions), func(i int) (err error) {
		f.sessions[i], err = f.callers.NewSession(ctx, client.SessionConfig{TTL: ttl})
		return err
	})
	f.each(len(f.tokens), func(i int) error {
		r, err := f.callers.CampaignRole(ctx, f.role(i), apiv1.Campaign{SessionID: f.sessions[i].ID()})
		f.tokens[i] = r.Token
		return err
	})
	for i := range f.tokens {
		watching.Go(func() { f.watch(ctx, i) })
	}
	eventually(t, soon, func() error {
		if w := f.watching.Load(); int(w) < len(f.tokens) {
			return fmt.Errorf("%d watchers of %d", w, len(f.tokens))
		}
		return nil
	})
	t.Logf("%d sessions of %v, %d roles, each watched: there after %v", n, ttl, len(f.tokens), time.Since(began))
	before := mustStatus(t, old).Term
	f.idle("at first", ttl)
	f.checkAlive()
	if now := mustStatus(t, leader(t, c)).Term; now != before {
		t.Logf("the term went from %d to %d although nothing happened", before, now)
	}
	old = leader(t, c)
	old.Kill()
	struck := time.Now()
	mustPut(t, c, "after", "the crash")
	t.Logf("a write was taken %v after the crash", time.Since(struck))
	f.idle("after the crash", 2*ttl)
	f.checkAlive()
	if err := c.StartNode(old); err != nil {
		t.Fatal(err)
	}
	last := len(f.tokens) - 1
	if err := f.sessions[last].Close(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		if v := f.vacated.Load(); v != 1 {
			return fmt.Errorf("%d watchers have seen a vacancy", v)
		}
		return nil
	})
}

func (f *fleet) role(i int) string { return fmt.Sprintf("role-%d", i) }

// each calls do for each of n indexes, many at a time.
func (f *fleet) each(n int, do func(i int) error) {
	f.t.Helper()
	const together = 64
	var next atomic.Int64
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					f.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// watch follows one role until ctx ends.
func (f *fleet) watch(ctx context.Context, i int) {
	first := true
	for h, err := range f.watchers.Observe(ctx, f.role(i)) {
		switch {
		case err != nil:
			if ctx.Err() == nil {
				f.t.Errorf("watch of role %d: %v", i, err)
			}
			return
		case first && h.Token == f.tokens[i]:
			first = false
			f.watching.Add(1)
		default:
			f.vacated.Add(1)
		}
	}
}

// idle waits, and logs the resource usage of the nodes and of this process, which holds the sessions.
func (f *fleet) idle(when string, d time.Duration) {
	f.t.Helper()
	own := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for an invalid argument
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	use := func() (all []Usage) {
		for _, n := range f.cluster.Nodes {
			u, _ := n.Usage() // zero for a killed node
			all = append(all, u)
		}
		return all
	}
	before, ownBefore := use(), own()
	<-time.After(d)
	f.t.Logf("%s, the sessions' process: %.0f %% of a core; %s", when, 100*float64(own()-ownBefore)/float64(d),
		&f.stalls)
	for i, u := range use() {
		f.t.Logf("%s, %s: %.0f %% of a core, %d MB", when, f.cluster.Nodes[i].ID,
			100*float64(u.CPU-before[i].CPU)/float64(d), u.RSS>>20)
	}
}

// checkAlive checks that no session and no tenure has ended.
func (f *fleet) checkAlive() {
	t := f.t
	t.Helper()
	ended, lapsed := 0, 0
	for _, s := range f.sessions {
		if s.Err() != nil {
			ended++
		} else if s.ValidFor() == 0 {
			lapsed++
		}
	}
	if ended > 0 || lapsed > 0 || f.vacated.Load() > 0 {
		t.Errorf("%d sessions have ended, %d are not certain that they live, %d watchers have seen a change", ended,
			lapsed, f.vacated.Load())
	}
	f.each(len(f.tokens), func(i int) error {
		r, err := f.callers.GetRole(t.Context(), f.role(i))
		if err == nil && r.Token != f.tokens[i] {
			err = fmt.Errorf("role %d has token %d, it was %d", i, r.Token, f.tokens[i])
		}
		return err
	})
}
