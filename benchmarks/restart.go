package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

const (
	pathReady  = "/readyz"            // of etcd, too
	readyPoll  = 2 * time.Millisecond // of /readyz of a node that starts
	readyWait  = time.Minute
	writeBatch = 32 // clients that write the entries which a restarted node replays
)

// keepLog has no snapshot shorten the log that is replayed.
var keepLog = []string{"--snapshot-threshold", "1000000000"}

// startSteps are those of a start: where each ends, by the clock of this machine, which the nodes share.
var startSteps = [...]struct{ name, field string }{
	{"the killed process is gone", ""},
	{"the program runs", ""},
	{"the data directory is checked and open", "storage_us"},
	{"raft runs", "raft_us"},
	{"a leader is known", "leader_us"},
	{"its commit index is known", "commit_us"},
	{"all of that is applied", "applied_us"},
	{"GET /readyz says so", ""},
}

// restarts are those of one cluster.
type restarts struct {
	name    string
	cluster *proc.Cluster
	leaders []time.Duration
	others  []time.Duration
	slowest string // round, for its logs
	longest time.Duration
	steps   [len(startSteps)][]time.Duration
	entries []float64 // applied in one start
}

// restart measures from kill -9 of a node, which is started again immediately, until it is ready. Every third one is
// the leader. With -entries the node has a log of so many entries to replay.
func (b *bench) restart(ctx context.Context) error {
	all, err := b.restartSubjects()
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := r.fill(ctx, b.entries, make([]byte, 256)); err != nil {
			return err
		}
	}
	for i := range b.restarts {
		for _, r := range all {
			if err := r.round(ctx, i); err != nil {
				return fmt.Errorf("%s: %w\n%s", r.name, err, r.cluster.Logs())
			}
		}
		progress("restart", i+1, b.restarts)
	}
	fmt.Printf("\nrestart: 3 processes, kill -9 of one and its start to ready, %d each, ms\n", b.restarts)
	printRow("", "p50", "p90", "p99", "max")
	for _, r := range all {
		r.print()
		if b.logs != "" {
			err = errors.Join(err, saveLogs(r.cluster, filepath.Join(b.logs, "restart-"+r.name+"-")))
		}
	}
	return err
}

// restartSubjects starts what is measured in turns.
func (b *bench) restartSubjects() (all []*restarts, err error) {
	add := func(name string, c *proc.Cluster, err error) error {
		c, err = b.start(c, err)
		all = append(all, &restarts{name: name, cluster: c})
		return err
	}
	extra := slices.Clone(keepLog)
	if b.logs != "" {
		extra = append(extra, "--log-level", "debug")
	}
	c, err := proc.NorthStar(b.northstar, 3, extra...)
	if err := add("northstar", c, err); err != nil {
		return nil, err
	}
	switch {
	case b.comparePath != "":
		c, err = proc.NorthStar(b.comparePath, 3, extra...)
		err = add(b.other(), c, err)
	case !b.noCompare:
		c, err = proc.Etcd(b.etcdBin, 3)
		err = add("etcd", c, err)
	}
	return all, err
}

// ours reports whether the cluster is of this project.
func (r *restarts) ours() bool { return r.cluster.Kind == "northstar" }

// leader returns the index of the leader.
func (r *restarts) leader(ctx context.Context) (int, error) {
	find := r.cluster.Leader
	if !r.ours() {
		find = func(ctx context.Context) (*proc.Node, error) { return etcdLeader(ctx, r.cluster) }
	}
	n, err := find(ctx)
	return slices.Index(r.cluster.Nodes, n), err
}

// victim returns the index of the node that round i kills, of n nodes, and reports whether that is the leader.
func victim(leader, i, n int) (node int, leads bool) { return (leader + i) % n, i%n == 0 }

// fill writes so many entries, with several clients at a time to save time: one entry has several writes then.
func (r *restarts) fill(ctx context.Context, entries int, value []byte) error {
	if err := r.whole(ctx); err != nil || entries == 0 || !r.ours() {
		return err
	}
	leader, err := r.cluster.Leader(ctx)
	if err != nil {
		return err
	}
	result := make(chan error)
	for i := range writeBatch {
		go func() { result <- fillFrom(ctx, leader.HTTP, i, entries, value) }()
	}
	for range writeBatch {
		err = errors.Join(err, <-result)
	}
	return err
}

