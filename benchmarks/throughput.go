package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
)

const (
	valueSize = 256
	keySpace  = 1000 // keys a client, so that values are overwritten
)

var clientCounts = []int{1, 16, 64, 256}

// throughput compares writes and linearizable reads. Both clusters run all the time; only one has load at any moment.
func (b *bench) throughput(ctx context.Context) error {
	clusters, err := b.both()
	if err != nil {
		return err
	}
	fmt.Printf("\nthroughput: 3 nodes as processes, %d B values, HTTP on loopback, load sent to the leader, %s a run, median of %d\n", valueSize, b.duration, b.rounds)
	printRow("", "northstar/s", "p50 ms", "p99 ms", b.other()+"/s", "p50 ms", "p99 ms", "ratio")
	ops := []struct {
		name string
		op   load.Op
	}{
		{"write", benchWrite()},
		{"read", load.Op{Method: "GET", Path: func(c, n int) string { return benchKey(0, n%10) }}},
	}
	for _, o := range ops {
		for _, clients := range clientCounts {
			got := make([][]load.Result, len(clusters))
			for range b.rounds {
				for i, c := range clusters {
					leader, err := c.Leader(ctx)
					if err != nil {
						return err
					}
					r, err := load.Run(ctx, leader.HTTP, clients, b.duration, o.op)
					if err != nil {
						return fmt.Errorf("%s, %s, %d clients: %w", c.Kind, o.name, clients, err)
					}
					got[i] = append(got[i], r)
				}
			}
			n, m := median(got[0]), median(got[1])
			printRow(fmt.Sprintf("%s, %d clients", o.name, clients), fmt.Sprintf("%.0f", n.PerSecond()), ms(n.P50),
				ms(n.P99), fmt.Sprintf("%.0f", m.PerSecond()), ms(m.P50), ms(m.P99),
				fmt.Sprintf("%.2f", n.PerSecond()/m.PerSecond()))
		}
	}
	return nil
}

// benchWrite writes one value after the other.
func benchWrite() load.Op {
	value := make([]byte, valueSize)
	for i := range value {
		value[i] = 'a' + byte(i%26)
	}
	return load.Op{Method: "PUT", Path: benchKey, Body: value}
}

func benchKey(client, n int) string {
	return fmt.Sprintf(apiv1.PathKVPrefix+"bench-%d-%d", client, n%keySpace)
}

func median(rs []load.Result) load.Result {
	slices.SortFunc(rs, func(a, b load.Result) int { return cmp.Compare(a.PerSecond(), b.PerSecond()) })
	return rs[len(rs)/2]
}
