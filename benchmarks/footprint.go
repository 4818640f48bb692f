package main

import (
	"context"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// idle measures what a cluster costs that does nothing: the CPU time of all
// its processes over a while, and the memory of each.
func (b *bench) idle(ctx context.Context) error {
	clusters, err := b.both()
	if err != nil {
		return err
	}
	for _, c := range clusters {
		if _, err := c.Leader(ctx); err != nil {
			return err
		}
	}
	const settle, window = 5 * time.Second, 30 * time.Second
	if err := wait(ctx, settle); err != nil {
		return err
	}
	before := make([]time.Duration, len(clusters))
	for i, c := range clusters {
		if before[i], _, err = usage(c); err != nil {
			return err
		}
	}
	if err := wait(ctx, window); err != nil {
		return err
	}
	fmt.Printf("\nidle: 3 nodes over %s (bare raft at its default timeouts of 1 s)\n", window)
	for i, c := range clusters {
		cpu, rss, err := usage(c)
		if err != nil {
			return err
		}
		name := c.Kind
		if i > 0 {
			name = b.other()
		}
		fmt.Printf("  %-11s %5.1f %% of one core in all, RSS of the nodes %.0f MB\n", name,
			100*float64(cpu-before[i])/float64(window), rss)
	}
	return nil
}

// usage returns the CPU time of all nodes so far, and the memory of each in MB.
func usage(c *proc.Cluster) (cpu time.Duration, rss []float64, err error) {
	for _, n := range c.Nodes {
		u, err := n.Usage()
		if err != nil {
			return 0, nil, err
		}
		cpu += u.CPU
		rss = append(rss, float64(u.RSS)/(1<<20))
	}
	return cpu, rss, nil
}

// startup measures from starting the processes over empty data dirs to the first write that is acknowledged.
func (b *bench) startup(ctx context.Context) error {
	const starts = 20
	fmt.Printf("\nstart-up: 3 processes over empty data dirs to the first acknowledged write, %d starts each\n", starts)
	kinds := []string{"northstar", b.other()}
	prepare := map[string]func() (*proc.Cluster, error){
		"northstar": func() (*proc.Cluster, error) { return proc.NorthStar(b.northstar, 3) },
		b.other():   func() (*proc.Cluster, error) { return proc.Bare(b.baseline, 3, "--timeout-min", "150ms") },
	}
	if b.comparePath != "" {
		prepare[b.other()] = func() (*proc.Cluster, error) { return proc.NorthStar(b.comparePath, 3) }
	}
	took := map[string][]time.Duration{}
	for range starts {
		for _, kind := range kinds {
			d, err := firstWrite(ctx, prepare[kind])
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			took[kind] = append(took[kind], d)
		}
	}
	printRow("ms", "p50", "p99")
	for _, kind := range kinds {
		printRow(kind, quantiles(took[kind], 0.5, 0.99)...)
	}
	return nil
}

func firstWrite(ctx context.Context, prepare func() (*proc.Cluster, error)) (time.Duration, error) {
	c, err := prepare()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	if err := c.Start(); err != nil {
		return 0, err
	}
	for i := 0; ; i++ {
		n := c.Nodes[i%len(c.Nodes)]
		if conn, err := load.Dial(ctx, n.HTTP); err == nil {
			status, err := conn.Do("PUT", apiv1.PathKVPrefix+"first", []byte("x"))
			conn.Close()
			if err == nil && status/100 == 2 {
				return time.Since(began), nil
			}
		}
		if time.Since(began) > 15*time.Second {
			return 0, fmt.Errorf("no write in 15 s\n%s", c.Logs())
		}
		if err := wait(ctx, 2*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
