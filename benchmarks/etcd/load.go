package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The sizes of the benchmarks of NorthStar's own API.
const (
	valueSize = 256
	keySpace  = 1000 // keys of one client
	readKeys  = 10   // keys that all clients read
)

// measure has so many clients do one thing after the other, after a warm-up of a fifth of the time. It returns how
// often, and the median and the 99th percentile of the time of one.
func measure(ctx context.Context, clients int, during time.Duration,
	do func(ctx context.Context, client, n int) error,
) (string, error) {
	start := time.Now().Add(during / 5)
	end := start.Add(during)
	took := make([][]time.Duration, clients)
	var all sync.WaitGroup
	errs := make(chan error, clients)
	for i := range clients {
		all.Go(func() {
			for n := 0; ; n++ {
				at := time.Now()
				if at.After(end) {
					return
				}
				if err := do(ctx, i, n); err != nil {
					errs <- err
					return
				}
				if at.After(start) {
					took[i] = append(took[i], time.Since(at))
				}
			}
		})
	}
	all.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return "", err
	}
	return summary(slices.Concat(took...))
}

// summary is a count, a median and a 99th percentile.
func summary(times []time.Duration) (string, error) {
	if len(times) == 0 {
		return "", errors.New("nothing was done in time")
	}
	slices.Sort(times)
	return fmt.Sprint(len(times), int64(times[len(times)/2]), int64(times[len(times)*99/100])), nil
}

// fromLeader returns the endpoints in their order, from the one that follows the leader's by so many.
func (d *driver) fromLeader(ctx context.Context, by int) ([]string, error) {
	leader, err := d.leader(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.Index(d.endpoints, leader)
	if i < 0 {
		return nil, fmt.Errorf("the leader %s is none of %q", leader, d.endpoints)
	}
	i = (i + by) % len(d.endpoints)
	return slices.Concat(d.endpoints[i:], d.endpoints[:i]), nil
}

// connect returns so many clients, each with a connection to one of the endpoints, in turns.
func connect(endpoints []string, n int) (clients []*clientv3.Client, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
	for i := range n {
		c, err := clientv3.New(config(endpoints[i%len(endpoints):][:1], false))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		clients = append(clients, c)
	}
	return clients, closeAll, nil
}

// load puts keys, or reads some linearizably, with so many clients that share connections.
func (d *driver) load(ctx context.Context, put bool, clients int, during time.Duration, endpoints []string,
	connections int,
) (string, error) {
	conns, closeAll, err := connect(endpoints, connections)
	if err != nil {
		return "", err
	}
	defer closeAll()
	value := strings.Repeat("v", valueSize)
	for i := range readKeys {
		if _, err := conns[0].Put(ctx, readKey(i), value); err != nil {
			return "", err
		}
	}
	return measure(ctx, clients, during, func(ctx context.Context, client, n int) error {
		c := conns[client%connections]
		if put {
			_, err := c.Put(ctx, fmt.Sprintf("/bench/%d/%d", client, n%keySpace), value)
			return err
		}
		_, err := c.Get(ctx, readKey(n%readKeys))
		return err
	})
}

func readKey(n int) string { return fmt.Sprint("/read/", n) }

// Of the watchers.
const (
	watchConns  = 20  // connections that they share
	watchedKeys = 100 // each is watched by as many as any other
)

// watchers follow keys whose values are times.
type watchers struct {
	clients []*clientv3.Client
	count   int

	mu   sync.Mutex
	took []time.Duration // from the request of a put to each of its events
	lost atomic.Int64    // watches that have ended
}

// watch starts so many watchers.
func (d *driver) watch(ctx context.Context, n int) error {
	clients, closeAll, err := connect(d.endpoints, watchConns)
	if err != nil {
		return err
	}
	d.endings = append(d.endings, closeAll)
	d.watchers.clients, d.watchers.count = clients, n
	var all sync.WaitGroup
	for i := range n {
		news := clients[i%watchConns].Watch(ctx, watchedKey(i), clientv3.WithCreatedNotify())
		all.Add(1)
		go func() { // ends with the client
			<-news
			all.Done()
			d.watchers.follow(news)
		}()
	}
	all.Wait()
	return nil
}

func watchedKey(n int) string { return fmt.Sprint("/watched/", n%watchedKeys) }

func (w *watchers) follow(news clientv3.WatchChan) {
	for r := range news {
		for _, e := range r.Events {
			if sent, err := strconv.ParseInt(string(e.Kv.Value), 10, 64); err == nil {
				took := time.Since(time.Unix(0, sent))
				w.mu.Lock()
				w.took = append(w.took, took)
				w.mu.Unlock()
			}
		}
	}
	w.lost.Add(1)
}

// events puts so many watched keys a second, and measures how long their events take to the watchers.
func (d *driver) events(ctx context.Context, rate int, during time.Duration) (string, error) {
	w := &d.watchers
	w.mu.Lock()
	w.took = nil
	w.mu.Unlock()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	n := int(during * time.Duration(rate) / time.Second)
	errs := make(chan error, n)
	for i := range n {
		<-tick.C
		go func() { // ends with the put, which is waited for
			_, err := d.client.Put(ctx, watchedKey(i), fmt.Sprint(time.Now().UnixNano()))
			errs <- err
		}()
	}
	want := 0
	for i := range n {
		if err := <-errs; err != nil {
			return "", err
		}
		want += w.count/watchedKeys + min(1, max(0, w.count%watchedKeys-i%watchedKeys))
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		w.mu.Lock()
		took := slices.Clone(w.took)
		w.mu.Unlock()
		if len(took) == want {
			return summary(took)
		}
		if time.Now().After(deadline) || w.lost.Load() > 0 {
			return "", fmt.Errorf("%d of %d events; %d watches have ended", len(took), want, w.lost.Load())
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return "", err
		}
	}
}
