package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"northstar/chaos/proc"
	"northstar/client"
	"northstar/client/bridge"
)

// recorder detects two processes that act at the same time.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	acting string // "": none
}

func (r *recorder) act(ctx context.Context, name string) {
	r.set("", name)
	<-ctx.Done()
	r.set(name, "")
}

func (r *recorder) set(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acting != from {
		r.t.Errorf("%s acts beside %s", to, r.acting)
	}
	r.acting = to
}

// actor returns the process that acts, as soon as there is one.
func (r *recorder) actor() (name string) {
	r.t.Helper()
	for began := time.Now(); name == ""; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > limit {
			r.t.Fatal("no process acts")
		}
		r.mu.Lock()
		name = r.acting
		r.mu.Unlock()
	}
	return name
}

// launch starts a process of the fleet, and returns a function that ends it.
func launch(t *testing.T, run func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end
}

// legacy is a process of today, with etcd's own recipe.
func legacy(t *testing.T, c *clientv3.Client, rec *recorder, name string) (end func()) {
	return launch(t, func(ctx context.Context) {
		for ; ctx.Err() == nil; <-time.After(20 * time.Millisecond) {
			s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
			if err != nil {
				continue
			}
			e := concurrency.NewElection(s, prefix)
			if e.Campaign(ctx, name) == nil {
				<-time.After(today) // its work starts
				rec.act(whileElected(ctx, c, s, e), name)
			}
			_ = s.Close()
		}
	})
}

// whileElected returns a context that ends when the election's key is gone, or the session.
func whileElected(
	ctx context.Context, c *clientv3.Client, s *concurrency.Session, e *concurrency.Election,
) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for ; ctx.Err() == nil; <-time.After(today / 10) {
			select {
			case <-s.Done():
				return
			default:
			}
			if got, err := c.Get(ctx, e.Key()); err != nil || len(got.Kvs) == 0 {
				return
			}
		}
	}()
	return ctx
}

func moved(t *testing.T, c *clientv3.Client, nodes *proc.Cluster, rec *recorder, name string, p bridge.Phase) func() {
	t.Helper()
	var endpoints []string
	for _, n := range nodes.Nodes {
		endpoints = append(endpoints, n.HTTP)
	}
	cl, err := client.New(client.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	candidate, err := cl.NewCandidate(client.CandidateConfig{Role: role, Session: client.SessionConfig{TTL: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := bridge.New(bridge.Config{
		Phase: p, Role: role, Elector: candidate, Lock: election(t, c), TakeoverDelay: today,
	})
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("%s (%v)", name, p)
	return launch(t, func(ctx context.Context) {
		err := client.RunAsLeader(ctx, e, ttl/4, func(ctx context.Context, _ *client.Leadership) error {
			rec.act(ctx, name)
			return ctx.Err()
		})
		if ctx.Err() == nil {
			t.Error(err)
		}
	})
}

// A fleet moves from an election in etcd to a role, and back, one process at a time. Meanwhile the leader of the
// cluster is killed, and the key of the election is deleted. No two processes act at the same time.
func TestMove(t *testing.T) {
	t.Parallel()
	c, _ := etcd(t)
	nodes, err := proc.NorthStar(nodeBinary, 3, "--disk-reserve", "1MiB")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nodes.Close)
	if err := nodes.Start(); err != nil {
		t.Fatal(err)
	}
	rec := &recorder{t: t}
	fleet := make([]func(), 3)
	for i := range fleet {
		fleet[i] = legacy(t, c, rec, fmt.Sprintf("p%d (legacy)", i))
	}
	for _, p := range []bridge.Phase{
		bridge.PhaseOld, bridge.PhaseBoth, bridge.PhaseNew, bridge.PhaseBoth, bridge.PhaseOld,
	} {
		for i := range fleet {
			rec.actor()
			fleet[i]()
			fleet[i] = moved(t, c, nodes, rec, fmt.Sprintf("p%d", i), p)
			if i != 1 {
				continue
			}
			leader, err := nodes.Leader(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leader.Kill()
			rec.actor()
			deleteHolder(t, c)
			rec.actor()
			if err := nodes.StartNode(leader); err != nil {
				t.Fatal(err)
			}
		}
		actor := rec.actor()
		t.Logf("%s acts", actor)
		if !strings.HasSuffix(actor, fmt.Sprintf("(%v)", p)) {
			t.Errorf("%s acts after the step to phase %v", actor, p)
		}
	}
}

// deleteHolder deletes the key of the election's holder.
func deleteHolder(t *testing.T, c *clientv3.Client) {
	t.Helper()
	got, err := c.Get(t.Context(), prefix+"/", clientv3.WithFirstCreate()...)
	if err == nil && len(got.Kvs) > 0 {
		_, err = c.Delete(t.Context(), string(got.Kvs[0].Key))
	}
	if err != nil {
		t.Fatal(err)
	}
}
