package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// failoverTimeout is election.timeout-min of NorthStar by default; the bare
// cluster gets the same.
const failoverTimeout = "150ms"

// fault is what happens to the leader, and how it is undone.
type fault struct {
	name    string
	network bool // needs a network of its own
	inject  func(*proc.Network, *proc.Node) error
	heal    func(*clusterUnderTest, *proc.Node) error
	goals   map[int][2]int // by cluster size: p50 and p99 of the write gap, in ms
}

var faults = []fault{
	{
		name:   "kill -9 leader",
		inject: func(_ *proc.Network, n *proc.Node) error { n.Kill(); return nil },
		heal:   func(s *clusterUnderTest, n *proc.Node) error { return s.cluster.StartNode(n) },
		goals:  map[int][2]int{3: {7, 20}, 5: {12, 30}},
	},
	{
		name:   "SIGSTOP leader",
		inject: func(_ *proc.Network, n *proc.Node) error { return n.Signal(syscall.SIGSTOP) },
		heal:   func(_ *clusterUnderTest, n *proc.Node) error { return n.Signal(syscall.SIGCONT) },
		goals:  map[int][2]int{3: {175, 260}, 5: {180, 280}},
	},
	{
		name:    "cut leader off the others",
		network: true,
		inject:  func(w *proc.Network, n *proc.Node) error { return w.Isolate(n) },
		heal:    func(s *clusterUnderTest, _ *proc.Node) error { return s.network.Heal() },
		goals:   map[int][2]int{3: {175, 260}, 5: {180, 280}},
	},
}

// clusterUnderTest is one way of writing to one cluster under faults.
type clusterUnderTest struct {
	name      string
	cluster   *proc.Cluster
	network   *proc.Network // nil: loopback
	viaClient bool          // writes go through this project's Go client
	ours      bool          // NorthStar, not the bare library
	fast      bool          // with fast failover
	healedAt  *time.Time    // when its cluster was last made whole

	gaps       []time.Duration
	more       int             // rounds with more than one election
	phaseTimes []phaseTimes    // of rounds in which a failover's steps are known
	bestWon    int             // rounds that the best placed fresh survivor won
	rounds     int             // rounds in which that is known
	highest    int             // rounds that the survivor of the highest priority won, fresh or not
	late       []time.Duration // the longest pause after the first write that the new leader took
	cut        []time.Duration // from the fault until the writer found its connection broken
	notes      []string        // what was not as it should be
}

