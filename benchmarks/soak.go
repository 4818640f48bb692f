package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// soak keeps the machine busy with writes for minutes and wants no election after the first. It looks from outside:
// at every node's term and leader, and at the cluster's own records.
func (b *bench) soak(ctx context.Context) error {
	c, err := b.start(proc.NorthStar(b.northstar, soakSize, "--log-level", "info"))
	if err != nil {
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
	s.lastAck = s.began
	s.leader.Store(leader)
	used := processorTimeOf(c)
	var all sync.WaitGroup
	for i := range soakClients {
		all.Go(func() { s.client(ctx, i) })
	}
	for _, f := range []func(context.Context){s.watch, s.progress, s.host.sampleCPU, s.host.sampleDisk} {
		all.Go(func() { f(ctx) })
	}
	all.Wait()
	s.end(ctx, time.Now())
	return s.report(before.term(), used)
}

// soakRun is one run and what it has seen.
type soakRun struct {
	cluster *proc.Cluster
	began   time.Time
	host    host
	leader  atomic.Pointer[proc.Node]

	term    uint64   // the newest seen; belongs to watch, like what follows
	moves   []string // changes of term or leader that were seen from outside
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

// client writes to the leader without a pause. It goes on after an error.
func (s *soakRun) client(ctx context.Context, i int) {
	op := benchWrite()
	var conn *load.Conn
	var at *proc.Node
	drop := func() {
		if conn != nil {
			conn.Close()
		}
		conn = nil
	}
	defer drop()
	for n := 0; ctx.Err() == nil; n++ {
		sent, status, err := time.Now(), 0, error(nil)
		if to := s.leader.Load(); conn == nil || to != at {
			drop()
			at = to
			conn, err = load.Dial(ctx, to.HTTP)
		}
		if err == nil {
			status, err = conn.Do(op.Method, op.Path(i, n), op.Body)
		}
		switch {
		case err == nil && status/100 == 2:
			s.acked(sent, time.Now())
			continue
		case err == nil:
			err = fmt.Errorf("status %d", status)
		default:
			drop()
			_ = wait(ctx, statusPollInterval)
		}
		if ctx.Err() == nil {
			s.errs.Add(1)
			s.lastErr.Store(err.Error())
		}
	}
}

func (s *soakRun) acked(sent, now time.Time) {
	s.acks.add(now.Sub(sent))
	s.gapMu.Lock()
	defer s.gapMu.Unlock()
	s.pausedUntil(now)
	if now.After(s.lastAck) {
		s.lastAck = now
	}
}

// end notes the pause in which the run has ended: at the deadline, or earlier when it was broken off.
func (s *soakRun) end(ctx context.Context, now time.Time) {
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(now) {
		now = deadline
	}
	s.gapMu.Lock()
	defer s.gapMu.Unlock()
	s.pausedUntil(now)
}

// pausedUntil notes the pause since the last acknowledgement. Called with gapMu held.
func (s *soakRun) pausedUntil(now time.Time) {
	if gap := now.Sub(s.lastAck); gap > s.longest {
		s.longest, s.longestEnded = gap, now
	}
}

// watch asks every node, all the time, for its term and leader.
func (s *soakRun) watch(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		node := s.cluster.Nodes[n%len(s.cluster.Nodes)]
		if st, err := get[apiv1.Status](ctx, node, apiv1.PathStatus); err == nil {
			if st.Term > s.term {
				s.terms++
				s.moved("term %d -> %d, seen on %s", s.term, st.Term, node.ID)
				s.term = st.Term
			}
			known := s.leader.Load().ID
			i := slices.IndexFunc(s.cluster.Nodes, func(n *proc.Node) bool { return n.ID == st.LeaderID })
			if i >= 0 && st.LeaderID != known && st.Term == s.term {
				s.leaders++
				s.moved("leader %s -> %s, seen on %s", known, st.LeaderID, node.ID)
				s.leader.Store(s.cluster.Nodes[i])
			}
		}
		_ = wait(ctx, statusPollInterval/time.Duration(len(s.cluster.Nodes)))
	}
}

func (s *soakRun) moved(format string, args ...any) {
	move := fmt.Sprintf(
		"at %s: %s; in the second before, a thread waited up to %s ms for a processor, a sync took up to %s ms",
		time.Since(s.began).Round(time.Millisecond), fmt.Sprintf(format, args...), ms(s.host.cpu.recent(time.Second)),
		ms(s.host.disk.recent(time.Second)))
	s.moves = append(s.moves, move)
	fmt.Fprintln(os.Stderr, move)
}

func (s *soakRun) progress(ctx context.Context) {
	for wait(ctx, progressInterval) == nil {
		fmt.Fprintf(os.Stderr, "%8s  %d writes, %d errors\n", time.Since(s.began).Round(time.Second), s.acks.count(),
			s.errs.Load())
	}
}

func (s *soakRun) report(term uint64, before processorTime) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	used, elapsed := processorTimeOf(s.cluster), time.Since(s.began)
	after, err := electionsOf(ctx, s.leader.Load())
	if err != nil {
		return err
	}
	fresh := after.since(term)
	failed := lostElections(ctx, s.leader.Load(), term)
	fmt.Printf("  %d writes, %.0f/s, %d errors", s.acks.count(), float64(s.acks.count())/elapsed.Seconds(), s.errs.Load())
	if e, ok := s.lastErr.Load().(string); ok {
		fmt.Printf(", the last: %s", e)
	}
	fmt.Printf("\n  no write for %s ms at most, %s after the start\n", ms(s.longest),
		s.longestEnded.Sub(s.began).Round(time.Millisecond))
	busy := used.busy - before.busy
	fmt.Printf("  processors %.0f %% busy, %.0f %% of it this load's\n",
		100*float64(busy)/float64(max(1, used.all-before.all)), 100*float64(used.own-before.own)/float64(max(1, busy)))
	printRow("ms", "p50", "p99", "p99.99", "max")
	for name, l := range map[string]*latencies{
		"a write": &s.acks, "a thread waits for a processor": &s.host.cpu.latencies,
		"a sync of 4 KiB": &s.host.disk.latencies,
	} {
		printRow(name, ms(l.quantile(0.5)), ms(l.quantile(0.99)), ms(l.quantile(0.9999)), ms(l.quantile(1)))
	}
	fmt.Printf("  elections   %d, term changes %d, leader changes %d, candidacies that came to nothing %d\n",
		len(fresh), s.terms, s.leaders, len(failed))
	for _, e := range fresh {
		fmt.Printf("    term %d at %s: %s leads, trigger %s, leaderless for %d ms: %s\n", e.Term,
			e.StartedAt.Sub(s.began).Round(time.Millisecond), e.CandidateID, e.Trigger, e.LeaderlessMS, e.Reason)
	}
	for _, e := range failed {
		fmt.Printf("    at %s: %s\n", e.At.Sub(s.began).Round(time.Millisecond), e.Message)
	}
	for _, move := range s.moves {
		fmt.Println("   ", move)
	}
	if len(fresh)+s.terms+len(failed) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "northstar-bench-logs-") // that of the nodes goes with the cluster
	if err == nil {
		fmt.Printf("  the nodes' logs are in %s\n", dir)
		err = saveLogs(s.cluster, dir+string(filepath.Separator))
	}
	return errors.Join(errElections, err)
}
