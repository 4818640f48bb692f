package transport

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/transport/crashdetect"
	"northstar/transport/monitor"
)

// maxHalfOpen bounds the connections that have not completed a hello, and maxHalfOpenAddress those of one address. At
// the second bound the oldest of that address is closed, at the first one the oldest of the address that has most: a
// flood from few addresses evicts only itself. Each of the maxHalfOpenKnown addresses from which members have come last
// keeps keptHalfOpen connections while others have any. An address is that of cluster.AddressGroup.
const (
	maxHalfOpen        = 256
	maxHalfOpenAddress = 64
	maxHalfOpenKnown   = monitor.MaxPeers
	keptHalfOpen       = 4
)

// Run accepts connections until ctx ends or the listener fails permanently. It closes the listener, the connections
// and the current Raft transport, and returns when every goroutine has ended. It must be called once.
func (t *Transport) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = t.cfg.Listener.Close() })
	defer stop()
	t.mu.Lock()
	t.running = ctx
	t.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { t.monitors.Run(ctx) })
	wg.Go(func() { t.followTLS(ctx) })
	err := t.acceptLoop(ctx, &wg)
	_ = t.cfg.Listener.Close() // before the monitor connections: a peer that dials again is refused
	cancel()
	t.half.close()
	t.mu.Lock()
	t.stopped = true
	current := t.raft
	t.mu.Unlock()
	wg.Wait()
	t.mu.Lock()
	t.running = nil // from now on spawn adds no job
	t.mu.Unlock()
	t.jobs.Wait()
	if current != nil {
		_ = current.Close()
	}
	return err
}

func (t *Transport) acceptLoop(ctx context.Context, wg *sync.WaitGroup) error {
	const firstDelay, maxDelay = 5 * time.Millisecond, time.Second
	delay := firstDelay
	for {
		conn, err := t.cfg.Listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("peer listener: %w", err)
		case err != nil: // such as too many open files
			t.quiet.warn("accept", "accepting a peer connection failed", "error", err)
			sleep(delay, ctx.Done())
			delay = min(2*delay, maxDelay)
			continue
		}
		delay = firstDelay
		// Here, so that they are in the order of their arrival: a flood must not evict what came after it.
		leave, evicted := t.half.enter(conn)
		if evicted {
			t.reject("connection", "half_open_flood")
		}
		wg.Go(func() { t.serve(ctx, conn, leave) })
	}
}

// Connections returns the number of open connections that this node has accepted.
func (t *Transport) Connections() int { return int(t.connections.Load()) }

// serve completes the hello of an accepted connection, and then passes it on by its purpose or closes it. out ends its
// time as half open.
func (t *Transport) serve(ctx context.Context, raw net.Conn, out func()) {
	t.connections.Add(1)
	defer t.connections.Add(-1)
	leave := sync.OnceFunc(out)
	defer leave()
	_ = raw.SetDeadline(time.Now().Add(t.params.hello))
	setTCPOptions(raw)
	reject := func(reason string, err error) {
		_ = raw.Close()
		t.rejectConn(raw, reason, err)
	}
	conn, identity, err := t.secureServer(ctx, raw)
	if err != nil {
		reject("tls", err)
		return
	}
	x, err := t.acceptHello(conn, identity)
	if err != nil {
		reject(helloReason(err), err)
		return
	}
	if err := x.refused(); err != nil {
		reject(refusalReason(err), err)
		return
	}
	if !x.mine.Outside {
		t.half.remember(raw)
	}
	t.Raft().heard(x.peer.NodeID)
	switch x.purpose {
	case purposeProbe:
		t.probed(ctx, x, conn, leave)
	case purposeRelay:
		t.relayed(ctx, x, conn, leave)
	case purposeCalls:
		t.called(ctx, x, conn, leave)
	case purposeRaft:
		if err := conn.SetDeadline(time.Time{}); err != nil {
			_ = raw.Close()
		} else if err := t.Raft().accept(x, conn); err != nil {
			reject("too_many", err)
		}
	}
}

// probed continues a probe after its hello, if it is a monitor connection: half open until its first frame.
func (t *Transport) probed(ctx context.Context, x completedHello, conn net.Conn, leave func()) {
	err := t.monitors.Accept(ctx, x.peer, trustedConn{abruptConn{conn}, t.trustOfClient(conn)}, leave)
	switch {
	case err == nil, crashdetect.ProcessEnded(err), errors.Is(err, monitor.ErrReplaced), ctx.Err() != nil:
	case errors.Is(err, monitor.ErrTooMany):
		t.rejectConn(conn, "too_many", err)
	default:
		t.rejectConn(conn, helloReason(err), err)
	}
}

