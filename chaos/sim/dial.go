package sim

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Dial opens a connection from this process to addr ("host:port"). Without a listener it is refused after a round
// trip. Over an interrupted way, to a dead machine or a full backlog it waits until ctx ends.
func (p *Proc) Dial(ctx context.Context, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: simAddr(addr), Err: err}
	}
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fail(err)
	}
	for retry := false; ; retry = true {
		c, wait, opened, err := p.tryDial(name, addr, retry)
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				if c != nil {
					_ = c.Close()
				}
				return fail(dialError(ctx))
			}
		}
		switch {
		case err != nil:
			return fail(err)
		case c != nil:
			return c, nil
		case opened == nil:
			continue
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return fail(dialError(ctx))
		}
	}
}

// dialError is what net.Dialer gives when its context ends.
func dialError(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return os.ErrDeadlineExceeded
	}
	return ctx.Err()
}

// tryDial makes one attempt. It returns the connection or an error, to be given to the caller after wait; or none of
// both, and the caller tries again after wait, then when opened is closed.
func (p *Proc) tryDial(name, addr string, retry bool) (c *conn, wait time.Duration, opened chan struct{}, err error) {
	n := p.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	p.waitThawed()
	from := p.host.name
	if p.dead {
		return nil, deadProcPause, nil, net.ErrClosed
	}
	h := n.hosts[name]
	if h == nil || !h.up || n.link(from, name).cut || n.link(name, from).cut {
		return nil, 0, n.changed, nil
	}
	there := n.delay(from, name)
	trip := there + n.delay(name, from)
	if retry {
		trip += n.draw(from, name, n.link(from, name), maxSynRetry)
	}
	var l *listener
	if h.proc != nil {
		l = h.proc.listeners[addr]
	}
	switch {
	case l == nil, n.link(from, name).shut:
		return nil, trip, nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case len(l.queue) >= acceptBacklog:
		return nil, maxSynRetry, nil, nil
	}
	n.ports++
	c, server := n.pair(p, h.proc, fmt.Sprintf("%s:%d", from, 49152+n.ports), addr)
	l.queue = append(l.queue, server)
	l.ready.Signal()
	return c, trip, nil, nil
}

// Listen opens a listener on addr ("host:port" of this host).
func (p *Proc) Listen(addr string) (net.Listener, error) {
	n := p.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case p.dead:
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: simAddr(addr), Err: net.ErrClosed}
	case p.listeners[addr] != nil:
		return nil, &net.OpError{
			Op: "listen", Net: "tcp", Addr: simAddr(addr),
			Err: os.NewSyscallError("bind", syscall.EADDRINUSE),
		}
	}
	l := &listener{proc: p, addr: addr}
	l.ready.L = &n.mu
	p.listeners[addr] = l
	return l, nil
}

type listener struct {
	proc   *Proc
	addr   string
	queue  []*conn
	ready  sync.Cond
	closed bool
}

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	n := l.proc.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.ready.Wait()
	}
	l.proc.waitThawed()
	if l.closed || len(l.queue) == 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: simAddr(l.addr), Err: net.ErrClosed}
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

// Close stops listening. It resets the connections that were not accepted.
func (l *listener) Close() error {
	n := l.proc.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range l.queue {
		c.die(net.ErrClosed)
		c.send(segment{kind: segReset})
	}
	l.close()
	return nil
}

// close ends the listener. Called with Net.mu held.
func (l *listener) close() {
	l.closed, l.queue = true, nil
	delete(l.proc.listeners, l.addr)
	l.ready.Broadcast()
}

// Addr is the address that it listens on.
func (l *listener) Addr() net.Addr { return simAddr(l.addr) }

type simAddr string

func (simAddr) Network() string  { return "tcp" }
func (a simAddr) String() string { return string(a) }