// failover measures the write gap that a client sees when the leader fails, in
// turns, on NorthStar, on NorthStar without fast failover, and on bare
// hashicorp/raft at the same timeouts.
func (b *bench) failover(ctx context.Context) error {
	fmt.Println(describeHost())
	sizes := []int{3, 5}
	if b.size != 0 {
		sizes = []int{b.size}
	}
	for _, fault := range faults {
		if !strings.Contains(fault.name, b.only) {
			continue
		}
		for _, size := range sizes {
			if err := b.under(ctx, fault, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// under measures one fault on clusters of one size.
func (b *bench) under(ctx context.Context, fault fault, size int) (err error) {
	h := &host{}
	defer func() { err = errors.Join(err, h.close()) }()
	if fault.network {
		probe, err := proc.NewNetwork()
		if err != nil {
			fmt.Printf("\nfailover: %s, %d nodes: not measured: %v\n", fault.name, size, err)
			return nil
		}
		if err := probe.Close(); err != nil {
			return err
		}
	}
	subjects, err := b.startClusters(h, fault, size)
	if err != nil {
		return err
	}
	return errors.Join(b.measure(ctx, fault, size, subjects), b.keepLogs(fault, size, subjects))
}

// keepLogs saves the nodes' logs, if that is wanted.
func (b *bench) keepLogs(fault fault, size int, subjects []*clusterUnderTest) error {
	if b.logs == "" {
		return nil
	}
	for _, s := range subjects {
		for _, n := range s.cluster.Nodes {
			name := strings.ReplaceAll(fmt.Sprintf("%s %d %s %s.log", fault.name, size, s.name, n.ID), " ", "-")
			if err := os.WriteFile(filepath.Join(b.logs, name), []byte(s.cluster.Log(n)), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// host holds what runs on this machine for one measurement.
type host struct {
	clusters []*proc.Cluster
	networks []*proc.Network
}

func (h *host) close() error {
	var errs []error
	for _, c := range h.clusters {
		c.Close()
	}
	for _, w := range h.networks {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// roundsPerTurn is how many rounds a cluster is measured for before the next one is.
const roundsPerTurn = 5

// startClusters prepares the clusters. Large because it lists all that are measured side by side.
func (b *bench) startClusters(h *host, fault fault, size int) ([]*clusterUnderTest, error) {
	northstar := func(bin string, extra ...string) func() (*proc.Cluster, error) {
		if fault.network {
			extra = append(extra, "--insecure")
		}
		if b.logs != "" {
			extra = append(extra, "--log-level", "debug")
		}
		return func() (*proc.Cluster, error) { return proc.NorthStar(bin, size, extra...) }
	}
	start := func(s clusterUnderTest, make func() (*proc.Cluster, error)) (*clusterUnderTest, error) {
		c, err := make()
		if err != nil {
			return nil, err
		}
		h.clusters = append(h.clusters, c)
		s.cluster, s.healedAt = c, new(time.Time)
		if fault.network {
			if s.network, err = proc.NewNetwork(); err != nil {
				return nil, err
			}
			h.networks = append(h.networks, s.network)
			if err := s.network.Attach(c); err != nil {
				return nil, err
			}
		}
		if s.fast {
			for i, n := range c.Nodes {
				c.Extra[n.ID] = []string{"--priority", strconv.Itoa(priorityOf(i))}
			}
		}
		return &s, nil
	}
	// Each node has a priority of its own, so that the expected winner is known. No
	// node takes over from a live leader during the measurement.
	ns, err := start(clusterUnderTest{name: "northstar", ours: true, fast: true},
		northstar(b.northstar, "--failover-takeover-delay", "1h"))
	if err != nil {
		return nil, err
	}
	if b.comparePath != "" {
		other, err := start(clusterUnderTest{name: "the other build", ours: true, fast: true},
			northstar(b.comparePath, "--failover-takeover-delay", "1h"))
		return []*clusterUnderTest{ns, other}, err
	}
	bare, err := start(clusterUnderTest{name: "bare raft"}, func() (*proc.Cluster, error) {
		return proc.Bare(b.baseline, size, "--timeout-min", failoverTimeout)
	})
	if err != nil {
		return nil, err
	}
	if b.noCompare || fault.name != faults[0].name {
		return []*clusterUnderTest{ns, bare}, nil
	}
	off, err := start(clusterUnderTest{name: "northstar, fast failover off", ours: true},
		northstar(b.northstar, "--no-failover-fast"))
	if err != nil {
		return nil, err
	}
	client := *ns // the same cluster, in other rounds
	client.name, client.viaClient = "northstar, Go client", true
	return []*clusterUnderTest{ns, bare, &client, off}, nil
}

// priorityOf returns the i-th node a priority of its own: the first the highest.
func priorityOf(i int) int { return 200 - 10*i }

func (b *bench) measure(ctx context.Context, fault fault, size int, subjects []*clusterUnderTest) error {
	fmt.Printf("\nfailover: %s, %d nodes, timeouts %s to twice that, %d rounds; the client's write gap in ms\n",
		fault.name, size, failoverTimeout, b.failovers)
	bound, err := newLowerBound()
	if err != nil {
		return err
	}
	defer bound.close()
	began := time.Now()
	for from := 0; from < b.failovers; from += roundsPerTurn {
		to := min(from+roundsPerTurn, b.failovers)
		for of := range groupByCluster(subjects) {
			if err := turnOf(ctx, fault, of, bound, from, to); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%s, %d nodes: %d of %d rounds, %s\n", fault.name, size, to, b.failovers,
			time.Since(began).Round(time.Second))
	}
	report(fault, size, subjects, bound)
	return ctx.Err()
}

// groupByCluster returns the subjects of one cluster after those of the other.
func groupByCluster(subjects []*clusterUnderTest) iter.Seq[[]*clusterUnderTest] {
	return func(yield func([]*clusterUnderTest) bool) {
		for i, s := range subjects {
			same := func(o *clusterUnderTest) bool { return o.cluster == s.cluster }
			if slices.IndexFunc(subjects, same) == i &&
				!yield(slices.DeleteFunc(slices.Clone(subjects), func(o *clusterUnderTest) bool { return !same(o) })) {
				return
			}
		}
	}
}

// turnOf measures some rounds of the subjects of one cluster, which runs only as
// long: the heartbeats of the others would have their part of the processors.
func turnOf(ctx context.Context, fault fault, of []*clusterUnderTest, bound *lowerBound, from, to int) error {
	c := of[0].cluster
	if err := c.Start(); err != nil {
		return err
	}
	defer c.KillAll()
	*of[0].healedAt = time.Now()
	for round := from; round < to; round++ {
		if err := bound.measure(); err != nil {
			return err
		}
		for _, s := range of {
			if err := s.round(ctx, fault); err != nil {
				return fmt.Errorf("%s, round %d: %w\n%s", s.name, round+1, err, c.Logs())
			}
		}
	}
	return nil
}

// byQuarters returns the medians of the gaps in four parts of the run, whether it gets
// slower as the log and the state grow; "" for a short one.
func byQuarters(gaps []time.Duration) string {
	size := len(gaps) / 4
	if size < 5 {
		return ""
	}
	var medians []string
	for part := range 4 {
		medians = append(medians, ms(load.Quantile(slices.Sorted(slices.Values(gaps[part*size:(part+1)*size])), 0.5)))
	}
	return strings.Join(medians, " ")
}

func report(fault fault, size int, subjects []*clusterUnderTest, bound *lowerBound) {
	fmt.Printf("  %-30s %8s %8s %8s %8s   %s\n", "", "p50", "p90", "p99", "max", "longest pause after it, p50 and max")
	for _, s := range subjects {
		quarters := byQuarters(s.gaps)
		slices.Sort(s.gaps)
		slices.Sort(s.late)
		q := func(f float64) string { return ms(load.Quantile(s.gaps, f)) }
		fmt.Printf("  %-30s %8s %8s %8s %8s   %s %s\n", s.name, q(0.5), q(0.9), q(0.99), q(1),
			ms(load.Quantile(s.late, 0.5)), ms(load.Quantile(s.late, 1)))
		if quarters != "" {
			fmt.Printf("  %-30s %s\n", "  p50 by quarters of the rounds", quarters)
		}
	}
	for _, s := range subjects {
		if len(s.cut) > 0 {
			slices.Sort(s.cut)
			fmt.Printf("  %s: the writer found its connection broken after %s (p50) and %s (p99)\n", s.name,
				ms(load.Quantile(s.cut, 0.5)), ms(load.Quantile(s.cut, 0.99)))
		}
	}
	aim := fault.goals[size]
	fmt.Printf("  %-30s %8d %8s %8d\n", "(aim for northstar)", aim[0], "", aim[1])
	for _, s := range subjects {
		if s.rounds > 0 {
			fmt.Printf("  %s: the best placed survivor with the newest log won %d of %d rounds, the highest priority whatever its log %d; more than one election in %d\n",
				s.name, s.bestWon, s.rounds, s.highest, s.more)
		}
		printPhases(s, bound)
		for _, n := range s.notes {
			fmt.Printf("  %s: %s\n", s.name, n)
		}
	}
}
