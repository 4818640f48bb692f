package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"

	"northstar/chaos/ports"
	"northstar/client"
)

const (
	ttl    = 2 * time.Second
	prefix = "/app/leader"
	role   = "scheduler"
	limit  = time.Minute // of any step, also on a busy machine
	// The time from the end of a lease until a program of today acts, or has noticed.
	today = 500 * time.Millisecond
)

var nodeBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "northstar-etcdlock-")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	nodeBinary = filepath.Join(dir, "northstar-node")
	code := 1
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", nodeBinary, "./cmd/northstar-node").
		CombinedOutput(); err != nil {
		fmt.Printf("build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// etcd starts an embedded server. It returns a client of it, and a function that stops it.
func etcd(t *testing.T) (c *clientv3.Client, stop func()) {
	t.Helper()
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	peer, listen := url.URL{Scheme: "http", Host: addrs[0]}, url.URL{Scheme: "http", Host: addrs[1]}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name, cfg.LogLevel = t.TempDir(), "one", "error"
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 10, 100 // short TTLs
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(server.Close)
	t.Cleanup(stop)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(limit):
		t.Fatal("etcd does not start")
	}
	return dial(t, listen.String()), stop
}

func dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func election(t *testing.T, c *clientv3.Client) *Election {
	t.Helper()
	e, err := New(Config{Client: c, Prefix: prefix, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func acquired(t *testing.T, e *Election) (*client.Deadline, func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	held, release, err := e.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return held, release
}

// elected campaigns with etcd's own recipe, and reports the election.
func elected(t *testing.T, c *clientv3.Client) (<-chan *concurrency.Election, *concurrency.Session) {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	won := make(chan *concurrency.Election, 1)
	go func() {
		e := concurrency.NewElection(s, prefix)
		if err := e.Campaign(t.Context(), "today"); err == nil {
			won <- e
		}
	}()
	return won, s
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatalf("not within %v: %s", limit, what)
		panic("unreachable")
	}
}

// The election excludes programs with etcd's own recipe, for longer than the TTL, until it is released.
func TestElection_ExcludesOthers(t *testing.T) {
	t.Parallel()
	c, _ := etcd(t)
	e := election(t, c)
	held, release := acquired(t, e)
	won, _ := elected(t, c)
	select {
	case <-won:
		t.Fatal("another program is elected")
	case <-time.After(2 * ttl):
	}
	if held.ValidFor() < ttl/3 || held.Err() != nil {
		t.Fatalf("%v left: %v", held.ValidFor(), held.Err())
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
	if held.ValidFor() > 0 {
		t.Error("it is held after its release")
	}
	other := receive(t, won, "the other's election")
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	if _, _, err := e.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another program: %v", err)
	}
	if got, err := c.Get(t.Context(), prefix, clientv3.WithPrefix()); err != nil || got.Count != 1 {
		t.Errorf("the queue has %v keys after a campaign that ended, %v", got, err)
	}
	if err := other.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	_, release = acquired(t, e)
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// An operator who deletes the key, or revokes the lease, ends the hold immediately.
func TestElection_KeyDeleted(t *testing.T) {
	t.Parallel()
	c, _ := etcd(t)
	for _, remove := range []func(kv *clientv3.GetResponse) error{
		func(*clientv3.GetResponse) error {
			_, err := c.Delete(t.Context(), prefix, clientv3.WithPrefix())
			return err
		},
		func(got *clientv3.GetResponse) error {
			_, err := c.Revoke(t.Context(), clientv3.LeaseID(got.Kvs[0].Lease))
			return err
		},
	} {
		held, release := acquired(t, election(t, c))
		got, err := c.Get(t.Context(), prefix, clientv3.WithPrefix())
		if err == nil {
			err = remove(got)
		}
		if err != nil {
			t.Fatal(err)
		}
		receive(t, held.Done(), "the end of the hold")
		if err := held.Err(); !errors.Is(err, errKeyDeleted) {
			t.Error(err)
		}
		if err := release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A key that was deleted while its candidate waited does not win, as it would in etcd's own recipe.
func TestElection_KeyDeletedInTheQueue(t *testing.T) {
	t.Parallel()
	c, _ := etcd(t)
	first, release := acquired(t, election(t, c))
	result := make(chan error, 1)
	go func() {
		_, _, err := election(t, c).Acquire(t.Context())
		result <- err
	}()
	var keys *clientv3.GetResponse
	for keys == nil || keys.Count < 2 {
		var err error
		if keys, err = c.Get(t.Context(), prefix, clientv3.WithLastCreate()...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Delete(t.Context(), string(keys.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := receive(t, result, "the result of the campaign"); !errors.Is(err, errKeyDeleted) {
		t.Error(err)
	}
	if first.ValidFor() > 0 {
		t.Error("the first is held after its release")
	}
}

// While etcd does not respond, the hold lapses, and campaigns fail.
func TestElection_ServerDown(t *testing.T) {
	t.Parallel()
	c, stop := etcd(t)
	e := election(t, c)
	held, release := acquired(t, e)
	waiting := make(chan error, 1)
	go func() {
		_, _, err := election(t, c).Acquire(t.Context())
		waiting <- err
	}()
	for count := int64(0); count < 2; {
		got, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		count = got.Count
	}
	stop()
	if err := receive(t, waiting, "the end of the campaign"); err == nil {
		t.Error("elected without etcd")
	}
	for began := time.Now(); held.ValidFor() > 0; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatal("it does not lapse")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	if err := release(ctx); err == nil {
		t.Error("released without etcd")
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	good := Config{Client: &clientv3.Client{}, Prefix: "p"}
	if e, err := New(good); err != nil || e.cfg.TTL != defaultTTL || e.cfg.Value == "" {
		t.Errorf("%+v, %v", e, err)
	}
	for name, change := range map[string]func(*Config){
		"no client": func(c *Config) { c.Client = nil }, "no prefix": func(c *Config) { c.Prefix = "" },
		"TTL": func(c *Config) { c.TTL = time.Second + 1 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
