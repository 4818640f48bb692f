// Command benchmarks measures a NorthStar cluster beside a bare hashicorp/raft
// cluster, or etcd where it does what that library does not, in one run, in turns,
// so that a slow moment of the machine hits both.
//
//	go run ./benchmarks all | throughput | idle | startup | failover | transfer | discovery | soak | roles | sessions
package main

import (
	"context"
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

	"northstar/chaos/proc"
)

type bench struct {
	dir              string // of the built binaries
	duration         time.Duration
	rounds           int
	failovers        int
	transfers        int
	elections        int
	renewedTogether  int
	attachedSessions int
	noCompare        bool
	size             int
	only             string
	minutes          float64
	logs             string
	comparePath      string
	northstar        string
	baseline         string
	roleholder       string
	etcdBin          string
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
	fs.DurationVar(&b.duration, "duration", 4*time.Second, "of each measured load")
	fs.IntVar(&b.rounds, "rounds", 3, "turns of each load; the median one is printed")
	fs.IntVar(&b.failovers, "failovers", 100, "rounds of failover, for each cluster")
	fs.IntVar(&b.transfers, "transfers", 100, "rounds of planned transfers, for each cluster")
	fs.IntVar(&b.elections, "elections", 100, "rounds of role elections, for each cluster")
	fs.IntVar(&b.renewedTogether, "sessions", 50_000, "sessions that are renewed together; a multiple of 1000, or less")
	fs.IntVar(&b.attachedSessions, "attached", 2000, "sessions that are held by a connection each")
	fs.BoolVar(&b.noCompare, "no-compare", false, "roles and sessions without etcd; failovers with bare Raft only")
	fs.IntVar(&b.size, "size", 0, "nodes of the clusters that fail over; 0: first 3, then 5")
	fs.StringVar(&b.only, "only", "", "only the failovers whose name has this in it: kill, SIGSTOP, cut")
	fs.StringVar(&b.logs, "logs", "",
		"a directory to keep the nodes' logs of failovers in, which are then at debug; costs time")
	fs.StringVar(&b.comparePath, "compare", "",
		"another build of northstar-node; failovers are measured with it in turns, and with nothing else")
	fs.Float64Var(&b.minutes, "minutes", 30, "of the soak test")
	names := strings.Join(slices.Sorted(maps.Keys(parts)), ", ")
	if len(args) == 0 {
		return fmt.Errorf("want one of: %s", names)
	}
	todo, ok := parts[args[0]]
	if !ok {
		return fmt.Errorf("unknown benchmark %q: want one of %s", args[0], names)
	}
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "northstar-bench-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.dir = dir
	if err := b.programs(ctx, args[0]); err != nil {
		return err
	}
	for _, f := range todo {
		if err := f(b, ctx); err != nil {
			return err
		}
	}
	return nil
}

var parts = map[string][]func(*bench, context.Context) error{
	"throughput": {(*bench).throughput},
	"idle":       {(*bench).idle},
	"startup":    {(*bench).startup},
	"failover":   {(*bench).failover},
	"transfer":   {(*bench).transfer},
	"discovery":  {(*bench).discovery},
	"soak":       {(*bench).soak},
	"roles":      {(*bench).roles},
	"sessions":   {(*bench).sessions},
	"all":        {(*bench).startup, (*bench).idle, (*bench).throughput, (*bench).failover},
}

// programs builds what a benchmark starts. etcd is large, and takes minutes the
// first time.
func (b *bench) programs(ctx context.Context, name string) (err error) {
	if b.northstar, err = b.build(ctx, ".", "./cmd/northstar-node"); err != nil {
		return err
	}
	if name != "roles" && name != "sessions" {
		b.baseline, err = b.build(ctx, ".", "./benchmarks/baseline")
		return err
	}
	if b.roleholder, err = b.build(ctx, ".", "./benchmarks/roleholder"); err != nil || b.noCompare {
		return err
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

// both prepares and starts one cluster of each kind.
func (b *bench) both(size int) (ns, bare *proc.Cluster, err error) {
	if ns, err = proc.NorthStar(b.northstar, size); err != nil {
		return nil, nil, err
	}
	if bare, err = proc.Bare(b.baseline, size); err != nil {
		ns.Close()
		return nil, nil, err
	}
	for _, c := range []*proc.Cluster{ns, bare} {
		if err = c.Start(); err != nil {
			ns.Close()
			bare.Close()
			return nil, nil, err
		}
	}
	return ns, bare, nil
}
