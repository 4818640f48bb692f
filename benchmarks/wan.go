package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// wanRows are what is measured: a round trip between any two nodes, and election.timeout-min.
var wanRows = []struct{ roundTrip, timeout time.Duration }{
	{0, 150 * time.Millisecond},
	{5 * time.Millisecond, 150 * time.Millisecond},
	{30 * time.Millisecond, 150 * time.Millisecond},
	{30 * time.Millisecond, 300 * time.Millisecond},
	{80 * time.Millisecond, 150 * time.Millisecond},
	{80 * time.Millisecond, 400 * time.Millisecond},
	{80 * time.Millisecond, 800 * time.Millisecond},
}

// wanIdle is for how long elections without a reason are waited for.
const wanIdle = 10 * time.Second

// wan measures three nodes that are far apart: what writes and reads cost, and how long failovers and transfers take,
// by the round trip and the timeouts. Clients are near the node that they use.
func (b *bench) wan(ctx context.Context) error {
	kind := fault{network: true}
	if missing := kind.missing(); missing != nil {
		fmt.Println("wan: not measured:", missing)
		return nil
	}
	fmt.Printf("\nwan: 3 nodes with a delay between any two, %d failures of each kind; times in ms, p50/max\n", b.failovers)
	printRow("round trip, timeout-min", "write", "at follower", "write/s 64", "read", "kill", "cut", "transfer",
		"the call", "needless")
	for _, row := range wanRows {
		name := fmt.Sprintf("%d ms, %d ms", row.roundTrip.Milliseconds(), row.timeout.Milliseconds())
		if !strings.HasPrefix(name, b.only) {
			continue
		}
		cells, err := b.wanRow(ctx, kind, row.roundTrip, row.timeout)
		if err = errors.Join(err, b.close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		printRow(name, cells...)
	}
	return nil
}

// wanRow measures a cluster of its own.
func (b *bench) wanRow(ctx context.Context, kind fault, roundTrip, timeout time.Duration) ([]any, error) {
	s := &subject{ours: true, timeout: timeout, roundTrip: roundTrip, open: openSurvivor}
	err := b.prepare(s, kind, func() (*proc.Cluster, error) {
		return proc.NorthStar(b.northstar, 3, "--insecure", "--failover-takeover-delay", "1h", "--election-timeout-min",
			timeout.String(), "--election-timeout-max", (2 * timeout).String())
	})
	if err == nil && roundTrip > 0 {
		err = s.network.Delay(roundTrip / 2)
	}
	if err == nil {
		err = s.cluster.Start()
	}
	if err != nil {
		return nil, err
	}
	*s.healedAt = time.Now()
	if err := s.waitStable(ctx); err != nil {
		return nil, err
	}
	before, err := s.elections(ctx)
	if err != nil {
		return nil, err
	}
	cells, err := b.wanLoads(ctx, s)
	if err == nil {
		err = wait(ctx, wanIdle)
	}
	if err != nil {
		return nil, err
	}
	after, err := s.elections(ctx)
	if err != nil {
		return nil, err
	}
	needless := len(after.since(before.term()))
	for _, kind := range []fault{faults[0], faults[2], plannedTransfer} {
		s.gaps, s.calls = nil, nil
		for range b.failovers {
			if err := failureRound(ctx, kind, []*subject{s}); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", kind.name, err, s.cluster.Logs())
			}
		}
		cells = append(cells, spread(s.gaps))
	}
	return append(cells, spread(s.calls), needless), nil
}

// wanLoads measures writes and linearizable reads.
func (b *bench) wanLoads(ctx context.Context, s *subject) (cells []any, err error) {
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, err
	}
	follower := s.without(leader)[0]
	read := load.Op{Method: "GET", Path: func(int, int) string { return benchKey(0, 0) }}
	for _, l := range []struct {
		at      *proc.Node
		clients int
		op      load.Op
	}{{leader, 1, benchWrite()}, {follower, 1, benchWrite()}, {leader, 64, benchWrite()}, {leader, 1, read}} {
		r, err := load.Run(ctx, l.at.HTTP, l.clients, b.duration, l.op)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil: // there was no leader for so long
			cells = append(cells, "none")
		case l.clients > 1:
			cells = append(cells, fmt.Sprintf("%.0f", r.PerSecond()))
		default:
			cells = append(cells, ms(r.P50))
		}
	}
	return cells, nil
}

// spread is the median and the longest of some times, in ms.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%d/%d", load.Quantile(sorted, 0.5).Milliseconds(), sorted[len(sorted)-1].Milliseconds())
}
