package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

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

// failures measures the write gap of a client under each kind of failure of the leader, in turns on NorthStar with
// three clients together, on etcd at its default timeouts and at its shortest stable ones, and on bare hashicorp/raft.
// Or on NorthStar and Consul. Rounds that the file of -csv has from an earlier call count. Clusters of 3 and of 5 nodes
// take turns: while the one is measured, the other is left alone after its last round.
func (b *bench) failures(ctx context.Context) error {
	if b.svg != "" && b.csv == "" {
		return errors.New("-svg draws what is in the file of -csv: name both")
	}
	rounds, err := readRounds(b.csv)
	if err != nil {
		return err
	}
	begun := time.Now()
	for target := min(roundsPerPass, b.failovers); ; target = min(target+roundsPerPass, b.failovers) {
		for _, kind := range failureKinds() {
			if !strings.Contains(kind.name, b.only) || b.within > 0 && time.Since(begun) > b.within {
				continue
			}
			running, measuring := errgroup.WithContext(ctx)
			for _, size := range b.sizes() {
				of := *b
				of.scope = scope{} // clusters of its own
				running.Go(func() error {
					err := of.failuresOf(measuring, kind, size, target, rounds)
					if err = errors.Join(err, of.close()); err != nil {
						return fmt.Errorf("%s, %d nodes: %w", kind.name, size, err)
					}
					return nil
				})
			}
			if err := running.Wait(); err != nil {
				return err
			}
		}
		if target == b.failovers {
			break
		}
	}
	if b.svg == "" {
		return nil
	}
	return b.draw(ctx)
}

// roundsPerPass is how many rounds of each kind are measured before the next kind is.
const roundsPerPass = 25

// failuresOf measures one kind of failure on clusters of one size, until each has so many rounds.
func (b *bench) failuresOf(ctx context.Context, kind fault, size, target int, rounds *roundsFile) error {
	missing := kind.missing()
	if b.consul && kind.network {
		missing = errors.New("its servers do not run in networks of their own here")
	}
	if missing != nil {
		fmt.Printf("\n%s, %d nodes: not measured: %v\n", kind.name, size, missing)
		return nil
	}
	groups, err := b.failureSubjects(ctx, kind, size)
	if err != nil {
		return err
	}
	for _, group := range groups {
		if !strings.Contains(group[0].name, b.system) {
			continue
		}
		if err := failureTurn(ctx, kind, group, rounds, target); err != nil {
			return err
		}
		if err := rounds.note(b.csv, kind, group); err != nil { // after each cluster: a run takes hours
			return err
		}
	}
	return b.keepLogs(kind, size, groups)
}

// note prints the rounds that were measured on one cluster, and adds them to the file.
func (r *roundsFile) note(path string, kind fault, group []*subject) error {
	if len(group[0].gaps) == 0 {
		return nil
	}
	r.measuring.Lock()
	defer r.measuring.Unlock()
	fmt.Printf("\n%s, %d nodes, %d rounds; the clients' write gap in ms\n", kind.name, len(group[0].cluster.Nodes),
		len(group[0].gaps))
	printRow("", "p50", "p90", "p99", "max", "errors", "no write")
	for _, s := range group {
		printRow(s.name, append(quantiles(s.gaps, 0.5, 0.9, 0.99, 1), s.errors(), s.never)...)
	}
	r.add(kind, group)
	return r.write(path)
}

// errors returns how many writes of all rounds were not acknowledged; "-" if they are not counted.
func (s *subject) errors() string {
	if s.uncounted {
		return "-"
	}
	sum := 0
	for _, n := range s.failed {
		sum += n
	}
	return strconv.Itoa(sum)
}

// runIn is how long a cluster runs before its first failure, and how long its clients write then: one that has just
// started is no usual one.
const runIn = 4 * time.Second

// failureTurn measures the subjects of one cluster until each has so many rounds.
func failureTurn(ctx context.Context, kind fault, group []*subject, rounds *roundsFile, target int) error {
	c := group[0].cluster
	missing, err := rounds.begin(kind, group, target)
	if missing <= 0 || err != nil {
		return err
	}
	defer func() {
		rounds.measuring.Lock()
		defer rounds.measuring.Unlock()
		c.KillAll()
	}()
	*group[0].healedAt = time.Now().Add(runIn)
	if err := rounds.use(ctx, group); err != nil {
		return fmt.Errorf("%s, before the first round: %w", group[0].name, err)
	}
	for n := range missing {
		if err := rounds.measure(ctx, kind, group); err != nil {
			return fmt.Errorf("%s, round %d: %w\n%s", group[0].name, n+1, err, c.Logs())
		}
	}
	return nil
}

// begin starts a cluster of which rounds are missing, and returns how many are.
func (r *roundsFile) begin(kind fault, group []*subject, target int) (missing int, err error) {
	r.measuring.Lock()
	defer r.measuring.Unlock()
	if missing = target - r.count(kind, group); missing > 0 {
		err = group[0].cluster.Start()
	}
	return missing, err
}

// use makes the clients of a cluster write for a while without any failure.
func (r *roundsFile) use(ctx context.Context, group []*subject) error {
	if err := group[0].waitStable(ctx); err != nil {
		return err
	}
	r.measuring.Lock()
	defer r.measuring.Unlock()
	for _, s := range group {
		s.failed = []int{0}
		defer func() { s.failed = nil }()
	}
	_, err := inject(ctx, fault{inject: func(ctx context.Context, _ *subject, _ *proc.Node) error {
		return wait(ctx, runIn)
	}}, group)
	return err
}

// measure waits until a cluster has been left alone for a while, and keeps the machine for one round, until the cluster
// is whole again.
func (r *roundsFile) measure(ctx context.Context, kind fault, group []*subject) error {
	if err := group[0].waitStable(ctx); err != nil {
		return err
	}
	r.measuring.Lock()
	defer r.measuring.Unlock()
	if err := failureRound(ctx, kind, group); err != nil {
		return err
	}
	return group[0].waitWhole(ctx)
}

// failureRound takes leadership away once while the clients of one cluster write, and measures the gap of each. When
// no write is acknowledged in time, the gap is the time until then.
func failureRound(ctx context.Context, kind fault, group []*subject) error {
	cluster := group[0]
	if err := cluster.waitStable(ctx); err != nil {
		return err
	}
	for _, s := range group {
		s.failed = append(s.failed, 0)
	}
	h, err := inject(ctx, kind, group)
	ended := time.Now()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && h.leader != nil {
		err = nil // some client's writes were not acknowledged
	}
	if h.leader != nil && kind.heal != nil { // also after an error: nothing ends a process whose disk is frozen
		err = errors.Join(err, kind.heal(cluster, h.leader))
	}
	*cluster.healedAt = time.Now()
	if err != nil {
		return err
	}
	for i, s := range group {
		s.addGap(kind, h, h.writers[i], ended)
	}
	return nil
}

// addGap notes the gap of one client in a round that ended then.
func (s *subject) addGap(kind fault, h injection, w *writer, ended time.Time) {
	gap, _ := w.gap(h.at, h.dealt.Add(max(inFlight, s.roundTrip)))
	switch last := h.at.Add(unresponsiveTimeout); { // of the acknowledgements that the old leader can have sent
	case w.firstAfter(last).Equal(last): // none
		s.never++
		gap = ended.Sub(h.at)
	case kind.late:
		gap = w.firstAfter(h.at).Sub(h.at)
	}
	s.gaps = append(s.gaps, gap)
}
