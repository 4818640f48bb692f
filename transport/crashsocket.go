package transport

import (
	"context"
	"net"
	"strconv"
	"time"

	"northstar/cluster"
)

// A process that is killed closes its connections only after the kernel has torn
// down its memory: 2 ms at 25 MB, 30 ms at 400 MB. A Canary is a listening socket
// that goes first. Its port stands in this node's claims; every peer keeps one
// connection to it, on which nothing is ever said, and the end of that is the
// first sign of this process's death. Dialling it again is refused from then on,
// which confirms it.
//
// It lives in a descriptor table of its own, which belongs to one thread: the
// kernel closes it with that thread, whose end does not wait for the memory that
// the threads share.

// maxCanaries bounds the connections that a Canary holds; the oldest gives way.
const maxCanaries = 2 * maxPeers

// Delays between two connections to a peer's canary.
const (
	firstCrashSocket    = time.Second
	maxCrashSocketConns = time.Minute
)

// listenBeside opens another port at a listener's address; not ok when that is not
// TCP.
func listenBeside(beside net.Listener) (l *net.TCPListener, ok bool, err error) {
	addr, ok := beside.Addr().(*net.TCPAddr)
	if _, real := beside.(*net.TCPListener); !ok || !real {
		return nil, false, nil
	}
	l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: addr.IP, Zone: addr.Zone})
	return l, true, err
}

// crashSocketRef is where a process of the peer can be watched.
type crashSocketRef struct {
	boot string // "": none is known
	addr string
}

// watchNewCrashSocket begins to watch the canary of the process that makes this claim,
// unless that is done already.
func (m *monitor) watchNewCrashSocket(claim cluster.Claim) {
	if claim.CrashSocketPort <= 0 || claim.CrashSocketPort > 65535 || m.crashSocketOf(claim.BootID) != "" {
		return
	}
	host, _, err := net.SplitHostPort(m.t.monitors.address(m.id))
	if err != nil {
		return // no server any more
	}
	watch := crashSocketRef{claim.BootID, net.JoinHostPort(host, strconv.Itoa(claim.CrashSocketPort))}
	m.mu.Lock()
	m.crashSocket = watch
	m.mu.Unlock()
	if !m.t.spawn(func(ctx context.Context) { m.watchCrashSocket(ctx, watch) }) {
		m.dropCrashSocket(watch)
	}
}

func (m *monitor) dropCrashSocket(c crashSocketRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket == c {
		m.crashSocket = crashSocketRef{}
	}
}

// crashSocketOf is where a process's canary is, "" when that is not known.
func (m *monitor) crashSocketOf(boot string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket.boot != boot {
		return ""
	}
	return m.crashSocket.addr
}

// watchCrashSocket keeps a connection to a canary for as long as the monitor
// connection is with that process, and reports its end as that of the process.
// One that cannot be reached, as behind a firewall, is tried ever more rarely.
func (m *monitor) watchCrashSocket(ctx context.Context, watch crashSocketRef) {
	defer m.dropCrashSocket(watch)
	wait := firstCrashSocket
	for {
		held, cause := m.connectCrashSocket(ctx, watch.addr)
		c := m.current()
		if ctx.Err() != nil || c == nil || c.x.peer.BootID != watch.boot {
			return // the monitor connection has ended first, and has said what there is to say
		}
		if held && processGone(cause) {
			m.lost(c, cause)
		}
		select {
		case <-time.After(wait):
		case <-c.processDead:
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, maxCrashSocketConns)
	}
}

// connectCrashSocket holds one connection until it ends; held says that there was one.
func (m *monitor) connectCrashSocket(ctx context.Context, addr string) (held bool, cause error) {
	limit, cancel := context.WithTimeout(ctx, m.t.params.rpc)
	defer cancel()
	conn, err := m.t.cfg.Dial(limit, addr)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	setTCPOptions(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, err = conn.Read(make([]byte, 1))
	return true, err
}
