// Command benchmarks measures a NorthStar cluster beside a bare hashicorp/raft
// cluster in one run, in turns, so that a slow moment of the machine hits both.
//
//	go run ./benchmarks all | throughput | idle | startup | failover | transfer | steady
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"

	"northstar/chaos/proc"
)

type bench struct {
	dir       string // of the built binaries
	duration  time.Duration
	rounds    int
	failovers int
	transfers int
	size      int
	only      string
	minutes   float64
	logs      string
	northstar string
	bare      string
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
	fs.IntVar(&b.size, "size", 0, "nodes of the clusters that fail over; 0: first 3, then 5")
	fs.StringVar(&b.only, "only", "", "only the failovers whose name has this in it: kill, SIGSTOP, cut")
	fs.StringVar(&b.logs, "logs", "", "a directory to keep the nodes' logs of failovers in, which are then at debug; costs time")
	fs.Float64Var(&b.minutes, "minutes", 30, "of steady load")
	if len(args) == 0 {
		return fmt.Errorf("want one of: all, throughput, idle, startup, failover, transfer, steady")
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
	if b.northstar, err = b.build(ctx, "./cmd/northstar-node"); err != nil {
		return err
	}
	if b.bare, err = b.build(ctx, "./benchmarks/bare"); err != nil {
		return err
	}
	parts := map[string][]func(context.Context) error{
		"throughput": {b.throughput},
		"idle":       {b.idle},
		"startup":    {b.startup},
		"failover":   {b.failover},
		"transfer":   {b.transfer},
		"steady":     {b.steady},
		"all":        {b.startup, b.idle, b.throughput, b.failover},
	}
	todo, ok := parts[args[0]]
	if !ok {
		return fmt.Errorf("unknown benchmark %q: want all, throughput, idle, startup, failover, transfer or steady", args[0])
	}
	for _, f := range todo {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) build(ctx context.Context, pkg string) (string, error) {
	bin := filepath.Join(b.dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin, pkg)
	cmd.Stderr = os.Stderr
	return bin, cmd.Run()
}

// both prepares and starts one cluster of each kind.
func (b *bench) both(size int) (ns, bare *proc.Cluster, err error) {
	if ns, err = proc.NorthStar(b.northstar, size); err != nil {
		return nil, nil, err
	}
	if bare, err = proc.Bare(b.bare, size); err != nil {
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
