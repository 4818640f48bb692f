package compat

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var (
	gapLimits  = flag.Bool("limits", false, "fail when the gaps of writers exceed the aims: only on a machine without other load")
	crashFleet = flag.Int("writers", 64, "clients that write while leaders are killed")
)

// The aims for the gap of one writer.
const (
	gapP50 = 10 * time.Millisecond
	gapP99 = 25 * time.Millisecond
)

// TestWritersThroughCrashes kills leaders under clients at the nodes that live on, each with a connection of its own.
// No write fails. It prints the gaps: of one writer, and of all of them, the longest time between two acknowledgements
// of one writer into which the kill falls, or which begins while its last answer is under way.
func TestWritersThroughCrashes(t *testing.T) {
	nodes := startNorthstar(t, 3, calm()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*watchKills)*roundLimit)
	defer cancel()
	var one, all []time.Duration
	var writes int64
	for kill := range *watchKills {
		gaps, done := crashRound(ctx, t, nodes)
		if t.Failed() {
			t.Fatalf("failed at kill %d", kill)
		}
		one, all, writes = append(one, gaps[0]), append(all, gaps...), writes+done
	}
	t.Logf("%d kills, %d writers, %d writes, no error; load of the machine: %s", *watchKills, *crashFleet, writes, load())
	t.Logf("gap of one writer:  %s", spread(one))
	t.Logf("gap of each writer: %s", spread(all))
	if *gapLimits && (at(one, 0.5) > gapP50 || at(one, 0.99) > gapP99) {
		t.Errorf("the gap of one writer exceeds %v, %v", gapP50, gapP99)
	}
}

// at returns a quantile of sorted times.
func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// spread sorts times and describes them.
func spread(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, max %v", at(all, 0.5), at(all, 0.9), at(all, 0.99), all[len(all)-1])
}

// load returns the load averages of the machine.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// crashRound kills the leader once and returns the gap of each writer.
func crashRound(ctx context.Context, t *testing.T, nodes []*node) (gaps []time.Duration, done int64) {
	first, others := leader(t, nodes)
	stop, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	var acknowledged atomic.Int64
	acks := make([][]time.Time, *crashFleet)
	for w := range acks {
		c := newClient(t, others[w%len(others)])
		running.Go(func() {
			defer c.Close()
			acks[w] = write(ctx, stop, t, c, fmt.Sprint("/gap/", w), &acknowledged)
		})
	}
	each := int64(len(acks)) * 20
	awaitCount(ctx, t, &acknowledged, each)
	pause(ctx, rand.N(20*time.Millisecond)) // not in step with the writes
	killed := time.Now()
	first.signal(t)
	died := time.Now()
	awaitCount(ctx, t, &acknowledged, acknowledged.Load()+each)
	end()
	running.Wait()
	first.kill()
	for w := range acks {
		gaps = append(gaps, gap(acks[w], killed, died.Add(underWay)))
	}
	first.start(t)
	awaitMember(ctx, t, first)
	return gaps, acknowledged.Load()
}

// underWay is for how long after a kill answers of the killed node may still arrive.
const underWay = 2 * time.Millisecond

// gap returns the longest time between two acknowledgements, the second after from and the first not after to.
func gap(acks []time.Time, from, to time.Time) (longest time.Duration) {
	for i := 1; i < len(acks) && !acks[i-1].After(to); i++ {
		if acks[i].After(from) {
			longest = max(longest, acks[i].Sub(acks[i-1]))
		}
	}
	return longest
}

// write writes a key, 1 to 2 ms after the acknowledgement before, until stop ends. It returns the times of the
// acknowledgements.
func write(
	ctx, stop context.Context, t *testing.T, c *clientv3.Client, key string, acknowledged *atomic.Int64,
) (acks []time.Time) {
	for stop.Err() == nil {
		began := time.Now()
		if _, err := c.Put(ctx, key, "value"); err != nil {
			t.Errorf("put through a living node, after %v: %v", time.Since(began), err)
			return acks
		}
		acks = append(acks, time.Now())
		acknowledged.Add(1)
		pause(stop, time.Millisecond+rand.N(time.Millisecond))
	}
	return acks
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
