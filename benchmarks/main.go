// Command benchmarks measures a NorthStar cluster beside a bare hashicorp/raft cluster, or etcd where it does what
// that library does not, in one run, in turns, so that a slow moment of the machine hits both.
//
//	go run ./benchmarks all | throughput | idle | startup | restart | failover | failures | disks | transfer |
//		discovery | soak | roles | sessions | etcdapi | sizing | wan
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

type bench struct {
	dir              string // of the built binaries
	duration         time.Duration
	rounds           int
	failovers        int
	transfers        int
	elections        int
	restarts         int
	entries          int
	renewedTogether  int
	attachedSessions int
	watchers         int
	eventRate        int
	noCompare        bool
	size             int
	only             string
	system           string
	minutes          float64
	rate             int
	within           time.Duration
	logs             string
	csv              string
	svg              string
	consul           bool
	comparePath      string
	northstar        string
	baseline         string
	etcdBin          string
	consulBin        string
	scope
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("benchmarks", flag.ExitOnError)
	b := &bench{}
	b.flags(fs)
	names := strings.Join(slices.Sorted(maps.Keys(parts)), ", ")
	if len(args) == 0 {
		return fmt.Errorf("no benchmark named: must be one of %s", names)
	}
	switch {
	case args[0] == holdCommand && len(args) > 2:
		return hold(context.Background(), args[1], args[2:])
	case args[0] == diskCommand && len(args) > 2:
		return proc.ExecOnDisk(args[1], args[2:])
	}
	todo, ok := parts[args[0]]
	if !ok {
		return fmt.Errorf("benchmark must be one of %s (got %q)", names, args[0])
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if b.dir, err = os.MkdirTemp("", "northstar-bench-bin-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := b.programs(ctx, args[0]); err != nil {
		return err
	}
	fmt.Println(describeHost())
	for _, f := range todo {
		if err := errors.Join(f(b, ctx), b.close()); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) flags(fs *flag.FlagSet) {
	fs.DurationVar(&b.duration, "duration", 4*time.Second, "of each measured load")
	fs.IntVar(&b.rounds, "rounds", 3, "turns of each load; the median one is printed")
	fs.IntVar(&b.failovers, "failovers", 100, "rounds of failover, for each cluster")
	fs.IntVar(&b.transfers, "transfers", 100, "rounds of planned transfers, for each cluster")
	fs.IntVar(&b.elections, "elections", 100, "rounds of role elections, for each cluster")
	fs.IntVar(&b.restarts, "restarts", 100, "rounds of kill and start of one node, for each cluster")
	fs.IntVar(&b.entries, "entries", 0, "of the log that a restarted node replays; failovers then include kills of the leader meanwhile")
	fs.IntVar(&b.renewedTogether, "sessions", 50_000, "sessions that are renewed together")
	fs.IntVar(&b.attachedSessions, "attached", 2000, "sessions that are held by a connection each")
	fs.IntVar(&b.watchers, "watchers", 10_000, "watchers over the etcd API")
	fs.IntVar(&b.eventRate, "events", 100, "puts a second of keys that they watch")
	fs.BoolVar(&b.noCompare, "no-compare", false, "roles, sessions, restarts, disks and failures without etcd; failovers and failures without bare Raft")
	fs.IntVar(&b.size, "size", 0, "nodes of the clusters that fail over; 0: first 3, then 5")
	fs.StringVar(&b.only, "only", "",
		"only the failovers, failures or rows whose name has this in it: kill, SIGSTOP, cut; of etcdapi: put, range, leases, watchers, elections")
	fs.StringVar(&b.system, "system", "", "of failures: only the systems whose name has this in it, such as etcd 10/50")
	fs.StringVar(&b.csv, "csv", "", "a file for each round of failures; those that it has count, up to -failovers")
	fs.DurationVar(&b.within, "for", 0, "of failures: no kind is begun later; with -csv, the next call continues; 0: all")
	fs.StringVar(&b.svg, "svg", "", "a picture of the distributions of failures; needs -csv")
	fs.BoolVar(&b.consul, "consul", false,
		"failures beside Consul, and not beside etcd and bare Raft; its build takes long, and each round 20 s or more")
	fs.StringVar(&b.logs, "logs", "",
		"a directory to keep the nodes' logs of failovers and restarts in, which are then at debug; costs time")
	fs.StringVar(&b.comparePath, "compare", "",
		"another build of northstar-node, for failovers, starts, restarts, throughput and idle cost, which is then compared alone; and for etcdapi")
	fs.IntVar(&b.rate, "rate", 0, "of disks: most writes a second of all clients, so that several runs fit on a machine; 0: no limit")
	fs.Float64Var(&b.minutes, "minutes", 30, "of the soak test, and of each row of disks")
}

var parts = map[string][]func(*bench, context.Context) error{
	"throughput": {(*bench).throughput},
	"idle":       {(*bench).idle},
	"startup":    {(*bench).startup},
	"restart":    {(*bench).restart},
	"failover":   {(*bench).failover},
	"failures":   {(*bench).failures},
	"disks":      {(*bench).disks},
	"transfer":   {(*bench).transfer},
	"discovery":  {(*bench).discovery},
	"soak":       {(*bench).soak},
	"roles":      {(*bench).roles},
	"sizing":     {(*bench).sizing},
	"wan":        {(*bench).wan},
	"sessions":   {(*bench).sessions},
	"etcdapi":    {(*bench).etcdThroughput, (*bench).etcdLeases, (*bench).etcdWatchers, (*bench).etcdElections},
	"all":        {(*bench).startup, (*bench).idle, (*bench).throughput},
}

// programs builds what a benchmark starts. etcd is large, and takes minutes the first time.
func (b *bench) programs(ctx context.Context, name string) (err error) {
	if b.northstar, err = b.build(ctx, ".", "./cmd/northstar-node"); err != nil {
		return err
	}
	if b.consul && name == "failures" {
		b.consulBin, err = b.build(ctx, "benchmarks/consul", consulPackage)
		return err
	}
	withEtcd := slices.Contains([]string{"roles", "sessions", "etcdapi", "failures", "disks", "restart"}, name)
	if !withEtcd && name != "sizing" && name != "wan" || name == "failures" {
		if b.baseline, err = b.build(ctx, ".", "./benchmarks/baseline"); err != nil {
			return err
		}
	}
	if !withEtcd || b.noCompare && name != "etcdapi" && name != "failures" || b.comparePath != "" && name == "restart" {
		return nil
	}
	if b.etcdBin, err = b.build(ctx, "benchmarks/etcd", "."); err != nil {
		return fmt.Errorf("etcd cannot be built (-no-compare leaves it out): %w", err)
	}
	return nil
}

// build builds one program of the module in dir.
func (b *bench) build(ctx context.Context, dir, pkg string) (string, error) {
	bin := filepath.Join(b.dir, filepath.Base(filepath.Join(dir, pkg)))
	cmd := exec.CommandContext(ctx, "go", "build", "-C", dir, "-trimpath", "-o", bin, pkg)
	cmd.Stderr = os.Stderr
	return bin, cmd.Run()
}

// scope ends what a measurement has started, the last first.
type scope []func() error

func (s *scope) add(end func() error) { *s = append(*s, end) }

func (s *scope) close() error {
	var errs []error
	for _, end := range slices.Backward(*s) {
		errs = append(errs, end())
	}
	*s = nil
	return errors.Join(errs...)
}

// own takes a cluster that was prepared into the scope.
func (s *scope) own(c *proc.Cluster, err error) (*proc.Cluster, error) {
	if err == nil {
		s.add(func() error { c.Close(); return nil })
	}
	return c, err
}

// start owns a cluster, and starts it.
func (s *scope) start(c *proc.Cluster, err error) (*proc.Cluster, error) {
	if c, err = s.own(c, err); err == nil {
		err = c.Start()
	}
	return c, err
}

// both starts one cluster of this build and one of what it is compared with.
func (b *bench) both() ([]*proc.Cluster, error) {
	ns, err := b.start(proc.NorthStar(b.northstar, 3))
	if err != nil {
		return nil, err
	}
	if b.comparePath != "" {
		other, err := b.start(proc.NorthStar(b.comparePath, 3))
		return []*proc.Cluster{ns, other}, err
	}
	bare, err := b.start(proc.Bare(b.baseline, 3))
	return []*proc.Cluster{ns, bare}, err
}

// other names what this build is compared with.
func (b *bench) other() string {
	if b.comparePath != "" {
		return "other build"
	}
	return "bare"
}

// sizes are those of the clusters that lose their leader.
func (b *bench) sizes() []int {
	if b.size != 0 {
		return []int{b.size}
	}
	return []int{3, 5}
}

func addresses(c *proc.Cluster) (all []string) {
	for _, n := range c.Nodes {
		all = append(all, n.HTTP)
	}
	return all
}

// progress prints now and then how many rounds are done.
func progress(name string, done, of int) {
	if done%10 == 0 || done == of {
		fmt.Fprintf(os.Stderr, "%s: %d of %d rounds\n", name, done, of)
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// quantiles sorts times, and returns some of their quantiles in ms.
func quantiles(times []time.Duration, qs ...float64) (all []any) {
	times = slices.Sorted(slices.Values(times))
	for _, q := range qs {
		all = append(all, ms(load.Quantile(times, q)))
	}
	return all
}

// printRow prints a name, and numbers in columns.
func printRow(name string, cells ...any) {
	fmt.Printf("  %-44s", name)
	for _, c := range cells {
		fmt.Printf(" %10v", c)
	}
	fmt.Println()
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
