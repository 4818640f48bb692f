package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// writersBeside write while the leader is asked for.
const writersBeside = 16

// discovery measures how soon clients know who leads: GET /leader, at all nodes
// and after a crash, and what the Go client adds to a failover: from when the new
// leader takes writes to the first one that it acknowledges to the client.
func (b *bench) discovery(ctx context.Context) (err error) {
	fmt.Println(describeHost())
	size := max(b.size, 3)
	h := &host{}
	defer func() { err = errors.Join(err, h.close()) }()
	c, err := proc.NorthStar(b.northstar, size, "--failover-takeover-delay", "1h")
	if err != nil {
		return err
	}
	h.clusters = append(h.clusters, c)
	if err := c.Start(); err != nil {
		return err
	}
	fmt.Printf("\ndiscovery: %d nodes; ms, p50 / p99 / max\n", size)
	if err := askedFor(ctx, c, "GET /leader", b.duration); err != nil {
		return err
	}
	s := &clusterUnderTest{
		name: "northstar, Go client", cluster: c, viaClient: true, ours: true, fast: true,
		healedAt: new(time.Time),
	}
	*s.healedAt = time.Now()
	for round := range b.failovers {
		if err := s.round(ctx, faults[0]); err != nil {
			return fmt.Errorf("round %d: %w\n%s", round+1, err, c.Logs())
		}
		if (round+1)%10 == 0 {
			fmt.Fprintf(os.Stderr, "discovery: %d of %d rounds\n", round+1, b.failovers)
		}
	}
	found := s.rediscoveries()
	fmt.Printf("  %-44s %28s (aim for p99: 10), %d of %d crashes\n", "new leader serves to the Go client's write",
		quantiles(found), len(found), b.failovers)
	fmt.Printf("  %-44s %28s\n", "the whole gap", quantiles(s.gaps))
	return ctx.Err()
}

// rediscoveries are the last steps of the failovers whose steps are known.
func (s *clusterUnderTest) rediscoveries() (found []time.Duration) {
	for _, l := range s.phaseTimes {
		found = append(found, l[len(l)-1])
	}
	return found
}

// askedFor asks for the leader on an idle cluster, and on one that is written to.
func askedFor(ctx context.Context, c *proc.Cluster, name string, during time.Duration) error {
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	idle, err := askForLeader(ctx, c)
	if err != nil {
		return err
	}
	fmt.Printf("  %-44s %28s (aim for p99: 2)\n", name, quantiles(idle))
	written := make(chan error, 1)
	go func() { // ends on its own
		_, err := load.Run(ctx, leader.HTTP, writersBeside, during, load.Op{
			Method: "PUT", Path: benchKey,
			Body: benchValue(),
		})
		written <- err
	}()
	var busy []time.Duration
	for {
		some, err := askForLeader(ctx, c)
		if err != nil {
			return err
		}
		busy = append(busy, some...)
		select {
		case err := <-written:
			fmt.Printf("  %-44s %28s\n", fmt.Sprintf("… while %d clients write", writersBeside), quantiles(busy))
			return err
		default:
		}
	}
}
