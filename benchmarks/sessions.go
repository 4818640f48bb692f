package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
	"northstar/client"
)

// What is measured of sessions.
const (
	keptTTL       = 10 * time.Second
	createClients = 64
	renewClients  = 256

	keptSettle = 12 * time.Second // longer than a TTL: what is not renewed has ended
	keptWindow = 20 * time.Second
)

// sessionSUT is one kind of cluster that keeps sessions, or leases.
type sessionSUT interface {
	leader(ctx context.Context) (*proc.Node, error)
	// keep starts sessions and keeps them: all over few connections, or each over
	// one of its own, which are to the leader. lost counts those that have ended.
	keep(ctx context.Context, n int, ttl time.Duration, connections bool) (lost func() (int, error), err error)
	// renew renews single sessions with so many clients, each of which waits for its answer.
	renew(ctx context.Context, clients int, d time.Duration) (load.Result, error)
}

// sessions measures what keeping sessions costs, on NorthStar and, as leases, on etcd.
func (b *bench) sessions(ctx context.Context) error {
	if err := b.keptSessions(ctx, b.attachedSessions, true); err != nil {
		return err
	}
	if err := b.keptSessions(ctx, b.renewedTogether, false); err != nil {
		return err
	}
	return b.renewals(ctx)
}

// contender starts a cluster by the name of its kind.
func (b *bench) contender(ctx context.Context, name string) (sessionSUT, error) {
	switch name {
	case "etcd":
		return b.startEtcd(ctx)
	case etcdAPI:
		return b.startEtcdAPI(ctx)
	}
	return b.startSessions(ctx)
}

func (b *bench) contenders() []string {
	if b.noCompare {
		return []string{"northstar"}
	}
	return []string{"northstar", "etcd"}
}

