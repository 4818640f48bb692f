package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	keepStreams   = 10  // over which leases are kept together
	grantTogether = 128 // leases that are asked for at a time
)

// lease is one that is kept.
type lease struct {
	id   clientv3.LeaseID
	gone *atomic.Bool // its keep-alive has ended: the lease has, too
}

// grant asks for leases over the clients in turn, and hands each on.
func grant(ctx context.Context, clients []*clientv3.Client, n int, ttl time.Duration,
	each func(c *clientv3.Client, id clientv3.LeaseID) error,
) error {
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, grantTogether)
	for range grantTogether {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				c := clients[i%len(clients)]
				got, err := c.Grant(ctx, int64(ttl/time.Second))
				if err == nil {
					err = each(c, got.ID)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

// keep grants leases and has the client library keep them alive, on a few
// streams.
func (d *driver) keep(ctx context.Context, n int, ttl time.Duration) error {
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	clients := make([]*clientv3.Client, keepStreams)
	for i := range clients {
		if clients[i], err = d.dial(leader); err != nil {
			return err
		}
	}
	return d.keepOn(ctx, clients, n, ttl)
}

// connect does the same over a connection for each lease.
func (d *driver) connect(ctx context.Context, n int, ttl time.Duration) error {
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	clients := make([]*clientv3.Client, n)
	for i := range clients {
		if clients[i], err = d.dial(leader); err != nil {
			return err
		}
	}
	return d.keepOn(ctx, clients, n, ttl)
}

func (d *driver) keepOn(ctx context.Context, clients []*clientv3.Client, n int, ttl time.Duration) error {
	var mu sync.Mutex
	return grant(ctx, clients, n, ttl, func(c *clientv3.Client, id clientv3.LeaseID) error {
		news, err := c.KeepAlive(ctx, id)
		if err != nil {
			return err
		}
		l := lease{id, new(atomic.Bool)}
		go func() { // ends when the lease or its client does
			for range news {
			}
			l.gone.Store(true)
		}()
		mu.Lock()
		defer mu.Unlock()
		d.leases = append(d.leases, l)
		return nil
	})
}

// lost counts the leases that have ended.
func (d *driver) lost() (n int) {
	for _, l := range d.leases {
		if l.gone.Load() {
			n++
		}
	}
	return n
}

// renew renews leases one at a time with so many clients, each with a connection
// and a lease of its own, at the leader. It gives the number of renewals, and the
// median and the 99th percentile of their time.
func (d *driver) renew(ctx context.Context, n int, during time.Duration) (string, error) {
	leader, err := d.leader(ctx)
	if err != nil {
		return "", err
	}
	clients := make([]*clientv3.Client, n)
	for i := range clients {
		if clients[i], err = clientv3.New(config([]string{leader})); err != nil {
			return "", err
		}
		defer clients[i].Close()
	}
	ids := make([]clientv3.LeaseID, n)
	var all sync.WaitGroup
	errs := make(chan error, 2*n)
	for i, c := range clients {
		all.Go(func() {
			got, err := c.Grant(ctx, 60)
			if err != nil {
				errs <- err
				return
			}
			ids[i] = got.ID
		})
	}
	all.Wait()
	start := time.Now().Add(during / 5)
	end := start.Add(during)
	took := make([][]time.Duration, n)
	for i, c := range clients {
		all.Go(func() {
			for {
				at := time.Now()
				if at.After(end) {
					return
				}
				if _, err := c.KeepAliveOnce(ctx, ids[i]); err != nil {
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
	sorted := slices.Concat(took...)
	if len(sorted) == 0 {
		return "", fmt.Errorf("no renewal in %v", during)
	}
	slices.Sort(sorted)
	return fmt.Sprint(len(sorted), int64(sorted[len(sorted)/2]), int64(sorted[len(sorted)*99/100])), nil
}
