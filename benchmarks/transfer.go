package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

const (
	transferPause = 250 * time.Millisecond // between two transfers of one cluster
	leaderAsks    = 2000                   // of GET /leader, at all nodes in turn
)

// transferSUT is one kind of cluster whose leadership is moved.
type transferSUT struct {
	name      string
	cluster   *proc.Cluster
	viaClient bool
	path      func(target *proc.Node) (path, body string)

	write   func(context.Context, int) error
	gaps    []time.Duration // of writes
	took    []time.Duration // of the call
	failed  int
	endings []func()
}

// transfer measures what a client feels of a planned transfer under writes, in
// turns, on NorthStar and on bare hashicorp/raft at the same timeouts.
func (b *bench) transfer(ctx context.Context) error {
	sizes := []int{3, 5}
	if b.size != 0 {
		sizes = []int{b.size}
	}
	for _, size := range sizes {
		if err := b.transferOf(ctx, size); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (b *bench) transferOf(ctx context.Context, size int) (err error) {
	suts, err := b.startTransferSUTs(size)
	defer func() {
		for _, m := range suts {
			m.end()
		}
	}()
	if err != nil {
		return err
	}
	fmt.Printf("\nplanned transfer: %d nodes, timeouts %s to twice that, %d rounds under one writer; ms\n", size,
		failoverTimeout, b.transfers)
	for round := range b.transfers {
		for _, m := range suts {
			if err := m.round(ctx); err != nil {
				return fmt.Errorf("%s, round %d: %w\n%s", m.name, round+1, err, m.cluster.Logs())
			}
		}
		if (round+1)%10 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d rounds\n", round+1, b.transfers)
		}
	}
	fmt.Printf("  %-24s %24s %32s\n", "", "write gap p50/p99/max", "the call p50/p99/max, failed")
	for _, m := range suts {
		fmt.Printf("  %-24s %24s %32s\n", m.name, quantiles(m.gaps), fmt.Sprintf("%s, %d", quantiles(m.took), m.failed))
	}
	asked, err := askForLeader(ctx, suts[0].cluster)
	if err == nil {
		fmt.Printf("  %-24s %24s\n", "GET /leader", quantiles(asked))
	}
	return err
}

func quantiles(all []time.Duration) string {
	slices.Sort(all)
	q := func(f float64) string { return ms(load.Quantile(all, f)) }
	return fmt.Sprintf("%s / %s / %s", q(0.5), q(0.99), q(1))
}

// startTransferSUTs starts the clusters, and a writer for each.
func (b *bench) startTransferSUTs(size int) ([]*transferSUT, error) {
	northstar := func(n *proc.Node) (string, string) {
		return apiv1.PathTransfer, fmt.Sprintf(`{"target_leader_id":%q}`, n.ID)
	}
	all := []*transferSUT{{name: "northstar", path: northstar}, {
		name: "northstar, Go client", viaClient: true,
		path: northstar,
	}, {
		name: "bare raft", path: func(n *proc.Node) (string, string) { return "/transfer/" + n.ID + "/" + n.Raft, "" },
	}}
	for i, m := range all {
		var err error
		if m.name == "bare raft" {
			m.cluster, err = proc.Bare(b.baseline, size, "--timeout-min", failoverTimeout)
		} else {
			m.cluster, err = proc.NorthStar(b.northstar, size, "--failover-takeover-delay", "1h")
		}
		if err != nil {
			return all[:i], err
		}
		m.endings = append(m.endings, m.cluster.Close)
		if err := m.cluster.Start(); err != nil {
			return all[:i+1], err
		}
		var addrs []string
		for _, n := range m.cluster.Nodes {
			addrs = append(addrs, n.HTTP)
		}
		var done func()
		if m.viaClient {
			m.write, done, err = throughClient(addrs)
		} else {
			m.write, done = writeAnyNode(addrs, func() {})
		}
		if err != nil {
			return all[:i+1], err
		}
		m.endings = append(m.endings, done)
	}
	return all, nil
}

func (m *transferSUT) end() {
	for _, end := range slices.Backward(m.endings) {
		end()
	}
}

// round moves leadership once, under writes.
func (m *transferSUT) round(ctx context.Context) (err error) {
	leader, err := m.cluster.Leader(ctx)
	if err != nil {
		return err
	}
	target := leader
	for target == leader {
		target = m.cluster.Nodes[rand.IntN(len(m.cluster.Nodes))]
	}
	w := newWriter()
	w.write = m.write
	writing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	var wrong error
	running.Go(func() { wrong = w.run(writing) })
	defer func() { stop(); running.Wait(); err = errors.Join(err, wrong) }()
	if err := w.ackedAfter(ctx, time.Now()); err != nil {
		return err
	}
	if err := wait(ctx, transferPause/2+rand.N(transferPause)); err != nil {
		return err
	}
	path, body := m.path(target)
	at := time.Now()
	status, err := post(ctx, leader.HTTP, path, body)
	if err != nil {
		return err
	}
	m.took = append(m.took, time.Since(at))
	if status/100 != 2 {
		m.failed++
	}
	if err := w.ackedAfter(ctx, time.Now().Add(transferPause/2)); err != nil {
		return err
	}
	stop()
	running.Wait()
	gap, _ := w.gap(at, time.Now())
	m.gaps = append(m.gaps, gap)
	return nil
}

func post(ctx context.Context, addr, path, body string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// askForLeader measures GET /leader at all nodes in turn.
func askForLeader(ctx context.Context, c *proc.Cluster) ([]time.Duration, error) {
	var took []time.Duration
	for _, n := range c.Nodes {
		conn, err := load.Dial(ctx, n.HTTP)
		if err != nil {
			return nil, err
		}
		for range leaderAsks / len(c.Nodes) {
			at := time.Now()
			if status, err := conn.Do("GET", apiv1.PathLeader, nil); err != nil || status != 200 {
				conn.Close()
				return nil, fmt.Errorf("GET /leader at %s: %d %w", n.ID, status, err)
			}
			took = append(took, time.Since(at))
		}
		conn.Close()
	}
	return took, nil
}
