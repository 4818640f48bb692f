package compat

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

var watchKills = flag.Int("kills", 3, "leader kills of the tests that have them")

// roundLimit is the time for one leader kill, on a busy machine.
const roundLimit = 30 * time.Second

// Of a round of TestWatchesThroughCrashes.
const (
	watches      = 1000
	watchWrites  = 5 // of each key
	watchWriters = 8
)

// TestWatchesThroughCrashes kills leaders under 1,000 watches at the nodes that live on. Each watch sees each write of
// its key once and in order, none is cancelled, the revisions of its headers never decrease, and no progress message
// names the revision of an event that comes later.
func TestWatchesThroughCrashes(t *testing.T) {
	nodes := startNorthstar(t, 3, calm()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*watchKills)*roundLimit)
	defer cancel()
	var progress atomic.Int64
	for kill := range *watchKills {
		watchRound(ctx, t, nodes, kill, &progress)
		if t.Failed() {
			t.Fatalf("failed at kill %d", kill)
		}
	}
	if progress.Load() == 0 {
		t.Error("no progress message has come")
	}
	t.Logf("%d kills under %d watches: each event once and in order, %d progress messages", *watchKills, watches,
		progress.Load())
}

// watchRound kills the leader once.
func watchRound(ctx context.Context, t *testing.T, nodes []*node, kill int, progress *atomic.Int64) {
	first, others := leader(t, nodes)
	round, end := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var seen, asking sync.WaitGroup
	clients := []*clientv3.Client{newClient(t, others[0]), newClient(t, others[1])}
	for i := range watches {
		key := fmt.Sprintf("/watch/%d/%d", kill, i)
		events := clients[i%2].Watch(round, key, clientv3.WithCreatedNotify())
		if r, ok := <-events; !ok || !r.Created {
			t.Fatalf("%s is not created: %v", key, r)
		}
		seen.Go(func() { progress.Add(follow(round, t, key, events)) })
	}
	for _, c := range clients {
		asking.Go(func() {
			for round.Err() == nil {
				_ = c.RequestProgress(round) // a failed one is asked for again
				select {
				case <-time.After(100 * time.Millisecond):
				case <-round.Done():
				}
			}
		})
	}
	var writers sync.WaitGroup
	var acknowledged atomic.Int64
	for w := range watchWriters {
		writers.Go(func() {
			for n := range watchWrites {
				for i := w; i < watches; i += watchWriters {
					key := fmt.Sprintf("/watch/%d/%d", kill, i)
					began := time.Now()
					if _, err := clients[w%2].Put(ctx, key, strconv.Itoa(n)); err != nil {
						t.Errorf("put through a living node, after %v: %v", time.Since(began), err)
						return
					}
					acknowledged.Add(1)
				}
			}
		})
	}
	awaitCount(ctx, t, &acknowledged, watches)
	first.kill()
	writers.Wait()
	seen.Wait()
	end()
	asking.Wait()
	for _, c := range clients {
		c.Close()
	}
	first.start(t)
	awaitMember(ctx, t, first)
}

// follow reads the events of one watch until the last write, and returns how many progress messages came.
func follow(ctx context.Context, t *testing.T, key string, events clientv3.WatchChan) (progress int64) {
	highest, synced := int64(0), int64(0)
	for next := 0; next < watchWrites; {
		var r clientv3.WatchResponse
		select {
		case got, ok := <-events:
			if !ok || got.Err() != nil {
				t.Errorf("%s ended before write %d: %v", key, next, got.Err())
				return progress
			}
			r = got
		case <-ctx.Done():
			t.Errorf("%s: write %d did not arrive", key, next)
			return progress
		}
		if r.Header.Revision < highest {
			t.Errorf("%s: the revision in headers decreases from %d to %d", key, highest, r.Header.Revision)
		}
		highest = r.Header.Revision
		if r.IsProgressNotify() {
			progress++
			synced = highest
		}
		for _, e := range r.Events {
			if string(e.Kv.Value) != strconv.Itoa(next) {
				t.Errorf("%s: %s instead of write %d", key, e.Kv.Value, next)
			}
			if e.Kv.ModRevision <= synced || e.Kv.ModRevision > highest {
				t.Errorf("%s: an event of revision %d in a message of revision %d, after progress at %d", key,
					e.Kv.ModRevision, highest, synced)
			}
			next++
		}
	}
	return progress
}

// TestWatchesLeaveADeadLeader kills leaders under watches that require a leader. The watches at the killed node
// continue at another one, also if they come there before the next leader is elected.
func TestWatchesLeaveADeadLeader(t *testing.T) {
	const moving = 24 // a third of them at the leader
	nodes := startNorthstar(t, 3, calm()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(*watchKills)*roundLimit)
	defer cancel()
	for kill := range *watchKills {
		first, others := leader(t, nodes)
		key := fmt.Sprintf("/move/%d", kill)
		round, end := context.WithCancel(clientv3.WithRequireLeader(ctx))
		events := make([]clientv3.WatchChan, moving)
		clients := make([]*clientv3.Client, moving)
		for i := range events {
			clients[i] = newClient(t, nodes...)
			events[i] = clients[i].Watch(round, key, clientv3.WithCreatedNotify())
			<-events[i]
		}
		first.kill()
		if _, err := client(t, others[0]).Put(ctx, key, "v"); err != nil {
			t.Errorf("kill %d: put through a living node: %v", kill, err)
		}
		for i := range events {
			if r := <-events[i]; len(r.Events) != 1 || r.Err() != nil {
				t.Errorf("kill %d, watch %d: %d events, %v", kill, i, len(r.Events), r.Err())
			}
		}
		end()
		for _, c := range clients {
			c.Close()
		}
		first.start(t)
		awaitMember(ctx, t, first)
	}
}
