package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	keepStreams   = 10  // over which leases are kept together
	grantTogether = 128 // leases that are asked for at a time
)

// dialLeader connects so many clients to the leader.
func (d *driver) dialLeader(ctx context.Context, n int) ([]*clientv3.Client, error) {
	leader, err := d.leader(ctx)
	clients := make([]*clientv3.Client, n)
	for i := range clients {
		if err == nil {
			clients[i], err = d.dial(leader)
		}
	}
	return clients, err
}

// keep grants leases and has the client library keep them alive, on so many streams.
func (d *driver) keep(ctx context.Context, streams, n int, ttl time.Duration) error {
	clients, err := d.dialLeader(ctx, streams)
	if err != nil {
		return err
	}
	var next atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, grantTogether)
	for range grantTogether {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := d.keepOne(ctx, clients[i%streams], ttl); err != nil {
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

// keepOne grants a lease and has it kept alive.
func (d *driver) keepOne(ctx context.Context, c *clientv3.Client, ttl time.Duration) error {
	got, err := c.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return err
	}
	news, err := c.KeepAlive(ctx, got.ID)
	if err != nil {
		return err
	}
	go func() { // ends when the lease or its client does
		for range news {
		}
		d.lost.Add(1)
	}()
	return nil
}

// renew renews leases one at a time with so many clients, each with a connection and a lease of its own, at the
// leader. It returns the number of renewals, and the median and the 99th percentile of their time.
func (d *driver) renew(ctx context.Context, n int, during time.Duration) (string, error) {
	clients, err := d.dialLeader(ctx, n)
	if err != nil {
		return "", err
	}
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	ids := make([]clientv3.LeaseID, n)
	var all sync.WaitGroup
	errs := make(chan error, n)
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
	close(errs)
	if err := <-errs; err != nil {
		return "", err
	}
	return measure(ctx, n, during, func(ctx context.Context, client, _ int) error {
		_, err := clients[client].KeepAliveOnce(ctx, ids[client])
		return err
	})
}