func (t *Transport) rejectConn(conn net.Conn, reason string, err error) {
	t.reject("connection", reason)
	if reason == refusedByPeer {
		return // Membership.OnRefused was called, and logs it once for all peers
	}
	level := rejectionLevel(reason, err, t.cfg.Membership.LocalPeer().ClusterID)
	t.quiet.logAt(level, "connection/"+reason+"/"+level.String(), "rejected peer connection",
		"reason", reason, "remote", conn.RemoteAddr(), "error", err)
}

// rejectionLevel returns how a rejected connection is logged. During a first start, when this node has no cluster ID,
// connections break off: each node closes its own when it adopts the ID. That is expected, and so is a peer that has
// adopted it since its hello, or that says goodbye because of that.
func rejectionLevel(reason string, err error, clusterID string) hclog.Level {
	brokeOff := reason == "hello_aborted" || reason == "hello_failed"
	if errors.Is(err, monitor.ErrStale) || errors.Is(err, monitor.ErrGoodbye) || brokeOff && clusterID == "" {
		return hclog.Info
	}
	return hclog.Warn
}

// helloReason returns the metric's reason for a failed hello.
func helloReason(err error) string {
	var ne net.Error
	switch {
	case errors.Is(err, errNotPeer):
		return "garbage"
	case errors.Is(err, errAuthority):
		return "tls"
	case errors.Is(err, errIdentity), errors.Is(err, monitor.ErrIdentity):
		return "identity"
	case errors.As(err, &ne) && ne.Timeout():
		return "hello_timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "hello_aborted"
	}
	return "hello_failed"
}

const refusedByPeer = "refused_by_peer"

// refusalReason returns the metric's reason for a refused hello.
func refusalReason(err error) string {
	var r *RefusedError
	if errors.As(err, &r) && !r.ByPeer {
		return string(r.Refusal)
	}
	return refusedByPeer
}

// halfOpen holds the connections without a completed hello, oldest first. Safe for concurrent use.
type halfOpen struct {
	max, maxAddress int

	mu     sync.Mutex
	conns  list.List
	known  []netip.Prefix // addresses of members, the latest last
	closed bool
}

func newHalfOpen(limit, ofAddress int) *halfOpen { return &halfOpen{max: limit, maxAddress: ofAddress} }

// enter adds a connection, and closes another one if there are too many, of all or of its address. leave removes it.
func (h *halfOpen) enter(conn net.Conn) (leave func(), evicted bool) {
	h.mu.Lock()
	var out net.Conn
	if old := h.surplus(conn); old != nil {
		out = h.conns.Remove(old).(net.Conn)
	}
	if h.closed {
		out = conn
	}
	e := h.conns.PushBack(conn)
	h.mu.Unlock()
	if out != nil {
		_ = out.Close()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns.Remove(e) // does nothing when it was evicted
	}, out != nil && out != conn
}

// surplus returns the connection that leaves for a new one, nil if none must.
func (h *halfOpen) surplus(conn net.Conn) *list.Element {
	count, oldest := map[netip.Prefix]int{}, map[netip.Prefix]*list.Element{}
	for e := h.conns.Front(); e != nil; e = e.Next() {
		address := addressOf(e.Value.(net.Conn))
		if count[address]++; count[address] == 1 {
			oldest[address] = e
		}
	}
	if address := addressOf(conn); count[address] >= h.maxAddress {
		return oldest[address]
	}
	if h.conns.Len() < h.max {
		return nil
	}
	out, most := h.conns.Front(), 0
	for e := h.conns.Front(); e != nil; e = e.Next() { // of equals, the address with the oldest connection
		address := addressOf(e.Value.(net.Conn))
		kept := count[address] <= keptHalfOpen && slices.Contains(h.known, address)
		if count[address] > most && !kept {
			out, most = oldest[address], count[address]
		}
	}
	return out
}

// remember keeps places for the address of a member's connection.
func (h *halfOpen) remember(conn net.Conn) {
	address := addressOf(conn)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = slices.DeleteFunc(h.known, func(o netip.Prefix) bool { return o == address })
	h.known = append(h.known, address)
	h.known = h.known[max(0, len(h.known)-maxHalfOpenKnown):]
}

// addressOf returns the address of a connection for its limits.
func addressOf(conn net.Conn) netip.Prefix {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return cluster.AddressGroup(tcp.AddrPort().Addr())
	}
	return netip.Prefix{}
}

// close closes all connections in the list, and all later ones.
func (h *halfOpen) close() {
	h.mu.Lock()
	h.closed = true
	var all []net.Conn
	for e := h.conns.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(net.Conn))
	}
	h.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}
