package sim

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

type segKind uint8

const (
	segData segKind = iota
	segFin          // the sender has closed
	segReset
)

// segment is what one Write, Close or kill puts on the way.
type segment struct {
	at   time.Time // when it arrives, unless the way is cut then
	data []byte
	kind segKind
}

// stream is one direction of a connection, at its receiving end. Guarded by Net.mu.
type stream struct {
	flight []segment // in order of arrival
	buf    []byte    // arrived, not read
	unread int       // bytes in flight and buf
	last   time.Time // when the newest segment arrives
	timer  *time.Timer
}

// conn is one end of a connection. Guarded by Net.mu.
type conn struct {
	net           *Net
	proc          *Proc
	peer          *conn
	local, remote simAddr
	number        int // in the order of making
	in            stream
	err           error // why this end is dead; net.ErrClosed when it was closed here
	eof           bool  // the peer's end of stream has arrived
	writing       bool  // a Write is in progress: others wait, so that writes do not mix
	wake          sync.Cond
	read, write   deadline
	death         *time.Timer // armed while the path is interrupted
}

// pair makes a connection between two processes and returns the ends.
func (n *Net) pair(client, server *Proc, clientAddr, serverAddr string) (a, b *conn) {
	a = &conn{net: n, proc: client, local: simAddr(clientAddr), remote: simAddr(serverAddr)}
	b = &conn{net: n, proc: server, local: simAddr(serverAddr), remote: simAddr(clientAddr)}
	a.peer, b.peer = b, a
	for _, c := range [2]*conn{a, b} {
		n.ends++
		c.number = n.ends
		c.wake.L = &n.mu
		c.proc.conns[c] = struct{}{}
	}
	return a, b
}

// Read reads what has arrived, waiting for at least a byte.
func (c *conn) Read(b []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for {
		c.proc.waitThawed()
		switch {
		case c.err != nil:
			return 0, c.opError("read", c.err)
		case c.read.passed():
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		case len(c.in.buf) > 0:
			k := copy(b, c.in.buf)
			c.in.unread -= k
			if c.in.buf = c.in.buf[k:]; len(c.in.buf) == 0 {
				c.in.buf = nil
			}
			c.peer.wake.Broadcast()
			return k, nil
		case c.eof:
			return 0, io.EOF
		}
		c.wake.Wait()
	}
}

// Write sends b, waiting while the window is full. It returns once all is on
// its way, which does not mean that it arrives.
func (c *conn) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	for c.writing && c.err == nil && !c.write.passed() {
		c.wake.Wait()
	}
	if !c.writing {
		c.writing = true
		defer func() {
			c.writing = false
			c.wake.Broadcast()
		}()
	}
	done := 0
	for {
		c.proc.waitThawed()
		switch {
		case c.err != nil:
			return done, c.opError("write", c.err)
		case c.write.passed():
			return done, c.opError("write", os.ErrDeadlineExceeded)
		case done == len(b):
			return done, nil
		}
		room := min(c.net.opt.Window-c.peer.in.unread, len(b)-done)
		if room <= 0 {
			c.wake.Wait()
			continue
		}
		c.send(segment{kind: segData, data: append([]byte(nil), b[done:done+room]...)})
		done += room
	}
}

// Close ends the connection: what was written still arrives at the peer, then the end of the stream.
func (c *conn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.err != nil {
		if errors.Is(c.err, net.ErrClosed) {
			return c.opError("close", net.ErrClosed)
		}
		c.err = net.ErrClosed
		return nil
	}
	c.die(net.ErrClosed)
	c.send(segment{kind: segFin})
	return nil
}

// die ends this end: waiting and later calls fail with err, what arrives for it is answered with a reset.
func (c *conn) die(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.in.buf = nil
	c.disarmDeath()
	c.read.set(c, time.Time{})
	c.write.set(c, time.Time{})
	delete(c.proc.conns, c)
	c.wake.Broadcast()
}

// send puts a segment on the way to the peer.
func (c *conn) send(s segment) {
	from, to := c.proc.host, c.peer.proc.host
	if !from.up {
		return
	}
	in := &c.peer.in
	s.at = time.Now().Add(c.net.delay(from.name, to.name))
	if s.at.Before(in.last) {
		s.at = in.last
	}
	in.last = s.at
	in.unread += len(s.data)
	in.flight = append(in.flight, s)
	if len(in.flight) == 1 {
		in.arm(c.peer)
	}
}

