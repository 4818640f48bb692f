package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// way is one direction of a connection. Data sent while it is cut arrives after the heal, because TCP retransmits.
type way struct {
	mu   sync.Mutex
	open chan struct{} // closed while nothing is cut
}

func newWay() *way {
	w := &way{open: make(chan struct{})}
	close(w.open)
	return w
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.open:
		w.open = make(chan struct{})
	default:
	}
}

func (w *way) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

// pass waits until the way is open.
func (w *way) pass() {
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	<-open
}

// relay is one process's network to one address. A client receives one byte when the other side is connected too (see
// through).
type relay struct {
	to       string
	listener net.Listener
	out, in  *way
	passing  sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// newRelay starts a relay that ends with the test.
func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: to, listener: l, out: newWay(), in: newWay()}
	r.passing.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.mend()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.closed = true
		r.mu.Unlock()
		r.passing.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.passing.Go(func() { r.serve(c) })
	}
}

// serve forwards one connection until either side ends it.
func (r *relay) serve(c net.Conn) {
	defer c.Close()
	r.out.pass()
	s, err := net.DialTimeout("tcp", r.to, 2*time.Second)
	if err != nil {
		return
	}
	defer s.Close()
	r.in.pass()
	if _, err := c.Write([]byte{0}); err != nil || !r.keep(c, s) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { carry(c, s, r.in) })
	carry(s, c, r.out)
	back.Wait()
}

// keep registers connections that must end with the relay. It returns false if the relay has ended.
func (r *relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, conns...)
	return !r.closed
}

// carry copies bytes, and the end of the stream, from one side to the other.
func carry(to, from net.Conn, w *way) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		w.pass()
		if n > 0 {
			_, _ = to.Write(buf[:n]) // the other direction handles its end
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

func (r *relay) mend() {
	r.out.mend()
	r.in.mend()
}

// through connects to addresses through their relays.
func through(relays map[string]string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		by, known := relays[address]
		if !known {
			return nil, fmt.Errorf("no way to %s", address)
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, by)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second)) // the read reports the same error
		_, err = io.ReadFull(c, make([]byte, 1))
		if !stop() || err != nil {
			c.Close()
			return nil, fmt.Errorf("no connection to %s: %w", address, errors.Join(err, context.Cause(ctx)))
		}
		return c, c.SetReadDeadline(time.Time{})
	}
}
