package etcd

import (
	"bytes"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// gRPC's Go clients measure their connection: after an answer, they send a ping. The answer to that would be a system
// call and wake the client, for each call of a client that has a connection of its own. So it waits for what is sent
// next, and goes behind that: the client sends its next ping only after another answer. Other pings ask whether the
// connection works, and are answered immediately.

const (
	probeTime   = 50 * time.Millisecond // for which the answer to a probe waits at most
	joinedBytes = 4 << 10               // up to which a write is copied, to be one with the answer to a probe
)

// probeAck is the answer to the ping with which gRPC's Go library measures a connection.
var probeAck = []byte{
	0, 0, 8, byte(http2.FramePing), byte(http2.FlagPingAck), 0, 0, 0, 0,
	2, 4, 16, 16, 9, 14, 7, 7,
}

// probedConn writes to a connection. Answers to probes wait for another write.
type probedConn struct {
	conn net.Conn

	mu      sync.Mutex // held while something is written
	held    bool       // the answer to a probe waits
	inFrame bool       // the last write has ended within a frame
	late    *time.Timer
	joined  []byte // the last write that was one with the answer to a probe
}

// write writes what gRPC has flushed, and whether that begins and ends between two frames. The answer to a probe goes
// to the end, or waits if there is nothing else.
func (c *probedConn) write(p []byte, begins, ends bool) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFrame = !ends
	rest, probed := p, false
	if begins {
		rest, probed = bytes.CutPrefix(p, probeAck)
	}
	switch {
	case !probed && !c.held, !ends:
		return c.conn.Write(p)
	case !c.held && len(rest) == 0:
		c.hold()
		return len(p), nil
	case len(rest) > joinedBytes:
		if _, err := c.conn.Write(rest); err != nil {
			return 0, err
		}
		rest = nil
	}
	c.joined = append(c.joined[:0], rest...)
	if probed {
		c.joined = append(c.joined, probeAck...)
	}
	if c.held {
		c.held = false
		c.late.Stop()
		c.joined = append(c.joined, probeAck...)
	}
	if _, err := c.conn.Write(c.joined); err != nil {
		return 0, err
	}
	return len(p), nil
}

// hold has the answer to a probe wait. The lock must be held.
func (c *probedConn) hold() {
	c.held = true
	if c.late == nil {
		c.late = time.AfterFunc(probeTime, c.writeLate)
	} else {
		c.late.Reset(probeTime)
	}
}

// writeLate writes the answer to a probe that has waited for long. Within a frame, the rest of that takes it along.
func (c *probedConn) writeLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held && !c.inFrame {
		c.held = false
		_, _ = c.conn.Write(probeAck) // the next write has the error as well
	}
}
