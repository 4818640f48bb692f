package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
	"northstar/client"
)

// What is measured of sessions.
const (
	keptTTL       = 10 * time.Second
	renewTogether = 1000 // sessions in one request
	createClients = 64

	renewClients = 256

	keptSettle = 12 * time.Second // longer than a TTL: what is not renewed has ended
	keptWindow = 20 * time.Second
)

// sessionSUT is one kind of cluster that keeps sessions, or leases.
type sessionSUT interface {
	leader(ctx context.Context) (*proc.Node, error)
	// keep starts sessions and keeps them: all over few connections, or each over
	// one of its own, which are to the leader. lost counts those that have ended.
	keep(ctx context.Context, n int, ttl time.Duration, connections bool) (lost func() (int, error), err error)
	// renew renews single sessions with so many clients, each of which waits for
	// its answer.
	renew(ctx context.Context, clients int, d time.Duration) (load.Result, error)
	close()
}

// sessions measures what keeping sessions costs, on NorthStar and, as leases, on
// etcd.
func (b *bench) sessions(ctx context.Context) error {
	fmt.Println(describeHost())
	if err := b.keptSessions(ctx, b.attachedSessions, true); err != nil {
		return err
	}
	if err := b.keptSessions(ctx, b.renewedTogether, false); err != nil {
		return err
	}
	return b.renewals(ctx)
}

// contenders names the kinds of clusters, and starts one of each.
func (b *bench) contenders() (names []string, start map[string]func(context.Context) (sessionSUT, error)) {
	start = map[string]func(context.Context) (sessionSUT, error){
		"northstar": func(ctx context.Context) (sessionSUT, error) { return b.startSessions(ctx) },
		"etcd":      func(ctx context.Context) (sessionSUT, error) { return b.startEtcd(ctx) },
	}
	if b.noCompare {
		return []string{"northstar"}, start
	}
	return []string{"northstar", "etcd"}, start
}

