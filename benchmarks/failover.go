package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// failoverTimeout is election.timeout-min of NorthStar by default; the bare cluster gets the same.
const failoverTimeout = "150ms"

// fault is what takes leadership away, and how it is undone.
type fault struct {
	name    string
	network bool // needs a network of its own
	disks   bool // needs a file system for each node
	planned bool // by a call, which lasts until leadership has moved
	lasting bool // writes may be acknowledged until inject returns
	late    bool // the gap counts from when inject returns
	inject  func(context.Context, *subject, *proc.Node) error
	heal    func(*subject, *proc.Node) error
	goals   map[int][2]int // by cluster size: p50 and p99 of the write gap, in ms
	long    time.Duration  // a gap that is noted with its time, to be looked up in the logs; 0: none
}

var faults = []fault{
	{
		name:   "kill -9 leader",
		inject: func(_ context.Context, _ *subject, n *proc.Node) error { n.Kill(); return nil },
		heal:   func(s *subject, n *proc.Node) error { return s.cluster.StartNode(n) },
		goals:  map[int][2]int{3: {6, 12}, 5: {9, 20}},
		long:   40 * time.Millisecond,
	},
	{
		name:   "SIGSTOP leader",
		inject: func(_ context.Context, _ *subject, n *proc.Node) error { return n.Signal(syscall.SIGSTOP) },
		heal:   func(_ *subject, n *proc.Node) error { return n.Signal(syscall.SIGCONT) },
		goals:  map[int][2]int{3: {60, 105}, 5: {60, 105}},
	},
	{
		name:    "cut leader off the others",
		network: true,
		inject:  func(_ context.Context, s *subject, n *proc.Node) error { return s.network.Isolate(n) },
		heal:    func(s *subject, _ *proc.Node) error { return s.network.Heal() },
		goals:   map[int][2]int{3: {60, 105}, 5: {60, 105}},
	},
}

// plannedTransfer moves leadership to a random other node.
var plannedTransfer = fault{
	name:    "planned transfer",
	planned: true,
	inject: func(ctx context.Context, s *subject, leader *proc.Node) error {
		target := leader
		for target == leader {
			target = s.cluster.Nodes[rand.IntN(len(s.cluster.Nodes))]
		}
		path, body := "/transfer/"+target.ID+"/"+target.Raft, ""
		if s.ours {
			path, body = apiv1.PathTransfer, fmt.Sprintf(`{"target_leader_id":%q}`, target.ID)
		}
		conn, err := load.Dial(ctx, leader.HTTP)
		if err != nil {
			return err
		}
		defer conn.Close()
		at := time.Now()
		status, err := conn.Do("POST", path, []byte(body))
		s.calls = append(s.calls, time.Since(at))
		if status/100 != 2 {
			s.failedCalls++
		}
		return err
	},
	goals: map[int][2]int{3: {5, 12}, 5: {12, 25}},
}

// killDuringReplay kills the leader when a follower has just been started again: that node knows the leader, and still
// reads and applies a log of so many entries. Its vote is needed in a cluster of three.
func killDuringReplay(entries int) fault {
	return fault{
		name:    "kill -9 leader while a follower replays",
		lasting: true,
		late:    true,
		inject: func(ctx context.Context, s *subject, leader *proc.Node) error {
			if err := (&restarts{cluster: s.cluster}).fill(ctx, entries, value); err != nil {
				return err
			}
			i := slices.IndexFunc(s.cluster.Nodes, func(n *proc.Node) bool { return n != leader })
			s.cluster.Nodes[i].Kill()
			if err := s.cluster.StartNode(s.cluster.Nodes[i]); err != nil {
				return err
			}
			if _, err := s.cluster.Leader(ctx); err != nil {
				return err
			}
			leader.Kill()
			return nil
		},
		heal: faults[0].heal,
	}
}

// subject is one way of writing to one cluster under faults.
type subject struct {
	name      string
	cluster   *proc.Cluster
	network   *proc.Network // nil: loopback
	viaClient bool          // writes go through this project's Go client
	ours      bool          // NorthStar, not the bare library
	fast      bool          // with fast failover
	timeout   time.Duration // the least one after which its nodes start an election
	roundTrip time.Duration // between its nodes, if they are far apart
	healedAt  *time.Time    // when its cluster was last made whole

	// open returns how a round writes, knowing its leader; nil: as writeTo does.
	open func(*subject, *proc.Node) (write func(context.Context, int) error, done func(), err error)

	// findLeader waits until the cluster has a leader, and returns it; nil: as Cluster.Leader does.
	findLeader func(context.Context, *proc.Cluster) (*proc.Node, error)

	gaps        []time.Duration
	more        int             // rounds with more than one election
	phaseTimes  []phaseTimes    // of rounds in which a failover's steps are known
	bestWon     int             // rounds that the best placed fresh survivor won
	rounds      int             // rounds in which that is known
	highest     int             // rounds that the survivor of the highest priority won, fresh or not
	late        []time.Duration // the longest pause after the first write that the new leader took
	cut         []time.Duration // from the fault until the writer found its connection broken
	calls       []time.Duration // of planned transfers
	failedCalls int
	failed      []int    // answers in each round of failures that were no acknowledgement
	uncounted   bool     // its writer hides such answers: failed is always 0
	never       int      // rounds of failures in which no write was acknowledged in time
	notes       []string // what was not as it should be
}

