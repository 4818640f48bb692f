package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// diskCommand makes this program run another one on a disk whose syncs are delayed.
const diskCommand = "disk"

// diskRow is how slow some disks are.
type diskRow struct {
	name  string
	sync  time.Duration // how much longer each sync takes
	stall time.Duration // of all syncs, in each stallEvery; 0: none
	all   bool          // on all nodes, else on the node that leads at the start, or at the stall
}

// diskRows are what is measured.
func diskRows() (rows []diskRow) {
	add := func(name string, sync, stall time.Duration) {
		rows = append(rows, diskRow{name + ", the leader's disk", sync, stall, false},
			diskRow{name + ", all disks", sync, stall, true})
	}
	for _, n := range []int{1, 10, 30, 100} {
		add(fmt.Sprintf("syncs of %d ms", n), time.Duration(n)*time.Millisecond, 0)
	}
	for _, n := range []int{1, 2, 5} {
		add(fmt.Sprintf("stalls of %d s", n), 0, time.Duration(n)*time.Second)
	}
	return rows
}

const (
	diskClients   = 16
	diskPoll      = 20 * time.Millisecond
	stallEvery    = 5 * time.Second // from the end of one stall to the next
	diskValueSize = 256
)

// disks measures clusters with slow disks and stalls under load: writes, elections, and how long writes wait. All
// systems get the same requests, of the JSON gateway of etcd's API, from clients that are spread over all nodes.
func (b *bench) disks(ctx context.Context) error {
	length := time.Duration(b.minutes * float64(time.Minute))
	fmt.Printf("\ndisks: 3 nodes, %d clients, %s a row; pauses between two acknowledgements of any client in ms\n",
		diskClients, length)
	for _, row := range diskRows() {
		if !strings.Contains(row.name, b.only) {
			continue
		}
		fmt.Println(row.name)
		printRow("", "writes/s", "errors", "terms", "needless/h", "pause p50", "max", "moved s")
		for _, name := range b.diskSystems() {
			cells, err := b.diskRow(ctx, name, row, length)
			if err = errors.Join(err, b.close()); err != nil {
				return fmt.Errorf("%s, %s: %w", row.name, name, err)
			}
			printRow(name, cells...)
		}
	}
	return nil
}

// printElections prints why a cluster of this project has elected leaders.
func (r *diskRun) printElections(ctx context.Context, after uint64) error {
	if r.cluster.Kind != "northstar" {
		return nil
	}
	leader, err := r.cluster.Leader(ctx)
	if err != nil {
		return err
	}
	all, err := electionsOf(ctx, leader)
	for _, e := range all.since(after) {
		fmt.Printf("    term %d at %s: %s leads, trigger %s, leaderless for %d ms: %s\n", e.Term,
			e.StartedAt.UTC().Format("15:04:05.000"), e.CandidateID, e.Trigger, e.LeaderlessMS, e.Reason)
	}
	return err
}

// diskSystems names what is measured.
func (b *bench) diskSystems() []string {
	names := []string{"northstar"}
	if b.comparePath != "" {
		names = append(names, b.other())
	}
	for _, set := range etcdSettings {
		if !b.noCompare {
			names = append(names, fmt.Sprintf("etcd %d/%d ms", set.heartbeat, set.election))
		}
	}
	return names
}