// keptSessions measures, on a fresh cluster of each kind, what its leader uses
// while it keeps sessions.
func (b *bench) keptSessions(ctx context.Context, n int, connections bool) error {
	how := fmt.Sprintf("%d renewed together, each every %s", renewTogether, (keptTTL / 3).Round(time.Millisecond))
	if connections {
		how = "each held by a connection to the leader"
	}
	fmt.Printf("\n%d sessions of %s, %s: the leader over %s\n", n, keptTTL, how, keptWindow)
	fmt.Printf("  %-10s %12s %10s %16s %8s\n", "", "% of a core", "RSS MB", "KB a session", "ended")
	names, start := b.contenders()
	for _, name := range names {
		if err := keptBy(ctx, name, start[name], n, connections); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if connections {
		fmt.Printf("  %-10s %12s %10s %16d\n", "(aim)", "", "", 60)
	} else {
		fmt.Printf("  %-10s %12d\n", "(aim)", 28)
	}
	return nil
}

func keptBy(ctx context.Context, name string, start func(context.Context) (sessionSUT, error), n int,
	connections bool,
) error {
	l, err := start(ctx)
	if err != nil {
		return err
	}
	defer l.close()
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
	note := ""
	if still != leader {
		note = "   the leader changed meanwhile"
	}
	fmt.Printf("  %-10s %12.1f %10.0f %16.1f %8d%s\n", name, 100*float64(after.CPU-before.CPU)/float64(window),
		float64(after.RSS)/(1<<20), float64(after.RSS-empty.RSS)/1024/float64(n), ended, note)
	return nil
}

// renewals compares single renewals.
func (b *bench) renewals(ctx context.Context) error {
	names, start := b.contenders()
	all := make([]sessionSUT, 0, len(names))
	defer func() {
		for _, l := range all {
			l.close()
		}
	}()
	for _, name := range names {
		l, err := start[name](ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, l)
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
	fmt.Printf("  %-10s %10s %9s %9s\n", "", "renewals/s", "p50 ms", "p99 ms")
	for i, name := range names {
		r := median(results[i])
		fmt.Printf("  %-10s %10.0f %9s %9s\n", name, r.PerSecond(), ms(r.P50), ms(r.P99))
	}
	fmt.Printf("  %-10s %10d\n", "(aim)", 7000)
	return nil
}

// nsSessions is a NorthStar cluster with a client.
type nsSessions struct {
	cluster *proc.Cluster
	client  *client.Client
	ctx     context.Context // ends with close
	stop    context.CancelFunc
	running sync.WaitGroup
	ids     []string // of single renewals
}

func (b *bench) startSessions(ctx context.Context) (*nsSessions, error) {
	c, err := proc.NorthStar(b.northstar, 3)
	if err != nil {
		return nil, err
	}
	s := &nsSessions{cluster: c}
	s.ctx, s.stop = context.WithCancel(ctx)
	if s.client, err = client.New(client.Config{Endpoints: addresses(c)}); err == nil {
		err = c.Start()
	}
	if err == nil {
		_, err = s.leader(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *nsSessions) close() {
	s.stop()
	s.running.Wait()
	if s.client != nil {
		s.client.Close()
	}
	s.cluster.Close()
}

func (s *nsSessions) leader(ctx context.Context) (*proc.Node, error) { return s.cluster.Leader(ctx) }

// create starts sessions, and hands on each.
func (s *nsSessions) create(ctx context.Context, n int, ttl time.Duration, each func(id string) error) error {
	var next atomic.Int64
	errs := make(chan error, createClients)
	millis := ttl.Milliseconds()
	var all sync.WaitGroup
	for range createClients {
		all.Go(func() {
			for int(next.Add(1)) <= n {
				made, err := s.client.CreateSession(ctx, apiv1.SessionCreate{TTLMS: &millis})
				if err == nil {
					err = each(made.SessionID)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

func (s *nsSessions) keep(ctx context.Context, n int, ttl time.Duration, connections bool) (func() (int, error),
	error,
) {
	lost := &losses{}
	if connections {
		leader, err := s.leader(ctx)
		if err != nil {
			return nil, err
		}
		return lost.count, s.create(ctx, n, ttl, func(id string) error { return s.attach(ctx, leader.HTTP, id, lost) })
	}
	var mu sync.Mutex
	var batch []string
	err := s.create(ctx, n, ttl, func(id string) error {
		mu.Lock()
		defer mu.Unlock()
		if batch = append(batch, id); len(batch) == min(renewTogether, n) {
			full := batch
			s.running.Go(func() { s.renewAll(full, ttl, lost) })
			batch = nil
		}
		return nil
	})
	if err == nil && len(batch) > 0 {
		err = fmt.Errorf("%d sessions do not fill a request of %d", len(batch), renewTogether)
	}
	return lost.count, err
}

// losses counts sessions that have ended, and keeps the first thing that went
// wrong.
type losses struct {
	mu    sync.Mutex
	ended int
	err   error
}

func (l *losses) add(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended += n
	l.err = errors.Join(l.err, err)
}

func (l *losses) count() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended, l.err
}

// renewAll renews sessions together, three times in their TTL.
func (s *nsSessions) renewAll(ids []string, ttl time.Duration, lost *losses) {
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		got, err := s.client.RenewSessions(s.ctx, ids)
		if s.ctx.Err() != nil {
			return
		}
		if len(got.Ended) > 0 || err != nil {
			lost.add(len(got.Ended), err)
			return
		}
	}
}

// attach holds a session by a connection of its own.
func (s *nsSessions) attach(ctx context.Context, addr, id string, lost *losses) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	request := "GET " + apiv1.PathSessions + "/" + id + "/attach HTTP/1.1\r\nHost: " + addr + "\r\nAccept: " +
		apiv1.TypeEventStream + "\r\n\r\n"
	first := make([]byte, 12) // HTTP/1.1 200
	if _, err = io.WriteString(conn, request); err == nil {
		_, err = io.ReadFull(conn, first)
	}
	if err == nil && string(first) != "HTTP/1.1 200" {
		err = fmt.Errorf("attach: %s", first)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	s.running.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // the connection must not end, for any reason
		if s.ctx.Err() == nil {
			lost.add(1, nil)
		}
	})
	return nil
}

func (s *nsSessions) renew(ctx context.Context, clients int, d time.Duration) (load.Result, error) {
	if len(s.ids) < clients {
		var mu sync.Mutex
		err := s.create(ctx, clients-len(s.ids), time.Minute, func(id string) error {
			mu.Lock()
			defer mu.Unlock()
			s.ids = append(s.ids, id)
			return nil
		})
		if err != nil {
			return load.Result{}, err
		}
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