// failover measures the write gap that a client sees when the leader fails, in turns, on NorthStar, on NorthStar
// without fast failover, and on bare hashicorp/raft at the same timeouts.
func (b *bench) failover(ctx context.Context) error {
	all := faults
	if b.entries > 0 {
		all = append(slices.Clone(faults), killDuringReplay(b.entries))
	}
	for _, fault := range all {
		for _, size := range b.sizes() {
			if !strings.Contains(fault.name, b.only) {
				continue
			}
			if err := errors.Join(b.under(ctx, fault, size, b.failovers), b.close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// transfer measures what a client feels of a planned transfer under writes, in
// turns, on NorthStar and on bare hashicorp/raft at the same timeouts.
func (b *bench) transfer(ctx context.Context) error {
	for _, size := range b.sizes() {
		if err := errors.Join(b.under(ctx, plannedTransfer, size, b.transfers), b.close()); err != nil {
			return err
		}
	}
	return nil
}

// under measures one fault on clusters of one size.
func (b *bench) under(ctx context.Context, fault fault, size, rounds int) error {
	if missing := fault.missing(); missing != nil {
		fmt.Printf("\n%s, %d nodes: not measured: %v\n", fault.name, size, missing)
		return nil
	}
	subjects, err := b.prepareSubjects(fault, size)
	if err != nil {
		return err
	}
	return errors.Join(measure(ctx, fault, size, rounds, subjects), b.keepLogs(fault, size, subjects))
}

// keepLogs saves the nodes' logs, if that is wanted.
func (b *bench) keepLogs(fault fault, size int, subjects [][]*subject) error {
	if b.logs == "" {
		return nil
	}
	if err := os.MkdirAll(b.logs, 0o755); err != nil {
		return err
	}
	for _, group := range subjects {
		prefix := fmt.Sprintf("%s %d %s ", fault.name, size, group[0].name)
		if err := saveLogs(group[0].cluster, filepath.Join(b.logs, strings.ReplaceAll(prefix, " ", "-"))); err != nil {
			return err
		}
	}
	return nil
}

// saveLogs writes the log of each node to a file of its name after the prefix.
func saveLogs(c *proc.Cluster, prefix string) error {
	for _, n := range c.Nodes {
		if err := os.WriteFile(prefix+n.ID+".log", []byte(c.Log(n)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// roundsPerTurn is how many rounds a cluster is measured for before the next one is.
const roundsPerTurn = 5

// prepareSubjects prepares what is measured side by side, those of one cluster together. Each node has a priority of
// its own, so that the expected winner is known. No node takes over from a live leader during the measurement.
func (b *bench) prepareSubjects(fault fault, size int) ([][]*subject, error) {
	ns, err := b.prepareNorthStar(fault, size, "northstar", b.northstar, "--failover-takeover-delay", "1h")
	if err != nil {
		return nil, err
	}
	client := *ns // the same cluster, in other rounds
	client.name, client.viaClient = "northstar, Go client", true
	if b.comparePath != "" {
		other, err := b.prepareNorthStar(fault, size, "the other build", b.comparePath,
			"--failover-takeover-delay", "1h")
		return [][]*subject{{ns}, {other}}, err
	}
	if b.noCompare {
		return [][]*subject{{ns}}, nil
	}
	bare := &subject{name: "bare raft"}
	err = b.prepare(bare, fault, func() (*proc.Cluster, error) {
		return proc.Bare(b.baseline, size, "--timeout-min", failoverTimeout)
	})
	switch {
	case err != nil:
		return nil, err
	case fault.planned:
		return [][]*subject{{ns, &client}, {bare}}, nil
	case fault.name != faults[0].name:
		return [][]*subject{{ns}, {bare}}, nil
	}
	off, err := b.prepareNorthStar(fault, size, "northstar, fast failover off", b.northstar, "--no-failover-fast")
	return [][]*subject{{ns, &client}, {bare}, {off}}, err
}

func (b *bench) prepareNorthStar(fault fault, size int, name, bin string, args ...string) (*subject, error) {
	if fault.network {
		args = append(args, "--insecure")
	}
	if b.logs != "" {
		args = append(args, "--log-level", "debug")
	}
	if b.entries > 0 {
		args = append(args, keepLog...)
	}
	s := &subject{name: name, ours: true, fast: !slices.Contains(args, "--no-failover-fast")}
	err := b.prepare(s, fault, func() (*proc.Cluster, error) { return proc.NorthStar(bin, size, args...) })
	if err == nil && s.fast {
		for i, n := range s.cluster.Nodes {
			s.cluster.Extra[n.ID] = []string{"--priority", strconv.Itoa(200 - 10*i)}
		}
	}
	return s, err
}

// prepare makes a subject's cluster, and its network if the fault needs one.
func (b *bench) prepare(s *subject, fault fault, prepare func() (*proc.Cluster, error)) (err error) {
	s.healedAt = new(time.Time)
	if fault.network {
		if s.network, err = proc.NewNetwork(); err != nil {
			return err
		}
		b.add(s.network.Close)
	}
	if s.cluster, err = b.own(prepare()); err == nil && fault.network {
		err = s.network.Attach(s.cluster)
	}
	if err == nil && fault.disks {
		err = b.mountDisks(s)
	}
	return err
}

// measure has each cluster run alone for a few rounds: the heartbeats of the others would have their part of the
// processors.
func measure(ctx context.Context, fault fault, size, rounds int, subjects [][]*subject) error {
	fmt.Printf("\n%s, %d nodes, timeouts %s to twice that, %d rounds; the client's write gap in ms\n",
		fault.name, size, failoverTimeout, rounds)
	bound, err := newLowerBound()
	if err != nil {
		return err
	}
	defer bound.close()
	for from := 0; from < rounds; from += roundsPerTurn {
		to := min(from+roundsPerTurn, rounds)
		for _, group := range subjects {
			if err := takeTurn(ctx, fault, group, bound, from, to); err != nil {
				return err
			}
		}
		progress(fmt.Sprintf("%s, %d nodes", fault.name, size), to, rounds)
	}
	report(fault.goals[size], slices.Concat(subjects...), bound)
	return ctx.Err()
}

// takeTurn measures some rounds of the subjects of one cluster.
func takeTurn(ctx context.Context, fault fault, group []*subject, bound *lowerBound, from, to int) error {
	c := group[0].cluster
	if err := c.Start(); err != nil {
		return err
	}
	defer c.KillAll()
	*group[0].healedAt = time.Now()
	for round := from; round < to; round++ {
		if err := bound.measure(); err != nil {
			return err
		}
		for _, s := range group {
			if err := s.round(ctx, fault); err != nil {
				return fmt.Errorf("%s, round %d: %w\n%s", s.name, round+1, err, c.Logs())
			}
		}
	}
	return nil
}

// printQuarters prints the medians of the gaps in four parts of a longer run, whether it gets
// slower as the log and the state grow.
func printQuarters(gaps []time.Duration) {
	size := len(gaps) / 4
	if size < 5 {
		return
	}
	var medians []any
	for part := range 4 {
		medians = append(medians, quantiles(slices.Clone(gaps[part*size:(part+1)*size]), 0.5)...)
	}
	printRow("  p50 by quarters of the rounds", medians...)
}

func report(goal [2]int, subjects []*subject, bound *lowerBound) {
	printRow("", "p50", "p90", "p99", "max")
	for _, s := range subjects {
		printQuarters(s.gaps)
		printRow(s.name, quantiles(s.gaps, 0.5, 0.9, 0.99, 1)...)
		printRow("  longest pause after it", quantiles(s.late, 0.5, 0.9, 0.99, 1)...)
		if len(s.cut) > 0 {
			printRow("  the writer found its connection broken", quantiles(s.cut, 0.5, 0.9, 0.99, 1)...)
		}
		if len(s.calls) > 0 {
			printRow(fmt.Sprintf("  the call, %d failed", s.failedCalls), quantiles(s.calls, 0.5, 0.9, 0.99, 1)...)
		}
	}
	if goal != [2]int{} {
		printRow("(aim for northstar)", goal[0], "", goal[1])
	}
	for _, s := range subjects {
		if s.rounds > 0 {
			fmt.Printf("  %s: the best placed survivor with the newest log won %d of %d rounds, the highest priority with any log %d; more than one election in %d\n",
				s.name, s.bestWon, s.rounds, s.highest, s.more)
		}
		printPhases(s, bound)
		for _, n := range s.notes {
			fmt.Printf("  %s: %s\n", s.name, n)
		}
	}
}
