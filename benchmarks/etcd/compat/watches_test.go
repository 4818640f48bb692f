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

var watchKills = flag.Int("kills", 3, "leader kills under 1,000 watches")

// TestWatchesThroughCrashes kills leaders under 1,000 watches at the nodes that live on. Each watch sees each write of
// its key once and in order, none is cancelled, and the revisions of its headers never decrease.
func TestWatchesThroughCrashes(t *testing.T) {
	const watches = 1000
	nodes := startNorthstar(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for kill := range *watchKills {
		first, others := leader(t, nodes)
		round, end := context.WithCancel(ctx)
		var seen sync.WaitGroup
		const writes = 5
		clients := []*clientv3.Client{client(t, others[0]), client(t, others[1])}
		for i := range watches {
			key := fmt.Sprintf("/watch/%d/%d", kill, i)
			events := clients[i%2].Watch(clientv3.WithRequireLeader(round), key, clientv3.WithCreatedNotify())
			if r, ok := <-events; !ok || !r.Created {
				t.Fatalf("%s is not created: %v", key, r)
			}
			seen.Go(func() { follow(round, t, key, events, writes) })
		}
		var writers sync.WaitGroup
		var acknowledged atomic.Int64
		for w := range 8 {
			writers.Go(func() {
				for n := range writes {
					for i := w; i < watches; i += 8 {
						key := fmt.Sprintf("/watch/%d/%d", kill, i)
						if _, err := clients[w%2].Put(ctx, key, strconv.Itoa(n)); err != nil {
							t.Errorf("put: %v", err)
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
		first.start(t)
		awaitMember(ctx, t, first)
	}
}

// follow reads the events of one watch until the last write.
func follow(ctx context.Context, t *testing.T, key string, events clientv3.WatchChan, writes int) {
	highest := int64(0)
	for next := 0; next < writes; {
		var r clientv3.WatchResponse
		select {
		case got, ok := <-events:
			if !ok || got.Err() != nil {
				t.Errorf("%s ended before write %d: %v", key, next, got.Err())
				return
			}
			r = got
		case <-ctx.Done():
			t.Errorf("%s: write %d did not arrive", key, next)
			return
		}
		if r.Header.Revision < highest {
			t.Errorf("%s: the revision in headers decreases from %d to %d", key, highest, r.Header.Revision)
		}
		highest = r.Header.Revision
		for _, e := range r.Events {
			if string(e.Kv.Value) != strconv.Itoa(next) {
				t.Errorf("%s: %s instead of write %d", key, e.Kv.Value, next)
			}
			next++
		}
	}
}
