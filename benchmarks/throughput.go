package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

const (
	valueSize = 256
	keySpace  = 1000 // keys a client, so that values are overwritten
)

var clientCounts = []int{1, 16, 64, 256}

// throughput compares writes and linearizable reads. Both clusters run all the
// time; only one has load at any moment.
func (b *bench) throughput(ctx context.Context) error {
	ns, bare, err := b.both(3)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer bare.Close()

	fmt.Printf("\nthroughput: 3 nodes as processes, %d B values, HTTP on loopback, load sent to the leader, %s a run, median of %d\n", valueSize, b.duration, b.rounds)
	tw := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "load\tclients\tnorthstar/s\tp50 ms\tp99 ms\tbare/s\tp50 ms\tp99 ms\tratio\t")
	value := benchValue()
	ops := []struct {
		name string
		op   load.Op
	}{
		{"write", load.Op{Method: "PUT", Path: benchKey, Body: value}},
		{"read", load.Op{Method: "GET", Path: func(c, n int) string { return benchKey(0, n%10) }}},
	}
	for _, o := range ops {
		for _, clients := range clientCounts {
			var got [2][]load.Result
			for range b.rounds {
				for i, c := range []*proc.Cluster{ns, bare} {
					r, err := b.loadLeader(ctx, c, clients, o.op)
					if err != nil {
						return fmt.Errorf("%s, %s, %d clients: %w", c.Kind, o.name, clients, err)
					}
					got[i] = append(got[i], r)
				}
			}
			n, m := median(got[0]), median(got[1])
			fmt.Fprintf(tw, "%s\t%d\t%.0f\t%s\t%s\t%.0f\t%s\t%s\t%.2f\t\n", o.name, clients,
				n.PerSecond(), ms(n.P50), ms(n.P99), m.PerSecond(), ms(m.P50), ms(m.P99), n.PerSecond()/m.PerSecond())
		}
	}
	return tw.Flush()
}

func benchValue() []byte {
	value := make([]byte, valueSize)
	for i := range value {
		value[i] = 'a' + byte(i%26)
	}
	return value
}

func benchKey(client, n int) string {
	return fmt.Sprintf(apiv1.PathKVPrefix+"bench-%d-%d", client, n%keySpace)
}

func (b *bench) loadLeader(ctx context.Context, c *proc.Cluster, clients int, op load.Op) (load.Result, error) {
	leader, err := c.Leader(ctx)
	if err != nil {
		return load.Result{}, err
	}
	return load.Run(ctx, leader.HTTP, clients, b.duration, op)
}

func median(rs []load.Result) load.Result {
	slices.SortFunc(rs, func(a, b load.Result) int { return cmp.Compare(a.PerSecond(), b.PerSecond()) })
	return rs[len(rs)/2]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }
