package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// idle measures what a cluster costs that does nothing: the CPU time of all
// its processes over a while, and the memory of each.
func (b *bench) idle(ctx context.Context) error {
	ns, bare, err := b.both(3)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer bare.Close()
	clusters := []*proc.Cluster{ns, bare}
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
		fmt.Printf("  %-10s %5.1f %% of one core in all, RSS of the nodes %s MB\n", c.Kind,
			100*float64(cpu-before[i])/float64(window), megabytes(rss))
	}
	return nil
}

func usage(c *proc.Cluster) (cpu time.Duration, rss []int64, err error) {
	for _, n := range c.Nodes {
		u, err := n.Usage()
		if err != nil {
			return 0, nil, err
		}
		cpu += u.CPU
		rss = append(rss, u.RSS)
	}
	return cpu, rss, nil
}

func megabytes(bytes []int64) string {
	s := ""
	for i, b := range bytes {
		if i > 0 {
			s += " "
		}
		s += fmt.Sprintf("%.0f", float64(b)/(1<<20))
	}
	return s
}

// startup measures from starting the processes over empty data dirs to the
// first write that is acknowledged.
func (b *bench) startup(ctx context.Context) error {
	const starts = 20
	fmt.Printf("\nstart-up: 3 processes over empty data dirs to the first acknowledged write, %d starts each\n", starts)
	kinds := []struct {
		name string
		make func() (*proc.Cluster, error)
	}{
		{"northstar", func() (*proc.Cluster, error) { return proc.NorthStar(b.northstar, 3) }},
		{"bare raft", func() (*proc.Cluster, error) { return proc.Bare(b.baseline, 3, "--timeout-min", "150ms") }},
	}
	took := make([][]time.Duration, len(kinds))
	for range starts {
		for i, k := range kinds {
			d, err := firstWrite(ctx, k.make)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			took[i] = append(took[i], d)
		}
	}
	for i, k := range kinds {
		slices.Sort(took[i])
		fmt.Printf("  %-10s p50 %s ms, p99 %s ms\n", k.name, ms(load.Quantile(took[i], 0.5)),
			ms(load.Quantile(took[i], 0.99)))
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

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