// keptSessions measures, on a fresh cluster of each kind, what its leader uses while it keeps sessions.
func (b *bench) keptSessions(ctx context.Context, n int, connections bool) error {
	how, aim := "renewed together", []any{28}
	if connections {
		how, aim = "each held by a connection to the leader", []any{"", "", 60}
	}
	fmt.Printf("\n%d sessions of %s, %s: the leader over %s\n", n, keptTTL, how, keptWindow)
	printRow("", "% of a core", "RSS MB", "KB each", "ended")
	for _, name := range b.contenders() {
		if err := errors.Join(b.keptBy(ctx, name, n, connections), b.close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	printRow("(aim)", aim...)
	return nil
}

func (b *bench) keptBy(ctx context.Context, name string, n int, connections bool) error {
	l, err := b.contender(ctx, name)
	if err != nil {
		return err
	}
	if err := wait(ctx, time.Second); err != nil { // of its start
		return err
	}
	leader, err := l.leader(ctx)
	if err != nil {
		return err
	}
	empty, err := leader.Usage()
	if err != nil {
		return err
	}
	lost, err := l.keep(ctx, n, keptTTL, connections)
	if err != nil {
		return err
	}
	if err := wait(ctx, keptSettle); err != nil {
		return err
	}
	before, err := leader.Usage()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := wait(ctx, keptWindow); err != nil {
		return err
	}
	after, err := leader.Usage()
	if err != nil {
		return err
	}
	window := time.Since(began)
	ended, err := lost()
	if err != nil {
		return err
	}
	still, err := l.leader(ctx)
	if err != nil {
		return err
	}
	if still != leader {
		name += ", whose leader changed meanwhile"
	}
	printRow(name, fmt.Sprintf("%.1f", 100*float64(after.CPU-before.CPU)/float64(window)),
		fmt.Sprintf("%.0f", float64(after.RSS)/(1<<20)),
		fmt.Sprintf("%.1f", float64(after.RSS-empty.RSS)/1024/float64(n)), ended)
	return nil
}

// renewals compares single renewals.
func (b *bench) renewals(ctx context.Context) error {
	names := b.contenders()
	all := make([]sessionSUT, len(names))
	for i, name := range names {
		var err error
		if all[i], err = b.contender(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	results := make([][]load.Result, len(all))
	for range b.rounds {
		for i, l := range all {
			r, err := l.renew(ctx, renewClients, b.duration)
			if err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			results[i] = append(results[i], r)
		}
	}
	fmt.Printf("\nsingle renewals: %d clients, each at the leader and one at a time, %s a run, median of %d\n",
		renewClients, b.duration, b.rounds)
	printRow("", "renewals/s", "p50 ms", "p99 ms")
	for i, name := range names {
		r := median(results[i])
		printRow(name, fmt.Sprintf("%.0f", r.PerSecond()), ms(r.P50), ms(r.P99))
	}
	printRow("(aim)", 7000)
	return nil
}

// nsSessions is a NorthStar cluster with a client.
type nsSessions struct {
	cluster *proc.Cluster
	client  *client.Client
	ctx     context.Context // ends with the measurement
	ids     []string        // of single renewals
}

func (b *bench) startSessions(ctx context.Context) (*nsSessions, error) {
	c, err := b.start(proc.NorthStar(b.northstar, 3))
	if err != nil {
		return nil, err
	}
	s := &nsSessions{cluster: c}
	if s.client, err = client.New(client.Config{Endpoints: addresses(c)}); err != nil {
		return nil, err
	}
	var stop context.CancelFunc
	s.ctx, stop = context.WithCancel(ctx)
	b.add(func() error { stop(); s.client.Close(); return nil })
	_, err = s.leader(ctx)
	return s, err
}

func (s *nsSessions) leader(ctx context.Context) (*proc.Node, error) { return s.cluster.Leader(ctx) }

func (s *nsSessions) create(ctx context.Context, ttl time.Duration) (id string, err error) {
	millis := ttl.Milliseconds()
	made, err := s.client.CreateSession(ctx, apiv1.SessionCreate{TTLMS: &millis})
	return made.SessionID, err
}

// keep has the client library keep sessions, or holds each by a connection that says nothing.
func (s *nsSessions) keep(ctx context.Context, n int, ttl time.Duration, connections bool) (func() (int, error),
	error,
) {
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, err
	}
	ended := make([]func() bool, n)
	var all errgroup.Group
	all.SetLimit(createClients)
	for i := range n {
		all.Go(func() (err error) {
			if connections {
				ended[i], err = s.attach(ctx, leader.HTTP, ttl)
				return err
			}
			kept, err := s.client.NewSession(s.ctx, client.SessionConfig{TTL: ttl})
			ended[i] = func() bool { return kept.Err() != nil }
			return err
		})
	}
	return func() (lost int, err error) {
		for _, f := range ended {
			if f() {
				lost++
			}
		}
		return lost, nil
	}, all.Wait()
}

// attach holds a session by a connection of its own, until the measurement ends.
func (s *nsSessions) attach(ctx context.Context, addr string, ttl time.Duration) (ended func() bool, err error) {
	id, err := s.create(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return s.stream(ctx, addr, apiv1.PathSessions+"/"+id+"/attach")
}

// stream opens a stream of events by a connection of its own, which lasts until the measurement ends. The function
// that it returns reports whether the stream has ended.
func (s *nsSessions) stream(ctx context.Context, addr, path string) (ended func() bool, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	request := "GET " + path + " HTTP/1.1\r\nHost: " + addr + "\r\nAccept: " +
		apiv1.TypeEventStream + "\r\n\r\n"
	first := make([]byte, 12) // HTTP/1.1 200
	if _, err = io.WriteString(conn, request); err == nil {
		_, err = io.ReadFull(conn, first)
	}
	if err == nil && string(first) != "HTTP/1.1 200" {
		err = fmt.Errorf("%s: %s", path, first)
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, conn) // the connection must not end, for any reason
		over.Store(true)
	}()
	return over.Load, err
}

func (s *nsSessions) renew(ctx context.Context, clients int, d time.Duration) (load.Result, error) {
	for len(s.ids) < clients {
		id, err := s.create(ctx, time.Minute)
		if err != nil {
			return load.Result{}, err
		}
		s.ids = append(s.ids, id)
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return load.Result{}, err
	}
	r, err := load.Run(ctx, leader.HTTP, clients, d, load.Op{
		Method: "POST", Path: func(c, _ int) string { return apiv1.PathSessions + "/" + s.ids[c] + "/renew" },
	})
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d renewals failed", r.Failed)
	}
	return r, err
}
