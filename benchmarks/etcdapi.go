package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"northstar/benchmarks/load"
)

// etcdAPI names NorthStar where etcd's own client drives it.
const etcdAPI = "northstar, etcd API"

// startBoth starts a cluster of each kind, which the same program drives. With -compare, another build is one of them.
func (b *bench) startBoth(ctx context.Context) (names []string, suts []*etcd, err error) {
	ours, err := b.startEtcdAPI(ctx, b.northstar)
	names, suts = []string{etcdAPI}, []*etcd{ours}
	if err == nil && b.comparePath != "" {
		var build *etcd
		build, err = b.startEtcdAPI(ctx, b.comparePath)
		names, suts = append(names, b.comparePath), append(suts, build)
	}
	if err != nil || b.noCompare {
		return names, suts, err
	}
	other, err := b.startEtcd(ctx)
	return append(names, "etcd"), append(suts, other), err
}

// sharedBy is how many clients share a connection, in the second half of the rows.
const sharedBy = 16

// etcdLoad is what clients do, over so many connections.
type etcdLoad struct {
	command              string
	clients, connections int
	first                int // the first connection is to the node that follows the leader by so many
}

func (l etcdLoad) String() string {
	switch {
	case l.clients > 1:
		return fmt.Sprintf("%s, %d clients, %d connections", l.command, l.clients, l.connections)
	case l.first == 0:
		return l.command + ", 1 client, at the leader"
	}
	return l.command + ", 1 client, at a follower"
}

// etcdLoads returns the loads that are wanted.
func (b *bench) etcdLoads() (loads []etcdLoad) {
	for _, command := range []string{"put", "range"} {
		for _, l := range []etcdLoad{
			{clients: 1, connections: 1},
			{clients: 1, connections: 1, first: 1},
			{clients: 64, connections: 64},
			{clients: 256, connections: 256},
			{clients: 64, connections: 64 / sharedBy},
			{clients: 256, connections: 256 / sharedBy},
		} {
			if l.command = command; b.wants(l.String()) {
				loads = append(loads, l)
			}
		}
	}
	return loads
}

// etcdThroughput compares puts and linearizable ranges of etcd's Go client, which are spread over all nodes.
func (b *bench) etcdThroughput(ctx context.Context) error {
	loads := b.etcdLoads()
	if len(loads) == 0 {
		return nil
	}
	names, suts, err := b.startBoth(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\netcd API: 3 nodes, clientv3 at all nodes, %d B values, %s a run, median of %d\n", valueSize, b.duration,
		b.rounds)
	columns := []any{}
	for range names {
		columns = append(columns, "/s", "p50 ms", "p99 ms", "CPU µs")
	}
	printRow(fmt.Sprint(names), append(columns, "ratio")...)
	for _, l := range loads {
		row, err := b.etcdRow(ctx, suts, l)
		if err != nil {
			return err
		}
		printRow(l.String(), row...)
	}
	return nil
}

// etcdRow measures one load on each cluster, in turns. The CPU time is that of all nodes for one operation.
func (b *bench) etcdRow(ctx context.Context, suts []*etcd, l etcdLoad) (row []any, err error) {
	got, used := make([][]load.Result, len(suts)), make([]time.Duration, len(suts))
	for range b.rounds {
		for i, e := range suts {
			before, _, err := usage(e.cluster)
			if err != nil {
				return nil, err
			}
			r, err := e.result(ctx, b.duration, l.command, l.clients, b.duration.Milliseconds(), l.connections,
				l.first)
			if err != nil {
				return nil, err
			}
			after, _, err := usage(e.cluster)
			if err != nil {
				return nil, err
			}
			got[i], used[i] = append(got[i], r), used[i]+after-before
		}
	}
	var medians []load.Result
	for i, results := range got {
		m := median(results)
		medians = append(medians, m)
		row = append(row, fmt.Sprintf("%.0f", m.PerSecond()), ms(m.P50), ms(m.P99),
			fmt.Sprintf("%.0f", float64(used[i].Microseconds())/operations(results)))
	}
	if last := len(medians) - 1; last > 0 {
		row = append(row, fmt.Sprintf("%.2f", medians[0].PerSecond()/medians[last].PerSecond()))
	}
	return row, nil
}

