package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"northstar/chaos/proc"
)

// failures are the kinds of failure of a leader that failures measures.
func failureKinds() []fault {
	kill, stop, cut := faults[0], faults[1], faults[2]
	return []fault{
		{name: "kill -9", inject: kill.inject, heal: kill.heal},
		{name: "SIGSTOP", inject: stop.inject, heal: stop.heal},
		{name: "SIGTERM", lasting: true, inject: terminate, heal: kill.heal},
		{name: "cut both ways", network: true, inject: cut.inject, heal: cut.heal},
		{name: "cut: it cannot send", network: true, heal: cut.heal, inject: func(
			_ context.Context, s *subject, n *proc.Node,
		) error {
			return s.network.Cut(n, s.without(n)...)
		}},
		{name: "cut: it cannot receive", network: true, heal: cut.heal, inject: func(
			_ context.Context, s *subject, n *proc.Node,
		) error {
			var errs []error
			for _, other := range s.without(n) {
				errs = append(errs, s.network.Cut(other, n))
			}
			return errors.Join(errs...)
		}},
		{name: "disk stall", disks: true, lasting: true, inject: func(
			_ context.Context, s *subject, n *proc.Node,
		) error {
			return freeze(s.cluster.DataDir(n))
		}, heal: func(s *subject, n *proc.Node) error { return thaw(s.cluster.DataDir(n)) }},
		{name: "machine pause", network: true, inject: func(_ context.Context, s *subject, n *proc.Node) error {
			return errors.Join(s.network.Unplug(n), n.Signal(syscall.SIGSTOP))
		}, heal: func(s *subject, n *proc.Node) error {
			return errors.Join(s.network.Heal(), n.Signal(syscall.SIGCONT))
		}},
		{name: "second round", network: true, late: true, inject: failFirstRound, heal: kill.heal},
	}
}

// without returns the subject's nodes except for one.
func (s *subject) without(n *proc.Node) (others []*proc.Node) {
	for _, o := range s.cluster.Nodes {
		if o != n {
			others = append(others, o)
		}
	}
	return others
}

// terminateLimit is how long a node may take to end by itself.
const terminateLimit = 15 * time.Second

// terminate ends a node as a service manager does, and returns when its process has ended.
func terminate(_ context.Context, _ *subject, n *proc.Node) error {
	if err := n.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	process := n.Cmd.Process
	late := time.AfterFunc(terminateLimit, func() { _ = process.Kill() })
	defer late.Stop()
	n.Wait()
	return nil
}

// failFirstRound kills the leader while no survivor reaches another, and returns when the survivors reach each other
// again. Until then each of them has been a candidate without a majority: now they need a further round.
func failFirstRound(ctx context.Context, s *subject, leader *proc.Node) error {
	for _, n := range s.without(leader) {
		if err := s.network.Cut(n, s.without(n)...); err != nil {
			return err
		}
	}
	leader.Kill()
	if err := wait(ctx, 4*s.timeout); err != nil {
		return err
	}
	return s.network.Heal()
}

// failures measures the write gap of a client under each kind of failure of the leader, in turns on NorthStar through
// three clients, on etcd at its default timeouts and at its shortest stable ones, and on bare hashicorp/raft. Or on
// NorthStar and Consul.
func (b *bench) failures(ctx context.Context) error {
	if b.svg != "" && b.csv == "" {
		return errors.New("-svg draws what is in the file of -csv: name both")
	}
	var rows []string
	for _, size := range b.sizes() {
		for _, kind := range failureKinds() {
			if !strings.Contains(kind.name, b.only) {
				continue
			}
			some, err := b.failuresOf(ctx, kind, size)
			if err = errors.Join(err, b.close()); err != nil {
				return fmt.Errorf("%s, %d nodes: %w", kind.name, size, err)
			}
			rows = append(rows, some...)
			if err := b.writeRows(rows); err != nil { // after each kind: a run takes hours
				return err
			}
		}
	}
	if b.svg == "" {
		return nil
	}
	return b.draw(ctx)
}

// failuresOf measures one kind of failure on clusters of one size.
func (b *bench) failuresOf(ctx context.Context, kind fault, size int) (rows []string, err error) {
	fmt.Printf("\n%s, %d nodes, %d rounds; the client's write gap in ms\n", kind.name, size, b.failovers)
	missing := kind.missing()
	if b.consul && kind.network {
		missing = errors.New("its servers do not run in networks of their own here")
	}
	if missing != nil {
		fmt.Printf("  not measured: %v\n", missing)
		return nil, nil
	}
	groups, err := b.failureSubjects(ctx, kind, size)
	if err != nil {
		return nil, err
	}
	for from := 0; from < b.failovers; from += roundsPerTurn {
		to := min(from+roundsPerTurn, b.failovers)
		for _, group := range groups {
			if err := failureTurn(ctx, kind, group, to-from); err != nil {
				return nil, err
			}
		}
		progress(fmt.Sprintf("%s, %d nodes", kind.name, size), to, b.failovers)
	}
	if err := b.keepLogs(kind, size, groups); err != nil {
		return nil, err
	}
	printRow("", "p50", "p90", "p99", "max", "errors", "no write")
	for _, group := range groups {
		for _, s := range group {
			rows = append(rows, s.rows(kind.name)...)
			sum := 0
			for _, n := range s.failed {
				sum += n
			}
			printRow(s.name, append(quantiles(s.gaps, 0.5, 0.9, 0.99, 1), sum, s.never)...)
		}
	}
	return rows, nil
}

// runIn is how long a cluster runs before its first failure: one that has just started is no usual one.
const runIn = 4 * time.Second

// failureTurn measures some rounds of the subjects of one cluster.
func failureTurn(ctx context.Context, kind fault, group []*subject, rounds int) error {
	c := group[0].cluster
	if err := c.Start(); err != nil {
		return err
	}
	defer c.KillAll()
	*group[0].healedAt = time.Now().Add(runIn)
	for range rounds {
		for _, s := range group {
			if err := s.failureRound(ctx, kind); err != nil {
				return fmt.Errorf("%s, round %d: %w\n%s", s.name, len(s.gaps)+1, err, c.Logs())
			}
		}
	}
	return nil
}

// failureRound takes leadership away once under load, and measures the gap. When no write is acknowledged in time, the
// gap is the time until then.
func (s *subject) failureRound(ctx context.Context, kind fault) error {
	if err := s.waitStable(ctx); err != nil {
		return err
	}
	s.failed = append(s.failed, 0)
	h, err := s.inject(ctx, kind)
	switch {
	case err == nil && kind.late:
		s.gaps = append(s.gaps, h.writer.firstAfter(h.at).Sub(h.at))
	case err == nil:
		gap, _ := h.writer.gap(h.at, h.dealt.Add(max(inFlight, s.roundTrip)))
		s.gaps = append(s.gaps, gap)
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && h.leader != nil:
		s.never++
		s.gaps = append(s.gaps, time.Since(h.at))
		err = nil
	}
	if h.leader != nil && kind.heal != nil { // also after an error: nothing ends a process whose disk is frozen
		err = errors.Join(err, kind.heal(s, h.leader))
	}
	*s.healedAt = time.Now()
	return err
}

// rows are the lines of the CSV file for this subject.
func (s *subject) rows(kind string) (lines []string) {
	for i, gap := range s.gaps {
		lines = append(lines, fmt.Sprintf("%s,%d,%q,%d,%s,%d", kind, len(s.cluster.Nodes), s.name, i+1, ms(gap),
			s.failed[i]))
	}
	return lines
}

// writeRows writes the CSV file, if one is wanted.
func (b *bench) writeRows(rows []string) error {
	if b.csv == "" {
		return nil
	}
	text := "failure,nodes,system,round,gap_ms,errors\n" + strings.Join(rows, "\n") + "\n"
	return os.WriteFile(b.csv, []byte(text), 0o644)
}
