package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

const (
	soakClients        = 64
	soakSize           = 3
	statusPollInterval = 20 * time.Millisecond // how often every node is asked for term and leader
	progressInterval   = time.Minute
)

// errElections is what the soak test must not cause.
var errElections = errors.New("elections in the soak test")

// soak keeps the machine busy with writes for minutes and wants no election
// after the first. It looks from outside: at every node's term and leader, and at
// the cluster's own records.
func (b *bench) soak(ctx context.Context) error {
	c, err := proc.NorthStar(b.northstar, soakSize, "--log-level", "info")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Start(); err != nil {
		return err
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	if err := wait(ctx, settleTime); err != nil { // the first election and what follows it
		return err
	}
	length := time.Duration(b.minutes * float64(time.Minute))
	fmt.Printf("\nsoak: %d nodes, %d clients, %d B values, load sent to the leader, %s\n", soakSize, soakClients,
		valueSize, length)
	before, err := electionsOf(ctx, leader)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	s := &soakRun{cluster: c, began: time.Now(), term: before.term()}
	s.leader.Store(leader)
	late, stop := monitorHost(context.WithoutCancel(ctx))
	s.late = late
	s.run(ctx)
	m := stop()
	return s.report(before, m)
}

// soakRun is one run and what it has seen.
type soakRun struct {
	cluster *proc.Cluster
	began   time.Time
	late    *hostLatency
	leader  atomic.Pointer[proc.Node]

	term    uint64 // the newest seen; belongs to watch, like the counters
	moves   []change
	terms   int
	leaders int

	acks         latencies
	errs         atomic.Int64
	lastErr      atomic.Value // string
	gapMu        sync.Mutex
	lastAck      time.Time
	longest      time.Duration
	longestEnded time.Time
}

// change is one change of term or leader that was seen from outside.
type change struct {
	at          time.Time
	what        string
	lateCPU     time.Duration // the longest that a thread waited for a processor in the second before
	stalledDisk time.Duration // and for one small sync
}

func (s *soakRun) run(ctx context.Context) {
	var all sync.WaitGroup
	s.lastAck = s.began
	for i := range soakClients {
		all.Go(func() { s.client(ctx, i) })
	}
	all.Go(func() { s.watch(ctx) })
	all.Go(func() { s.progress(ctx) })
	all.Wait()
}

// client writes to the leader without a pause. It goes on after an error.
func (s *soakRun) client(ctx context.Context, i int) {
	value := benchValue()
	var conn *load.Conn
	var at string
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for n := 0; ctx.Err() == nil; n++ {
		sent := time.Now()
		if to := s.leader.Load().HTTP; conn == nil || to != at {
			if conn != nil {
				conn.Close()
			}
			var err error
			if conn, err = load.Dial(ctx, to); err != nil {
				s.failed(ctx, err)
				conn = nil
				_ = wait(ctx, statusPollInterval)
				continue
			}
			at = to
		}
		status, err := conn.Do("PUT", benchKey(i, n), value)
		if err == nil && status/100 != 2 {
			err = fmt.Errorf("status %d", status)
		} else if err != nil {
			conn.Close()
			conn = nil
		}
		if err != nil {
			s.failed(ctx, err)
			continue
		}
		s.acked(sent, time.Now())
	}
}

func (s *soakRun) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.errs.Add(1)
		s.lastErr.Store(err.Error())
	}
}

func (s *soakRun) acked(sent, now time.Time) {
	s.acks.add(now.Sub(sent))
	s.gapMu.Lock()
	defer s.gapMu.Unlock()
	if gap := now.Sub(s.lastAck); gap > s.longest {
		s.longest, s.longestEnded = gap, now
	}
	if now.After(s.lastAck) {
		s.lastAck = now
	}
}

// watch asks every node, all the time, for its term and leader.
func (s *soakRun) watch(ctx context.Context) {
	seen := ""
	if n := s.leader.Load(); n != nil {
		seen = n.ID
	}
	for n := 0; ctx.Err() == nil; n++ {
		node := s.cluster.Nodes[n%len(s.cluster.Nodes)]
		if st, err := get[apiv1.Status](ctx, node, apiv1.PathStatus); err == nil {
			if st.Term > s.term {
				s.terms++
				s.moved("term %d -> %d, seen on %s", s.term, st.Term, node.ID)
				s.term = st.Term
			}
			if st.LeaderID != "" && st.LeaderID != seen && st.Term == s.term {
				s.leaders++
				s.moved("leader %s -> %s, seen on %s", seen, st.LeaderID, node.ID)
				seen = st.LeaderID
				for _, n := range s.cluster.Nodes {
					if n.ID == seen {
						s.leader.Store(n)
					}
				}
			}
		}
		_ = wait(ctx, statusPollInterval/time.Duration(len(s.cluster.Nodes)))
	}
}

