package compat

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// client returns an unmodified etcd client of some nodes, which ends with the test.
func client(t testing.TB, nodes ...*node) *clientv3.Client {
	t.Helper()
	c := newClient(t, nodes...)
	t.Cleanup(func() { c.Close() })
	return c
}

func newClient(t testing.TB, nodes ...*node) *clientv3.Client {
	t.Helper()
	return newClientWith(t, nil, nodes...)
}

func newClientWith(t testing.TB, options []grpc.DialOption, nodes ...*node) *clientv3.Client {
	t.Helper()
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.etcd)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 10 * time.Second, DialKeepAliveTime: 10 * time.Second, Logger: zap.NewNop(),
		DialOptions: options,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// leader returns the node that leads, and the others.
func leader(t testing.TB, nodes []*node) (first *node, others []*node) {
	t.Helper()
	c := newClient(t, nodes...)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for first == nil {
		others = nil
		for _, n := range nodes {
			st, err := c.Status(ctx, n.etcd)
			if err == nil && st.Leader == st.Header.MemberId {
				first = n
			} else {
				others = append(others, n)
			}
		}
		if ctx.Err() != nil {
			t.Fatal("no node leads")
		}
	}
	return first, others
}

// TestConcurrency runs the recipes of clientv3 on three nodes, each client at another one.
func TestConcurrency(t *testing.T) {
	nodes := startNorthstar(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Run("election", func(t *testing.T) { testElection(ctx, t, nodes) })
	t.Run("mutex", func(t *testing.T) { testMutex(ctx, t, nodes) })
	t.Run("stm", func(t *testing.T) { testSTM(ctx, t, nodes) })
}

func session(t testing.TB, c *clientv3.Client, ttl int) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testElection(ctx context.Context, t *testing.T, nodes []*node) {
	var elections []*concurrency.Election
	var sessions []*concurrency.Session
	for _, n := range nodes {
		s := session(t, client(t, n), 5)
		sessions = append(sessions, s)
		elections = append(elections, concurrency.NewElection(s, "/election"))
	}
	if err := elections[0].Campaign(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	seen := elections[2].Observe(ctx)
	if first := <-seen; string(first.Kvs[0].Value) != "one" {
		t.Errorf("observed %s", first.Kvs[0].Value)
	}
	won := make(chan error, 1)
	go func() { won <- elections[1].Campaign(ctx, "two") }()
	if err := elections[0].Proclaim(ctx, "uno"); err != nil {
		t.Error(err)
	}
	if next := <-seen; string(next.Kvs[0].Value) != "uno" {
		t.Errorf("observed %s", next.Kvs[0].Value)
	}
	if err := elections[0].Resign(ctx); err != nil {
		t.Error(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if now, err := elections[0].Leader(ctx); err != nil || string(now.Kvs[0].Value) != "two" {
		t.Errorf("leader: %v, %v", now, err)
	}
	go func() { won <- elections[2].Campaign(ctx, "three") }()
	if err := sessions[1].Close(); err != nil { // revokes its lease
		t.Error(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
}

func testMutex(ctx context.Context, t *testing.T, nodes []*node) {
	var workers sync.WaitGroup
	var inside, entries atomic.Int32
	for _, n := range nodes {
		s := session(t, client(t, n), 10)
		workers.Go(func() {
			m := concurrency.NewMutex(s, "/mutex")
			for range 10 {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the mutex")
				}
				entries.Add(1)
				inside.Add(-1)
				if err := m.Unlock(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	if n := entries.Load(); n != 30 {
		t.Errorf("%d entries", n)
	}
	s := session(t, client(t, nodes[0]), 10)
	if err := concurrency.NewMutex(s, "/mutex").TryLock(ctx); err != nil {
		t.Error(err)
	}
	other := concurrency.NewMutex(session(t, client(t, nodes[1]), 10), "/mutex")
	if err := other.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("a second TryLock: %v", err)
	}
}

// testSTM moves amounts between accounts: their sum stays. The two reads of a transaction go to two nodes.
func testSTM(ctx context.Context, t *testing.T, nodes []*node) {
	c := client(t, nodes...)
	const accounts = 4
	for i := range accounts {
		if _, err := c.Put(ctx, fmt.Sprint("/account/", i), "100"); err != nil {
			t.Fatal(err)
		}
	}
	var workers sync.WaitGroup
	for w := range nodes {
		own := client(t, nodes...)
		workers.Go(func() {
			for i := range 20 {
				from, to := fmt.Sprint("/account/", (w+i)%accounts), fmt.Sprint("/account/", (w+2*i+1)%accounts)
				if from == to {
					continue
				}
				_, err := concurrency.NewSTM(own, func(s concurrency.STM) error {
					a, _ := strconv.Atoi(s.Get(from))
					b, _ := strconv.Atoi(s.Get(to))
					s.Put(from, fmt.Sprint(a-1))
					s.Put(to, fmt.Sprint(b+1))
					return nil
				}, concurrency.WithAbortContext(ctx))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	got, err := c.Get(ctx, "/account/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, kv := range got.Kvs {
		n, _ := strconv.Atoi(string(kv.Value))
		sum += n
	}
	if sum != 100*accounts {
		t.Errorf("the sum is %d: %v", sum, got.Kvs)
	}
}

// TestLeaderCrash kills the leader again and again under writers, watches and a session at the other nodes. No request
// fails, no watch misses an event, and the session lives.
func TestLeaderCrash(t *testing.T) {
	const kills, writers = 5, 16
	nodes := startNorthstar(t, 3, calm()...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := session(t, client(t, nodes...), 5)
	for kill := range kills {
		first, others := leader(t, nodes)
		prefix := fmt.Sprintf("/crash/%d/", kill)
		watching := client(t, others[0])
		events := watching.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-events
		stop, end := context.WithCancel(ctx)
		var running sync.WaitGroup
		var acknowledged atomic.Int64
		var longest atomic.Int64
		for w := range writers {
			c := client(t, others[w%len(others)])
			running.Go(func() {
				for i := 0; stop.Err() == nil; i++ {
					start := time.Now()
					if _, err := c.Put(ctx, fmt.Sprintf("%s%d-%d", prefix, w, i), "v"); err != nil {
						t.Errorf("put through a living node: %v", err)
						return
					}
					acknowledged.Add(1)
					for took := int64(time.Since(start)); ; {
						if old := longest.Load(); took <= old || longest.CompareAndSwap(old, took) {
							break
						}
					}
				}
			})
		}
		awaitCount(ctx, t, &acknowledged, 200)
		before := acknowledged.Load()
		first.kill()
		awaitCount(ctx, t, &acknowledged, before+500)
		end()
		running.Wait()
		seen := int64(0)
		for seen < acknowledged.Load() {
			r, ok := <-events
			if !ok || r.Err() != nil {
				t.Fatalf("the watch ended after %d of %d events: %v", seen, acknowledged.Load(), r.Err())
			}
			seen += int64(len(r.Events))
		}
		t.Logf("kill %d: %d writes, the longest took %v", kill, acknowledged.Load(), time.Duration(longest.Load()))
		first.start(t)
		awaitMember(ctx, t, first)
	}
	select {
	case <-s.Done():
		t.Error("the session has ended")
	default:
	}
}

func awaitCount(ctx context.Context, t *testing.T, n *atomic.Int64, want int64) {
	t.Helper()
	for n.Load() < want {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("only %d of %d writes", n.Load(), want)
		}
	}
}

// awaitMember waits until a node that was started again serves linearizable reads.
func awaitMember(ctx context.Context, t *testing.T, n *node) {
	t.Helper()
	c := newClient(t, n)
	defer c.Close()
	for {
		if _, err := c.Get(ctx, "k"); err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("a node does not come back")
		}
	}
}
