package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/chaos/proc"
)

// content is what a cluster holds in one row of sizing.
type content struct {
	name string
	fill func(b *bench, ctx context.Context, s *nsSessions) error
}

// Of sizing.
const (
	fillClients  = 64
	sizingSettle = 12 * time.Second // for snapshots and garbage collection; longer than a TTL
	readyLimit   = 2 * time.Minute
	mostFailed   = 400 // writes of one client: a busy machine may change the leader, or stall its disk
	failedPause  = 50 * time.Millisecond
)

// contents are the rows.
func contents() (rows []content) {
	rows = append(rows, content{"empty", func(*bench, context.Context, *nsSessions) error { return nil }})
	for _, k := range []struct{ keys, bytes int }{
		{10_000, 256}, {100_000, 64}, {100_000, 256}, {100_000, 1 << 10}, {10_000, 16 << 10}, {500, 512 << 10},
	} {
		rows = append(rows, content{
			fmt.Sprintf("keys: %d of %d B", k.keys, k.bytes),
			func(_ *bench, ctx context.Context, s *nsSessions) error { return fillKeys(ctx, s, k.keys, k.bytes) },
		})
	}
	for _, n := range []int{1000, 10_000, 50_000} {
		rows = append(rows, content{
			fmt.Sprintf("sessions: %d renewed together", n),
			func(_ *bench, ctx context.Context, s *nsSessions) error {
				_, err := s.keep(ctx, n, keptTTL, false)
				return err
			},
		})
	}
	for _, n := range []int{1000, 4000} {
		rows = append(rows, content{
			fmt.Sprintf("sessions: %d attached to the leader", n),
			func(_ *bench, ctx context.Context, s *nsSessions) error {
				_, err := s.keep(ctx, n, keptTTL, true)
				return err
			},
		})
	}
	for _, n := range []int{1000, 3000} {
		rows = append(rows, content{
			fmt.Sprintf("watchers: %d at the leader", n),
			func(_ *bench, ctx context.Context, s *nsSessions) error { return s.watch(ctx, n) },
		})
	}
	for _, n := range []int{1000, 8000} {
		rows = append(rows, content{
			fmt.Sprintf("clients: %d idle connections at the leader", n),
			func(b *bench, ctx context.Context, s *nsSessions) error { return s.connect(ctx, b, n) },
		})
	}
	return rows
}

// sizing measures what three nodes need by what they hold: a cluster for each row.
func (b *bench) sizing(ctx context.Context) error {
	fmt.Printf("\nsizing: a cluster of 3 nodes for each row, %s after it was filled\n", sizingSettle)
	printRow("", "most MB", "least MB", "disk MB", "restart ms")
	for _, row := range contents() {
		if !strings.Contains(row.name, b.only) {
			continue
		}
		cells, err := b.sizeOf(ctx, row)
		if err = errors.Join(err, b.close()); err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		printRow(row.name, cells...)
	}
	return nil
}

// sizeOf fills a cluster, and measures the memory of its nodes, the disk that one needs, and the time from the start
// of a follower that was killed until it is ready.
func (b *bench) sizeOf(ctx context.Context, row content) ([]any, error) {
	s, err := b.startSessions(ctx)
	if err != nil {
		return nil, err
	}
	if err := row.fill(b, ctx, s); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.cluster.Logs())
	}
	if err := wait(ctx, sizingSettle); err != nil {
		return nil, err
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return nil, err
	}
	var rss []float64
	var disk float64
	var follower *proc.Node
	for _, n := range s.cluster.Nodes {
		used, err := n.Usage()
		if err != nil {
			return nil, err
		}
		if rss = append(rss, float64(used.RSS)/(1<<20)); n != leader {
			follower = n
		}
		if disk, err = diskUsage(s.cluster.DataDir(n)); err != nil {
			return nil, err
		}
	}
	took, err := restart(ctx, s.cluster, follower)
	return []any{
		fmt.Sprintf("%.0f", slices.Max(rss)), fmt.Sprintf("%.0f", slices.Min(rss)), fmt.Sprintf("%.1f", disk),
		fmt.Sprint(took.Milliseconds()),
	}, err
}

// diskUsage is what the files of a directory occupy, in MB, without the reserve.
func diskUsage(dir string) (mb float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && d.Name() != "reserve" {
			mb += float64(st.Blocks) * 512 / (1 << 20)
		}
		return nil
	})
	return mb, err
}

// restart kills a node, starts it again, and returns how long it takes until it is ready.
func restart(ctx context.Context, c *proc.Cluster, n *proc.Node) (time.Duration, error) {
	n.Kill()
	began := time.Now()
	if err := c.StartNode(n); err != nil {
		return 0, err
	}
	for time.Since(began) < readyLimit {
		if _, err := proc.Get(ctx, "http://"+n.HTTP+"/readyz"); err == nil {
			return time.Since(began), nil
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%s is not ready:\n%s", n.ID, c.Log(n))
}

// fillKeys writes so many keys of one size.
func fillKeys(ctx context.Context, s *nsSessions, keys, bytes int) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	value := make([]byte, bytes)
	for i := range value {
		value[i] = 'a' + byte(i%26)
	}
	var all errgroup.Group
	for client := range fillClients {
		all.Go(func() error {
			conn, err := load.Dial(ctx, leader.HTTP)
			if err != nil {
				return err
			}
			defer conn.Close()
			for i, failed := client, 0; i < keys; {
				status, err := conn.Do("PUT", fmt.Sprintf(apiv1.PathKVPrefix+"key-%08d", i), value)
				switch {
				case err == nil && status == 200:
					i += fillClients
				case err != nil || failed == mostFailed:
					return errors.Join(fmt.Errorf("key %d: status %d", i, status), err)
				default:
					failed++
					_ = wait(ctx, failedPause)
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// watch holds so many watches of a key each, by connections of their own to the leader.
func (s *nsSessions) watch(ctx context.Context, n int) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(createClients)
	for i := range n {
		all.Go(func() error {
			_, err := s.stream(ctx, leader.HTTP, fmt.Sprintf("%s?prefix=watched-%d", apiv1.PathWatch, i))
			return err
		})
	}
	return all.Wait()
}

// connect holds so many connections of a caller with an identity. Of those without one, a node closes idle ones.
func (s *nsSessions) connect(ctx context.Context, b *bench, n int) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	for range n {
		conn, err := load.Dial(ctx, leader.HTTP)
		if err != nil {
			return err
		}
		b.add(conn.Close)
		if status, err := conn.Do("GET", apiv1.PathRoles, nil); err != nil || status != 200 {
			return errors.Join(fmt.Errorf("GET %s: status %d", apiv1.PathRoles, status), err)
		}
	}
	return nil
}
