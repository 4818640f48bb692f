package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/benchmarks/load"
	"northstar/client"
)

// writer writes one small value after the other, 1 to 2 ms apart, and notes
// when each was acknowledged. What a client sees of a failover is the longest
// time between two of them.
type writer struct {
	write func(ctx context.Context, n int) error // returns when acknowledged

	mu         sync.Mutex
	acks       []time.Time
	connErrors []time.Time   // when nodes that were kept to have failed it
	news       chan struct{} // capacity 1: an acknowledgement
}

func newWriter() *writer {
	return &writer{news: make(chan struct{}, 1)}
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
		select {
		case w.news <- struct{}{}:
		default:
		}
		if err := wait(ctx, time.Millisecond+rand.N(time.Millisecond)); err != nil {
			return nil
		}
	}
	return nil
}

// ackedAfter waits for an acknowledgement later than at.
func (w *writer) ackedAfter(ctx context.Context, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		w.mu.Lock()
		done := len(w.acks) > 0 && w.acks[len(w.acks)-1].After(at)
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-w.news:
		case <-ctx.Done():
			return fmt.Errorf("no write was acknowledged: %w", ctx.Err())
		}
	}
}

// onConnError notes that the connection that was written on has failed.
func (w *writer) onConnError() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connErrors = append(w.connErrors, time.Now())
}

// firstError is how long after at the first connection failed; false when none did.
func (w *writer) firstError(at time.Time) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, lost := range w.connErrors {
		if d := lost.Sub(at); d > 0 {
			return d, true
		}
	}
	return 0, false
}

// inFlight is for how long after a fault the failed leader's answers may still come.
const inFlight = 2 * time.Millisecond

// gap is the longest time between two acknowledgements, the second of them after at
// and the first no later than by; and when that was. by is when the old leader's last
// answer can have come: pauses after the gap are longestAfter.
func (w *writer) gap(at, by time.Time) (gap time.Duration, resumed time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.acks) && !w.acks[i-1].After(by); i++ {
		if d := w.acks[i].Sub(w.acks[i-1]); w.acks[i].After(at) && d > gap {
			gap, resumed = d, w.acks[i]
		}
	}
	return gap, resumed
}

// firstAfter is when the first write after at was acknowledged, at itself if none
// was.
func (w *writer) firstAfter(at time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ack := range w.acks {
		if ack.After(at) {
			return ack
		}
	}
	return at
}

// longestAfter is the longest time between two acknowledgements that both came
// at or after resumed.
func (w *writer) longestAfter(resumed time.Time) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.acks); i++ {
		if !w.acks[i-1].Before(resumed) {
			longest = max(longest, w.acks[i].Sub(w.acks[i-1]))
		}
	}
	return longest
}

// How the plain writer finds the leader.
const (
	unresponsiveTimeout = 25 * time.Millisecond // an answer that takes longer: ask all nodes
	attemptDelay        = time.Millisecond
	attemptTimeout      = 5 * time.Second
)

// writeAnyNode returns a write function that knows only the nodes' addresses. It
// sends each write to the node that accepted the last one. When that node fails or
// does not answer, it sends the write to all nodes concurrently, until one accepts
// it. A node that does not lead refuses and is asked again, so the servers' gap is
// measured. broke is called when the node that accepted the last write fails.
func writeAnyNode(addrs []string, broke func()) (write func(context.Context, int) error, closeAll func()) {
	var leader string
	var conn *load.Conn
	drop := func() {
		if conn != nil {
			conn.Close()
		}
		conn, leader = nil, ""
	}
	write = func(ctx context.Context, n int) error {
		path := fmt.Sprintf(apiv1.PathKVPrefix+"gap-%d?redirect=true", n%64)
		if leader != "" {
			conn.Limit(unresponsiveTimeout)
			if status, err := conn.Do("PUT", path, value); err == nil && status/100 == 2 {
				return nil
			}
			broke()
			drop()
		}
		var err error
		leader, conn, err = raceNodes(ctx, addrs, path)
		return err
	}
	return write, drop
}

var value = []byte("0123456789abcdef")

type acceptedConn struct {
	addr string
	conn *load.Conn
}

// raceNodes offers a write to all nodes until one takes it.
func raceNodes(ctx context.Context, addrs []string, path string) (string, *load.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	won := make(chan acceptedConn, len(addrs))
	var all sync.WaitGroup
	for _, addr := range addrs {
		all.Go(func() { tryNode(ctx, addr, path, won) })
	}
	var first acceptedConn
	select {
	case first = <-won:
	case <-ctx.Done():
	}
	cancel()
	all.Wait()
	close(won)
	for late := range won {
		late.conn.Close()
	}
	if first.conn == nil {
		return "", nil, ctx.Err()
	}
	return first.addr, first.conn, nil
}

// tryNode offers a write to one node until it takes it, or ctx ends.
func tryNode(ctx context.Context, addr, path string, won chan<- acceptedConn) {
	for ctx.Err() == nil {
		conn, err := load.Dial(ctx, addr)
		if err == nil {
			conn.Limit(attemptTimeout)
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			for status := 0; err == nil; {
				if status, err = conn.Do("PUT", path, value); err == nil && status/100 == 2 {
					if stop() {
						won <- acceptedConn{addr, conn}
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

// throughClient makes a write function of this project's client with its
// default options.
func throughClient(addrs []string) (func(context.Context, int) error, func(), error) {
	c, err := client.New(client.Config{Endpoints: addrs})
	if err != nil {
		return nil, nil, err
	}
	write := func(ctx context.Context, n int) error {
		_, err := c.Put(ctx, fmt.Sprintf("gap-%d", n%64), value, client.WriteOptions{})
		return err
	}
	return write, func() { c.Close() }, nil
}
