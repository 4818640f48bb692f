package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	pageKeys   = 500
	batchOps   = 100     // operations in one transaction; NorthStar allows 128
	batchBytes = 1 << 20 // keys and values in one transaction; NorthStar allows 1.5 MiB
	retryFor   = 30 * time.Second
	// rounds bounds how often both clusters are compared while etcd changes: leases expire also without writers.
	rounds = 10
)

// mover copies keys. It is the only writer of the destination, so each of its writes may be repeated.
type mover struct {
	from, to *clientv3.Client
	prefix   string
	revision int64 // of the first copy

	batch []clientv3.Op
	keys  map[string]bool // of the batch: a transaction writes each key once
	size  int
}

func (m *mover) requireEmpty(ctx context.Context) error {
	got, err := m.to.Get(ctx, m.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if got.Count > 0 {
		return fmt.Errorf("the new cluster has %d keys there: remove them first", got.Count)
	}
	return nil
}

// pages calls f with each page of the keys of a cluster at one revision, 0 for the present one, and returns that
// revision.
func (m *mover) pages(
	ctx context.Context, c *clientv3.Client, revision int64, f func([]*mvccpb.KeyValue) error,
) (int64, error) {
	end := clientv3.GetPrefixRangeEnd(m.prefix)
	for key := m.prefix; ; {
		page, err := c.Get(ctx, start(key), clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(revision))
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		if err := f(page.Kvs); err != nil {
			return 0, err
		}
		if !page.More {
			return revision, nil
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// start is the first key of a range: that of all keys is a zero byte.
func start(key string) string {
	if key == "" {
		return "\x00"
	}
	return key
}

// copy writes all keys of etcd at one revision.
func (m *mover) copy(ctx context.Context) (copied int, err error) {
	m.revision, err = m.pages(ctx, m.from, 0, func(page []*mvccpb.KeyValue) error {
		for _, kv := range page {
			if kv.Lease != 0 {
				continue
			}
			copied++
			if err := m.add(ctx, kv, mvccpb.Event_PUT); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return copied, err
	}
	return copied, m.flush(ctx)
}

// follow applies all later changes in order, and reports the revisions up to which it did.
func (m *mover) follow(ctx context.Context, seen chan int64) error {
	watch := m.from.Watch(clientv3.WithRequireLeader(ctx), start(m.prefix),
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(m.prefix)), clientv3.WithRev(m.revision+1))
	for r := range watch {
		if err := r.Err(); err != nil {
			return err
		}
		revision := r.Header.Revision // of an answer without events: all up to it have been sent
		for _, e := range r.Events {
			if err := m.add(ctx, e.Kv, e.Type); err != nil {
				return err
			}
			revision = e.Kv.ModRevision
		}
		if err := m.flush(ctx); err != nil {
			return err
		}
		select {
		case <-seen: // older
		default:
		}
		seen <- revision
	}
	return errors.Join(errors.New("the watch has ended"), context.Cause(ctx))
}

// add adds a change to the batch.
func (m *mover) add(ctx context.Context, kv *mvccpb.KeyValue, kind mvccpb.Event_EventType) error {
	key, size := string(kv.Key), len(kv.Key)+len(kv.Value)
	if m.keys[key] || len(m.batch) == batchOps || m.size+size > batchBytes {
		if err := m.flush(ctx); err != nil {
			return err
		}
	}
	op := clientv3.OpPut(key, string(kv.Value))
	if kind == mvccpb.Event_DELETE || kv.Lease != 0 {
		op = clientv3.OpDelete(key)
	}
	if m.keys == nil {
		m.keys = map[string]bool{}
	}
	m.keys[key] = true
	m.batch, m.size = append(m.batch, op), m.size+size
	return nil
}

// flush writes the batch, again if its outcome is unknown.
func (m *mover) flush(ctx context.Context) error {
	if len(m.batch) == 0 {
		return nil
	}
	for until := time.Now().Add(retryFor); ; {
		_, err := m.to.Txn(ctx).Then(m.batch...).Commit()
		if err == nil {
			m.batch, m.keys, m.size = nil, nil, 0
			return nil
		}
		if ctx.Err() != nil || time.Now().After(until) {
			return fmt.Errorf("write to the new cluster: %w", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// compare returns an error unless both clusters have the same keys and values, and the number of keys.
func (m *mover) compare(ctx context.Context) (int, error) {
	const advice = "stop all writers, and start again with an empty cluster"
	for round := range rounds {
		keys, changed, err := m.compareOnce(ctx)
		switch {
		case errors.Is(err, errDiffers) && round > 0:
			return 0, fmt.Errorf("%w: etcd was written to after Enter: %s", err, advice)
		case err != nil || !changed:
			return keys, err
		}
	}
	return 0, fmt.Errorf("etcd changes all the time: %s", advice)
}

// errDiffers means that a key of the two clusters is not the same.
var errDiffers = errors.New("the clusters differ")

// compareOnce also reports whether etcd has changed meanwhile. A lease that has expired is such a change, and leaves
// both equal.
func (m *mover) compareOnce(ctx context.Context) (keys int, changed bool, err error) {
	values := map[string][]byte{}
	before, err := m.pages(ctx, m.from, 0, func(page []*mvccpb.KeyValue) error {
		for _, kv := range page {
			if kv.Lease == 0 {
				values[string(kv.Key)] = kv.Value
			}
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	keys = len(values)
	_, err = m.pages(ctx, m.to, 0, func(page []*mvccpb.KeyValue) error {
		for _, kv := range page {
			value, ok := values[string(kv.Key)]
			if !ok || !bytes.Equal(value, kv.Value) {
				return fmt.Errorf("%w: the key %q has another value, or etcd does not have it", errDiffers, kv.Key)
			}
			delete(values, string(kv.Key))
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	for key := range values {
		return 0, false, fmt.Errorf("%w: the new cluster does not have the key %q", errDiffers, key)
	}
	after, err := m.from.Get(ctx, "a", clientv3.WithCountOnly())
	if err != nil {
		return 0, false, err
	}
	return keys, after.Header.Revision != before, nil
}