func (s *soakRun) moved(format string, args ...any) {
	cpu, disk := s.late.recent(time.Second)
	c := change{at: time.Now(), what: fmt.Sprintf(format, args...), lateCPU: cpu, stalledDisk: disk}
	s.moves = append(s.moves, c)
	fmt.Fprintf(os.Stderr,
		"%8s  %s; in the second before, a thread waited up to %s ms for a processor, a sync took up to %s ms\n",
		c.at.Sub(s.began).Round(time.Millisecond), c.what, ms(cpu), ms(disk))
}

func (s *soakRun) progress(ctx context.Context) {
	for wait(ctx, progressInterval) == nil {
		fmt.Fprintf(os.Stderr, "%8s  %d writes, %d errors\n", time.Since(s.began).Round(time.Second), s.acks.count(),
			s.errs.Load())
	}
}

func (s *soakRun) report(before elections, m hostStats) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	after, err := electionsOf(ctx, s.leader.Load())
	if err != nil {
		return err
	}
	fresh := after.since(before.term())
	failed := lostElections(ctx, s.leader.Load(), before.term())
	elapsed := time.Since(s.began)
	fmt.Printf("  writes      %d, %.0f/s, %d errors", s.acks.count(), float64(s.acks.count())/elapsed.Seconds(),
		s.errs.Load())
	if e, ok := s.lastErr.Load().(string); ok {
		fmt.Printf(", the last: %s", e)
	}
	fmt.Printf("\n  latency     p50 %s  p99 %s  max %s ms\n", ms(s.acks.quantile(0.5)), ms(s.acks.quantile(0.99)),
		ms(s.acks.quantile(1)))
	fmt.Printf("  no write    for %s ms at most, %s after the start\n", ms(s.longest),
		s.longestEnded.Sub(s.began).Round(time.Millisecond))
	fmt.Printf("  processors  %.0f %% busy, %.0f %% of it this load's; a thread that wants one waits p50 %s  p99 %s  p99.99 %s  max %s ms\n",
		100*m.busy, 100*m.own, ms(m.cpu.quantile(0.5)), ms(m.cpu.quantile(0.99)), ms(m.cpu.quantile(0.9999)),
		ms(m.cpu.quantile(1)))
	fmt.Printf("  disk        a sync of 4 KiB takes p50 %s  p99 %s  p99.99 %s  max %s ms\n", ms(m.disk.quantile(0.5)),
		ms(m.disk.quantile(0.99)), ms(m.disk.quantile(0.9999)), ms(m.disk.quantile(1)))
	fmt.Printf("  elections   %d, term changes %d, leader changes %d, candidacies that came to nothing %d\n",
		len(fresh), s.terms, s.leaders, len(failed))
	for _, e := range fresh {
		fmt.Printf("    term %d at %s: %s leads, trigger %s, leaderless for %d ms: %s\n", e.Term,
			e.StartedAt.Sub(s.began).Round(time.Millisecond), e.CandidateID, e.Trigger, e.LeaderlessMS, e.Reason)
	}
	for _, e := range failed {
		fmt.Printf("    at %s: %s\n", e.At.Sub(s.began).Round(time.Millisecond), e.Message)
	}
	for _, c := range s.moves {
		fmt.Printf("    at %s: %s; in the second before, a thread waited up to %s ms for a processor, a sync took up to %s ms\n", c.at.Sub(s.began).Round(time.Millisecond), c.what, ms(c.lateCPU), ms(c.stalledDisk))
	}
	if len(fresh)+s.terms+len(failed) == 0 {
		return nil
	}
	return errors.Join(errElections, s.keepLogs())
}

// keepLogs saves the nodes' logs: their directory goes with the cluster.
func (s *soakRun) keepLogs() error {
	dir, err := os.MkdirTemp("", "northstar-bench-logs-")
	if err != nil {
		return err
	}
	for _, n := range s.cluster.Nodes {
		if err := os.WriteFile(filepath.Join(dir, n.ID+".log"), []byte(s.cluster.Log(n)), 0o600); err != nil {
			return err
		}
	}
	fmt.Printf("  the nodes' logs are in %s\n", dir)
	return nil
}
