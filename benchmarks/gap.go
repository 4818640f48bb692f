package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/client"
)

// writer writes one small value after the other, 1 to 2 ms apart, and notes when each was acknowledged. What a client
// sees of a failover is the longest time between two of them.
type writer struct {
	write      func(ctx context.Context, n int) error // returns when acknowledged
	connErrors []time.Time                            // when nodes that were kept to have failed it

	mu   sync.Mutex // guards acks until run has ended
	acks []time.Time
}

// run writes until ctx ends.
func (w *writer) run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		if err := w.write(ctx, n); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		w.mu.Lock()
		w.acks = append(w.acks, time.Now())
		w.mu.Unlock()
		_ = wait(ctx, time.Millisecond+rand.N(time.Millisecond))
	}
	return nil
}

// ackedAfter waits for an acknowledgement later than at.
func (w *writer) ackedAfter(ctx context.Context, at time.Time) error {
	for {
		w.mu.Lock()
		done := len(w.acks) > 0 && w.acks[len(w.acks)-1].After(at)
		w.mu.Unlock()
		if done {
			return nil
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("no write was acknowledged: %w", err)
		}
	}
}

// What follows is called when run has ended.

// firstError is how long after at the first connection failed; false when none did.
func (w *writer) firstError(at time.Time) (time.Duration, bool) {
	i := slices.IndexFunc(w.connErrors, at.Before)
	if i < 0 {
		return 0, false
	}
	return w.connErrors[i].Sub(at), true
}

// inFlight is for how long after a fault the failed leader's answers may still come.
const inFlight = 2 * time.Millisecond

// gap is the longest time between two acknowledgements, the second of them after at and the first no later than by;
// and when that was. by is when the old leader's last answer can have come: pauses after the gap are longestAfter.
func (w *writer) gap(at, by time.Time) (gap time.Duration, resumed time.Time) {
	for i := 1; i < len(w.acks) && !w.acks[i-1].After(by); i++ {
		if d := w.acks[i].Sub(w.acks[i-1]); w.acks[i].After(at) && d > gap {
			gap, resumed = d, w.acks[i]
		}
	}
	return gap, resumed
}

// firstAfter is when the first write after at was acknowledged, at itself if none was.
func (w *writer) firstAfter(at time.Time) time.Time {
	if i := slices.IndexFunc(w.acks, at.Before); i >= 0 {
		return w.acks[i]
	}
	return at
}

// longestAfter is the longest time between two acknowledgements that both came at or after resumed. The end of the
// round counts as one.
func (w *writer) longestAfter(resumed, ended time.Time) time.Duration {
	after := w.acks[countBefore(w.acks, resumed):]
	if len(after) == 0 {
		return 0
	}
	return longestPause(after[1:], after[0], ended)
}

// How the plain writer finds the leader.
const (
	unresponsiveTimeout = 25 * time.Millisecond // an answer that takes longer: ask all nodes
	attemptDelay        = time.Millisecond
	attemptTimeout      = 5 * time.Second
)

// writeTo has the writer write to a cluster, through this project's client with its default options, or as
// writeAnyNode does.
func (w *writer) writeTo(addrs []string, viaClient bool) (done func(), err error) {
	if !viaClient {
		w.write, done = writeAnyNode(addrs, func() { w.connErrors = append(w.connErrors, time.Now()) })
		return done, nil
	}
	c, err := client.New(client.Config{Endpoints: addrs})
	if err != nil {
		return nil, err
	}
	w.write = func(ctx context.Context, n int) error {
		_, err := c.Put(ctx, fmt.Sprintf("gap-%d", n%64), value, client.WriteOptions{})
		return err
	}
	return c.Close, nil
}

// writeAnyNode returns a write function that knows only the nodes' addresses. It sends each write to the node that
// accepted the last one. When that node fails or does not answer, it sends the write to all nodes concurrently, until
// one accepts it. A node that does not lead refuses and is asked again, so the servers' gap is measured. broke is
// called when the node that accepted the last write fails.
func writeAnyNode(addrs []string, broke func()) (write func(context.Context, int) error, closeAll func()) {
	var conn *load.Conn
	drop := func() {
		if conn != nil {
			conn.Close()
		}
		conn = nil
	}
	write = func(ctx context.Context, n int) error {
		path := fmt.Sprintf(apiv1.PathKVPrefix+"gap-%d?redirect=true", n%64)
		if conn != nil {
			conn.Limit(unresponsiveTimeout)
			if status, err := conn.Do("PUT", path, value); err == nil && status/100 == 2 {
				return nil
			}
			broke()
			drop()
		}
		var err error
		conn, err = raceNodes(ctx, addrs, path)
		return err
	}
	return write, drop
}

var value = []byte("0123456789abcdef")

// raceNodes offers a write to all nodes until one takes it, and returns the connection to that one.
func raceNodes(ctx context.Context, addrs []string, path string) (*load.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	won := make(chan *load.Conn, len(addrs))
	var all sync.WaitGroup
	for _, addr := range addrs {
		all.Go(func() { tryNode(ctx, addr, path, won) })
	}
	var first *load.Conn
	select {
	case first = <-won:
	case <-ctx.Done():
	}
	cancel()
	all.Wait()
	close(won)
	for late := range won {
		late.Close()
	}
	if first == nil {
		return nil, ctx.Err()
	}
	return first, nil
}

// tryNode offers a write to one node until it takes it, or ctx ends.
func tryNode(ctx context.Context, addr, path string, won chan<- *load.Conn) {
	for ctx.Err() == nil {
		conn, err := load.Dial(ctx, addr)
		if err == nil {
			conn.Limit(attemptTimeout)
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			for status := 0; err == nil; {
				if status, err = conn.Do("PUT", path, value); err == nil && status/100 == 2 {
					if stop() {
						won <- conn
					}
					return
				}
				_ = wait(ctx, attemptDelay)
			}
			stop()
			conn.Close()
		}
		_ = wait(ctx, attemptDelay)
	}
}
