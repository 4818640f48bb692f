package monitor

import (
	"context"
	"net"
	"sync"
	"time"

	"northstar/cluster"
)

// After lost packets a connection continues late: TCP sends them again after 200 ms, and then after twice as long each
// time. A new connection completes as soon as the network does.
const (
	redialAfter    = 50 * time.Millisecond // of an unanswered poll, on a fast network
	redialRTTs     = 3                     // on a slow network, in round trips
	redialInterval = 50 * time.Millisecond // between the first attempts
	fastRedials    = 10                    // attempts at each interval, before it doubles, up to maxRedial
	redialPause    = time.Second           // age of a connection before another one is opened beside it
)

// opened is a connection after its hello.
type opened struct {
	conn net.Conn
	peer cluster.Peer
}

// considerRedial starts redial if the peer has not answered the last poll on this connection for a while. A new
// connection gets redialPause: a peer that is only busy must not get one after another.
func (m *monitor) considerRedial(c *monitorConn, now time.Time) {
	if c.unanswered(now) < max(redialAfter, redialRTTs*m.networkRTT()) || now.Sub(c.began) < redialPause ||
		!m.redials.CompareAndSwap(false, true) {
		return
	}
	done := sync.OnceFunc(func() { m.redials.Store(false) })
	started := m.cfg.Host.Spawn(func(ctx context.Context) {
		defer done()
		if o, ok := m.redial(ctx, c); ok {
			_, _ = m.serveDialled(ctx, o, m.cfg.RPCTimeout, done)
		}
	})
	if !started {
		done()
	}
}

// redial opens connections beside old until one has completed its hello, and returns that one. It returns false if old
// has ended, or its peer has answered, before that.
func (m *monitor) redial(ctx context.Context, old *monitorConn) (first opened, ok bool) {
	ctx, cancel := context.WithCancel(ctx)
	ready := make(chan opened)
	var opening sync.WaitGroup
	defer opening.Wait()
	defer cancel()
	for n := 0; ; n++ {
		if old.unanswered(time.Now()) == 0 {
			return opened{}, false
		}
		opening.Go(func() { m.openBeside(ctx, ready) })
		timer := time.NewTimer(max(redialDelay(n), m.Handshake(m.id)))
		select {
		case first = <-ready:
			timer.Stop()
			if old.unanswered(time.Now()) == 0 { // meanwhile the peer has answered
				_ = first.conn.Close()
				return opened{}, false
			}
			return first, true
		case <-timer.C:
		case <-old.gone:
			timer.Stop()
			return opened{}, false
		case <-ctx.Done():
			timer.Stop()
			return opened{}, false
		}
	}
}

// redialDelay returns the time between the attempts n and n+1.
func redialDelay(n int) time.Duration {
	return min(redialInterval<<min(n/fastRedials, 8), maxRedial)
}

// openBeside opens a connection and offers it until ctx ends.
func (m *monitor) openBeside(ctx context.Context, ready chan<- opened) {
	addr := m.Address(m.id)
	if addr == "" {
		return
	}
	hello, cancel := context.WithTimeout(ctx, m.cfg.RPCTimeout)
	defer cancel()
	conn, peer, err := m.cfg.Host.Open(hello, addr, m.id)
	if err != nil {
		return
	}
	select {
	case ready <- opened{conn, peer}:
	case <-ctx.Done():
		_ = conn.Close()
	}
}