// warmup is the part of a run that the driver adds before it, which uses the nodes' CPU as well.
const warmup = 0.2

// operations returns how many operations the runs have done, with those of their warm-up.
func operations(runs []load.Result) (n float64) {
	for _, r := range runs {
		n += (1 + warmup) * float64(r.Done)
	}
	return n
}

// wants reports whether -only leaves a measurement of the etcd API in.
func (b *bench) wants(name string) bool { return strings.Contains(name, b.only) }

// etcdLeases compares what a leader uses while clientv3 keeps leases alive.
func (b *bench) etcdLeases(ctx context.Context) error {
	if !b.wants("leases") {
		return nil
	}
	fmt.Printf("\n%d leases of %s, kept alive by clientv3: the leader over %s\n", b.renewedTogether, keptTTL, keptWindow)
	printRow("", "% of a core", "RSS MB", "KB each", "ended")
	for _, name := range b.etcdContenders() {
		if err := errors.Join(b.keptBy(ctx, name, b.renewedTogether, false), b.close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) etcdContenders() []string {
	if b.noCompare {
		return []string{etcdAPI}
	}
	return []string{etcdAPI, "etcd"}
}

// etcdWatchers compares how fast events reach many watchers, at all nodes, and what that costs the nodes.
func (b *bench) etcdWatchers(ctx context.Context) error {
	const window = 10 * time.Second
	if !b.wants("watchers") {
		return nil
	}
	names, suts, err := b.startBoth(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d watchers of 100 keys, %d puts a second for %s: from the put to each watcher\n", b.watchers,
		b.eventRate, window)
	printRow("", "events/s", "p50 ms", "p99 ms", "% of a core", "RSS MB")
	for i, e := range suts {
		if _, err := e.do(ctx, "watch", b.watchers); err != nil {
			return err
		}
		if err := wait(ctx, time.Second); err != nil {
			return err
		}
		before, _, err := usage(e.cluster)
		if err != nil {
			return err
		}
		began := time.Now()
		r, err := e.result(ctx, window, "events", b.eventRate, window.Milliseconds())
		if err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		took := time.Since(began)
		after, rss, err := usage(e.cluster)
		if err != nil {
			return err
		}
		printRow(names[i], fmt.Sprintf("%.0f", r.PerSecond()), ms(r.P50), ms(r.P99),
			fmt.Sprintf("%.1f", 100*float64(after-before)/float64(took)), fmt.Sprintf("%.0f", rss))
	}
	return nil
}

// etcdElections compares elections of clientv3's package concurrency. On NorthStar, a lease may also end with its
// connection: because the nodes are configured so, or because the client asks for it.
func (b *bench) etcdElections(ctx context.Context) error {
	if !b.wants("elections") {
		return nil
	}
	names, clusters, err := b.startBoth(ctx)
	if err != nil {
		return err
	}
	switched, err := b.startEtcdAPI(ctx, b.northstar, "--etcd-lease-connection")
	if err != nil {
		return err
	}
	asking, err := b.startDriver(ctx, clusters[0].cluster, clusters[0].clients, "--attach")
	if err != nil {
		return err
	}
	names = append(names, "lease-connection", "northstar-attach")
	var suts []roleSUT
	for i, e := range append(clusters, switched, asking) {
		suts = append(suts, roleSUT{names[i], e.cluster, e.took, map[string][]time.Duration{}})
	}
	if err := b.elect(ctx, suts); err != nil {
		return err
	}
	fmt.Printf("\nelections of clientv3: 3 nodes, TTL 1 s of holders that are killed, %d rounds in turns; ms\n", b.elections)
	printElections(suts, false)
	return nil
}