// fillFrom writes entries with one connection until the leader's log is long enough.
func fillFrom(ctx context.Context, address string, client, entries int, value []byte) error {
	conn, err := load.Dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := 0; ; i++ {
		path := fmt.Sprintf("%sfill-%d-%d", apiv1.PathKVPrefix, client, i%1000)
		if status, err := conn.Do("PUT", path, value); err != nil || status/100 != 2 {
			return fmt.Errorf("PUT %s: %d %w", path, status, err)
		}
		if i%100 != 0 {
			continue
		}
		status, err := get[apiv1.Status](ctx, &proc.Node{HTTP: address}, apiv1.PathStatus)
		if err != nil || status.LastLogIndex >= uint64(entries) {
			return err
		}
	}
}

// whole waits until every node is ready.
func (r *restarts) whole(ctx context.Context) error {
	for _, n := range r.cluster.Nodes {
		if _, err := r.awaitReady(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady returns when a node says that it is ready.
func (r *restarts) awaitReady(ctx context.Context, n *proc.Node) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	url := "http://" + n.HTTP + pathReady
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return time.Time{}, err
		}
		if resp, err := probes.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Now(), nil
			}
		}
		if err := wait(ctx, readyPoll); err != nil {
			return time.Time{}, fmt.Errorf("%s is not ready: %w", n.ID, err)
		}
	}
}

// probes opens a connection for each request: one to a killed process is of no use.
var probes = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// round kills one node of a cluster that is whole, and starts it again.
func (r *restarts) round(ctx context.Context, i int) error {
	if err := r.whole(ctx); err != nil {
		return err
	}
	if err := wait(ctx, settleTime+rand.N(warmUp)); err != nil {
		return err
	}
	leader, err := r.leader(ctx)
	if err != nil {
		return err
	}
	node, leads := victim(leader, i, len(r.cluster.Nodes))
	n := r.cluster.Nodes[node]
	killed := time.Now()
	n.Kill()
	gone := time.Now()
	if err := r.cluster.StartNode(n); err != nil {
		return err
	}
	ready, err := r.awaitReady(ctx, n)
	if err != nil {
		return err
	}
	if took := ready.Sub(killed); took > r.longest {
		r.longest = took
		r.slowest = fmt.Sprintf("%s, killed at %s", n.ID, killed.Format("15:04:05.000"))
	}
	if leads {
		r.leaders = append(r.leaders, ready.Sub(killed))
	} else {
		r.others = append(r.others, ready.Sub(killed))
	}
	if r.ours() {
		return r.readSteps(ctx, n, killed, gone, ready)
	}
	return nil
}

// readSteps reads the node's own event of its start. An older build has none.
func (r *restarts) readSteps(ctx context.Context, n *proc.Node, killed, gone, ready time.Time) error {
	events, err := eventsOf(ctx, n, "node")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(events, func(e apiv1.Event) bool {
		_, hasSteps := e.Fields["steps"].(map[string]any)
		return e.Node == n.ID && hasSteps && e.At.After(gone)
	})
	if i < 0 {
		return nil
	}
	steps, _ := events[i].Fields["steps"].(map[string]any)
	text, _ := steps["started_at"].(string)
	started, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return err
	}
	ends := [len(startSteps)]time.Time{gone, started}
	for k, s := range startSteps {
		if us, ok := steps[s.field].(float64); ok {
			ends[k] = started.Add(time.Duration(us) * time.Microsecond)
		}
	}
	ends[len(ends)-1] = ready
	last := killed
	for k, at := range ends {
		if at.IsZero() {
			continue
		}
		r.steps[k] = append(r.steps[k], max(0, at.Sub(last)))
		last = at
	}
	if entries, ok := events[i].Fields["entries"].(float64); ok {
		r.entries = append(r.entries, entries)
	}
	return nil
}

func (r *restarts) print() {
	qs := []float64{0.5, 0.9, 0.99, 1}
	printRow(r.name+", all", quantiles(slices.Concat(r.leaders, r.others), qs...)...)
	printRow("  the leader", quantiles(r.leaders, qs...)...)
	printRow("  another node", quantiles(r.others, qs...)...)
	fmt.Printf("    the longest: %s\n", r.slowest)
	for k, s := range startSteps {
		if len(r.steps[k]) > 0 {
			printRow("    "+s.name, quantiles(r.steps[k], qs...)...)
		}
	}
	if len(r.entries) > 0 {
		slices.Sort(r.entries)
		fmt.Printf("    a start applies %.0f entries (median)\n", r.entries[len(r.entries)/2])
	}
}