// arm sets the timer for the arrival of the first segment in flight.
func (in *stream) arm(c *conn) {
	d := time.Until(in.flight[0].at)
	if in.timer == nil {
		in.timer = time.AfterFunc(d, c.arrive)
		return
	}
	in.timer.Reset(d)
}

// retransmit makes what is in flight arrive at that time or later, after the way was cut.
func (in *stream) retransmit(c *conn, at time.Time) {
	if len(in.flight) == 0 {
		return
	}
	for i := range in.flight {
		if in.flight[i].at.Before(at) {
			in.flight[i].at = at
		}
	}
	in.last = in.flight[len(in.flight)-1].at
	in.arm(c)
}

// arrive takes in what is due. It runs in the stream's timer.
func (c *conn) arrive() {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	in := &c.in
	now := time.Now()
	for len(in.flight) > 0 && !in.flight[0].at.After(now) {
		if c.net.link(c.peer.proc.host.name, c.proc.host.name).cut {
			return // it waits for Heal
		}
		s := in.flight[0]
		in.flight[0] = segment{}
		in.flight = in.flight[1:]
		c.net.digest.add(uint64(s.kind), uint64(c.number), s.data)
		c.accept(s)
	}
	if len(in.flight) > 0 {
		in.arm(c)
	}
	c.wake.Broadcast()
}

// accept takes in one segment, at its arrival.
func (c *conn) accept(s segment) {
	switch {
	case c.err != nil:
		if s.kind == segData && c.peer.err == nil {
			c.send(segment{kind: segReset}) // nothing, when the machine has no power
		}
	case s.kind == segReset:
		c.die(syscall.ECONNRESET)
	case s.kind == segFin:
		c.eof = true
	default:
		c.in.buf = append(c.in.buf, s.data...)
	}
}

// broken reports why no answer can come from the peer's machine: "" when it can.
func (c *conn) broken() string {
	a, b := c.proc.host, c.peer.proc.host
	switch {
	case !b.up:
		return "peer's machine is down"
	case c.net.link(a.name, b.name).cut, c.net.link(b.name, a.name).cut:
		return "way is cut"
	}
	return ""
}

// armDeath lets this end die with ETIMEDOUT unless the path heals in time.
func (c *conn) armDeath() {
	if c.err != nil || c.death != nil || c.net.opt.DeadAfter <= 0 {
		return
	}
	a, b := c.proc.host.name, c.peer.proc.host.name
	d := c.net.opt.DeadAfter
	c.death = time.AfterFunc(d+c.net.draw(a, b, c.net.link(a, b), d/4), func() {
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		if c.death != nil {
			c.die(syscall.ETIMEDOUT)
		}
	})
}

func (c *conn) disarmDeath() {
	if c.death != nil {
		c.death.Stop()
		c.death = nil
	}
}

// LocalAddr is this end's address.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.read, &c.write)
}

// SetReadDeadline sets the deadline of Read, also of a Read that waits now.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.read) }

// SetWriteDeadline sets the deadline of Write, also of a Write that waits now.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.write) }

func (c *conn) setDeadlines(t time.Time, deadlines ...*deadline) error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.err != nil {
		return c.opError("set", c.err)
	}
	for _, d := range deadlines {
		d.set(c, t)
	}
	return nil
}

func (c *conn) opError(op string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// deadline is a moment after which one kind of call fails. Guarded by Net.mu.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set moves the deadline and wakes the waiting calls when it passes. A timer
// that fires early (a deadline without monotonic time) is set again.
func (d *deadline) set(c *conn, t time.Time) {
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
	}
	switch {
	case t.IsZero():
	case d.passed():
		c.wake.Broadcast()
	case d.timer != nil:
		d.timer.Reset(time.Until(t))
	default:
		d.timer = time.AfterFunc(time.Until(t), func() {
			c.net.mu.Lock()
			defer c.net.mu.Unlock()
			if !d.at.IsZero() && !d.passed() {
				d.timer.Reset(time.Until(d.at))
				return
			}
			c.wake.Broadcast()
		})
	}
}