// diskCluster starts the cluster of a system, with a disk for each node.
func (b *bench) diskCluster(name string) (c *proc.Cluster, disks map[*proc.Node]*proc.Disk, err error) {
	var heartbeat, election int
	switch _, err := fmt.Sscanf(name, "etcd %d/%d ms", &heartbeat, &election); {
	case err == nil:
		args := []string{"--heartbeat", fmt.Sprint(heartbeat), "--election", fmt.Sprint(election)}
		if c, err = b.own(proc.Etcd(b.etcdBin, 3, args...)); err != nil {
			return nil, nil, err
		}
	default:
		bin := b.northstar
		if name == b.other() {
			bin = b.comparePath
		}
		level := "warn"
		if b.logs != "" {
			level = "debug"
		}
		if c, err = b.own(proc.EtcdAPI(bin, 3, "--log-level", level)); err != nil {
			return nil, nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	disks = map[*proc.Node]*proc.Disk{}
	for _, n := range c.Nodes {
		if disks[n], err = c.AttachDisk(n, self, diskCommand); err != nil {
			return nil, nil, err
		}
		b.add(func() error { c.KillAll(); return disks[n].Close() })
	}
	return c, disks, c.Start()
}

// diskRun is one system with one kind of slow disks.
type diskRun struct {
	row     diskRow
	cluster *proc.Cluster
	disks   map[*proc.Node]*proc.Disk
	every   time.Duration // from one write of a client to its next one at least; 0: as fast as they are answered
	errs    atomic.Int64

	mu     sync.Mutex
	acks   []time.Time
	term   uint64 // the newest seen
	terms  int    // how often it changed
	leader string // member ID
	moved  time.Time
}

// diskRow measures one row of one system.
func (b *bench) diskRow(
	ctx context.Context, name string, row diskRow, length time.Duration,
) (cells []any, err error) {
	c, disks, err := b.diskCluster(name)
	if err != nil {
		return nil, err
	}
	r := &diskRun{row: row, cluster: c, disks: disks}
	if b.rate > 0 {
		r.every = diskClients * time.Second / time.Duration(b.rate)
	}
	leader, err := etcdLeader(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, settleTime); err != nil {
		return nil, err
	}
	st, err := memberStatusOf(ctx, leader)
	if err != nil {
		return nil, err
	}
	r.term, r.leader = st.Term, st.Leader
	defer func() { err = errors.Join(err, r.printElections(ctx, st.Term)) }()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for i := range diskClients {
		all.Go(func() { r.client(running, i) })
	}
	all.Go(func() { r.watch(running) })
	if err := wait(ctx, 3*settleTime); err != nil { // under load before the disks are slow
		return nil, err
	}
	began := time.Now()
	var stalls []time.Time
	if row.stall > 0 {
		stalls, err = r.stall(ctx, length)
	} else {
		r.slow(leader)
		err = wait(ctx, length)
	}
	took := time.Since(began)
	cancel()
	all.Wait()
	if b.logs != "" {
		err = errors.Join(err, os.MkdirAll(b.logs, 0o755),
			saveLogs(c, fmt.Sprintf("%s/%s-%s-", b.logs, row.name, strings.ReplaceAll(name, "/", "-"))))
	}
	if err != nil {
		return nil, err
	}
	return r.report(began, took, stalls), nil
}

// slow makes the disks of the row slow.
func (r *diskRun) slow(leader *proc.Node) {
	for n, d := range r.disks {
		if r.row.all || n == leader {
			d.Delay(r.row.sync)
		}
	}
}

// stall stalls the disk of the present leader, or all disks, again and again.
func (r *diskRun) stall(ctx context.Context, length time.Duration) (began []time.Time, err error) {
	for end := time.Now().Add(length); time.Now().Before(end); {
		leader, err := etcdLeader(ctx, r.cluster)
		if err != nil {
			return began, err
		}
		began = append(began, time.Now())
		for n, d := range r.disks {
			if r.row.all || n == leader {
				d.Stall()
			}
		}
		err = wait(ctx, r.row.stall)
		for _, d := range r.disks {
			d.Resume()
		}
		if err = errors.Join(err, wait(ctx, stallEvery)); err != nil {
			return began, err
		}
	}
	return began, nil
}

// client writes through one node, one write after the other.
func (r *diskRun) client(ctx context.Context, i int) {
	addr := etcdEndpoint(r.cluster.Nodes[i%len(r.cluster.Nodes)])
	value := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("v", diskValueSize)))
	var conn *load.Conn
	for n := 0; ctx.Err() == nil; n++ {
		var err error
		began := time.Now()
		if conn == nil {
			conn, err = load.Dial(ctx, addr)
		}
		status := 0
		if err == nil {
			key := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "/disks/%d/%d", i, n%100))
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			status, err = conn.Do("POST", "/v3/kv/put", fmt.Appendf(nil, `{"key":%q,"value":%q}`, key, value))
			stop()
		}
		switch {
		case ctx.Err() != nil:
		case err == nil && status == 200:
			r.mu.Lock()
			r.acks = append(r.acks, time.Now())
			r.mu.Unlock()
			_ = wait(ctx, r.every-time.Since(began))
			continue
		default:
			r.errs.Add(1)
			_ = wait(ctx, diskPoll)
		}
		if err != nil && conn != nil {
			_ = conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// watch asks the nodes in turn for their term and leader.
func (r *diskRun) watch(ctx context.Context) {
	for i := 0; wait(ctx, diskPoll) == nil; i++ {
		st, err := memberStatusOf(ctx, r.cluster.Nodes[i%len(r.cluster.Nodes)])
		if err != nil {
			continue
		}
		r.mu.Lock()
		if st.Term > r.term {
			r.term = st.Term
			r.terms++
		}
		if st.Term == r.term && st.Leader != "" && st.Leader != "0" && st.Leader != r.leader {
			r.leader = st.Leader
			if r.moved.IsZero() {
				r.moved = time.Now()
			}
		}
		r.mu.Unlock()
	}
}

// report returns the cells of a row. An election is needless unless it is one away from a leader whose disk is slower
// than others, or the first one after each stall of the leader's disk.
func (r *diskRun) report(began time.Time, took time.Duration, stalls []time.Time) []any {
	useful := len(stalls)
	switch {
	case r.row.all:
		useful = 0
	case r.row.stall == 0:
		useful = 1
	}
	needless := max(0, r.terms-useful)
	slices.SortFunc(r.acks, time.Time.Compare)
	if len(stalls) == 0 {
		stalls = []time.Time{began}
	}
	pauses := pausesAfter(r.acks, stalls, began.Add(took))
	slices.Sort(pauses)
	moved := "-"
	if !r.moved.IsZero() && r.row.stall == 0 {
		moved = fmt.Sprintf("%.1f", r.moved.Sub(began).Seconds())
	}
	done := len(r.acks) - countBefore(r.acks, began)
	return []any{
		fmt.Sprintf("%.0f", float64(done)/took.Seconds()), r.errs.Load(), r.terms,
		fmt.Sprintf("%.0f", float64(needless)*time.Hour.Seconds()/took.Seconds()),
		ms(load.Quantile(pauses, 0.5)), ms(load.Quantile(pauses, 1)), moved,
	}
}

// pausesAfter returns the longest pause after the begin of each stall, and before the next one.
func pausesAfter(acks, stalls []time.Time, end time.Time) (pauses []time.Duration) {
	for i, from := range stalls {
		until := end
		if i+1 < len(stalls) {
			until = stalls[i+1]
		}
		pauses = append(pauses, longestPause(acks, from, until))
	}
	return pauses
}

// longestPause returns the longest time between two successive times, the second of which is in the interval. The end
// of the interval counts as one.
func longestPause(acks []time.Time, from, until time.Time) (longest time.Duration) {
	last := from
	if before := countBefore(acks, from); before > 0 {
		last = acks[before-1]
	}
	for _, at := range append(slices.Clone(acks[countBefore(acks, from):countBefore(acks, until)]), until) {
		longest, last = max(longest, at.Sub(last)), at
	}
	return longest
}

// countBefore returns how many of the sorted times are before at.
func countBefore(times []time.Time, at time.Time) int {
	n, _ := slices.BinarySearchFunc(times, at, time.Time.Compare)
	return n
}
