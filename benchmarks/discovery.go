package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"northstar/benchmarks/load"
)

// writersBeside write while the leader is asked for.
const writersBeside = 16

// discovery measures how soon clients know who leads: GET /leader, at all nodes
// and after a crash, and what the Go client adds to a failover: from when the new
// leader takes writes to the first one that it acknowledges to the client, which is the last step.
func (b *bench) discovery(ctx context.Context) error {
	size := max(b.size, 3)
	s, err := b.prepareNorthStar(faults[0], size, "northstar, Go client", b.northstar,
		"--failover-takeover-delay", "1h")
	if err != nil {
		return err
	}
	s.viaClient = true
	if err := s.cluster.Start(); err != nil {
		return err
	}
	leader, err := s.cluster.Leader(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\ndiscovery: %d nodes, GET /leader at all nodes in turn; ms\n", size)
	printRow("", "p50", "p99", "max")
	idle, err := askForLeader(ctx, s.cluster)
	if err != nil {
		return err
	}
	printRow("idle", quantiles(idle, 0.5, 0.99, 1)...)
	written := make(chan error, 1)
	go func() { // ends on its own
		_, err := load.Run(ctx, leader.HTTP, writersBeside, b.duration, benchWrite())
		written <- err
	}()
	var busy []time.Duration
	for len(written) == 0 {
		some, err := askForLeader(ctx, s.cluster)
		if err != nil {
			return err
		}
		busy = append(busy, some...)
	}
	printRow(fmt.Sprintf("while %d clients write", writersBeside), quantiles(busy, 0.5, 0.99, 1)...)
	printRow("(aim)", "", 2)
	s.cluster.KillAll()
	return errors.Join(<-written, measure(ctx, faults[0], size, b.failovers, [][]*subject{{s}}))
}
