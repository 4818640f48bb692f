package transport

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"northstar/cluster"
)

const (
	maxPeerConns = 16 // accepted connections of one peer; a new one replaces the oldest
	maxPending   = 64 // unanswered messages of one peer, which may outlive their connections
	maxPool      = 3  // idle dialled connections kept to one peer
	voteRate     = 50 // votes and pre-votes a second from one peer
	voteBurst    = 100
)

// peer is the Raft traffic with one other node. It uses one library transport per direction. All messages from in are
// from this one authenticated node, and the pool of out can be emptied without disturbing in. Safe for concurrent use.
type peer struct {
	id    cluster.NodeID
	r     *Raft
	votes *rate.Limiter

	budget  atomic.Int64 // bytes of unfinished incoming messages
	pending atomic.Int64 // unanswered incoming messages
	resets  atomic.Int64 // calls of reset
	backoff atomic.Pointer[dialBackoff]

	saidHello chan struct{} // capacity 1: the peer has connected to this node

	mu        sync.Mutex
	lastHello *cluster.Peer // newest admitted hello
	contact   time.Time     // time of its last message
	conns     []*inConn     // accepted, oldest first
	outs      []*outConn    // dialled, oldest first
	in        *libTransport // nil until it first connects
	out       *libTransport // nil until first dialled
	spareConn *outConn
	closed    bool
}

func (p *peer) outbound() (*libTransport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.out == nil {
		p.out = p.newLibTransport()
	}
	return p.out, nil
}

// maxOutsiderMessage is MaxMessage for a peer that is not a member: it may ask for votes, and is told that its entries
// do not count.
const maxOutsiderMessage = 1 << 20

// messageLimit returns the bytes of the unfinished messages of an admitted peer.
func messageLimit(a cluster.Admission) int64 {
	if a.Outside {
		return maxOutsiderMessage
	}
	return MaxMessage
}

// accept takes over an admitted connection.
func (p *peer) accept(x completedHello, conn net.Conn) error {
	t := p.r.t
	c := &inConn{
		Conn:         conn,
		readDeadline: readDeadline{step: t.params.stall, limit: maxStall, lastReceived: p.lastContact},
		budget:       &p.budget,
		reject:       func(reason string) { t.reject("message", reason) },
		limit:        messageLimit(x.mine),
		trust:        t.trustOfClient(conn),
		opened:       time.Now(),
	}
	c.scan = scanner{requests: true, limit: c.limit}
	c.released = func() { p.dropIn(c) }
	p.mu.Lock()
	if p.closed || !p.r.track() {
		p.mu.Unlock()
		return errClosed
	}
	p.lastHello = &x.peer
	t.connections.Add(1)
	if p.in == nil {
		p.in = p.newLibTransport()
		// Heartbeats are handled by the goroutine of their connection: each handover to another one wakes a thread.
		p.in.SetHeartbeatHandler(func(rpc raft.RPC) { p.r.handle(p, rpc) })
		p.r.receiveLoop(p, p.in)
	}
	var oldest *inConn
	if len(p.conns) >= maxPeerConns {
		oldest = p.conns[0]
		p.conns = p.conns[1:]
	}
	p.conns = append(p.conns, c)
	accepted := true
	select { // under the lock, so that shut finds it
	case p.in.stream.accepted <- c:
	default:
		accepted = false
	}
	p.mu.Unlock()
	if oldest != nil {
		_ = closeNow(oldest.Conn) // the library notices and calls Close
		t.reject("connection", "too_many_of_peer")
	}
	switch {
	case !accepted:
		_ = c.Close()
	case t.identityChanged(x):
		c.retire() // this node has adopted a cluster ID meanwhile, and has reset its other connections
	}
	return nil
}

func (p *peer) dropIn(c *inConn) {
	p.mu.Lock()
	p.conns = slices.DeleteFunc(p.conns, func(o *inConn) bool { return o == c })
	p.mu.Unlock()
	p.r.t.connections.Add(-1)
	p.r.untrack()
}

// dialError marks failures before a connection existed: they are not retried.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// dial returns a connection to this peer for the library: the spare one, or a new one.
func (p *peer) dial(target string, timeout time.Duration) (net.Conn, error) {
	p.mu.Lock()
	c := p.spareConn
	p.spareConn = nil
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := p.connect(target, timeout)
	if err != nil {
		return nil, &dialError{err}
	}
	return c, nil
}

// connect dials, completes the hello and keeps the peer's side of it.
func (p *peer) connect(target string, timeout time.Duration) (*outConn, error) {
	ctx, cancel := context.WithTimeout(p.r.ctx, timeout)
	defer cancel()
	resets := p.resets.Load()
	conn, x, err := p.r.t.open(ctx, target, purposeRaft, p.id)
	if err != nil {
		return nil, err
	}
	if err := x.refused(); err != nil {
		_ = closeNow(conn)
		p.r.t.quiet.warn("dial/"+refusalReason(err), "no Raft connection with peer",
			"peer", p.id, "address", target, "error", err)
		return nil, err
	}
	trust := p.r.t.trustOfServer(conn)
	c := &outConn{
		Conn: conn, rpc: p.r.t.params.rpc,
		lastReceived: func() time.Time { return p.r.t.acks.Peer(p.id).LastContact },
		stale: func() bool {
			return p.resets.Load() != resets || p.r.t.identityChanged(x) || p.r.t.recordedSince(x) ||
				!trust.hasAuthority()
		},
		scan: scanner{limit: maxResponse},
	}
	c.released = func() { p.dropOut(c) }
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.r.track() {
		_ = closeNow(conn)
		return nil, errClosed
	}
	p.lastHello = &x.peer
	p.outs = append(p.outs, c)
	return c, nil
}

func (p *peer) dropOut(c *outConn) {
	p.mu.Lock()
	p.outs = slices.DeleteFunc(p.outs, func(o *outConn) bool { return o == c })
	p.mu.Unlock()
	p.r.untrack()
}

// ensureHello completes a hello if the peer is not known, or not known to exchange votes. It returns the current
// decision about the peer. The connection is kept for the next RPC.
func (p *peer) ensureHello(target string) (cluster.Admission, error) {
	if facts, ok := p.known(); ok {
		if a := p.r.t.admit(facts); a.Votes {
			return a, nil
		}
	}
	c, err := p.connect(target, p.r.t.params.rpc)
	if err != nil {
		return cluster.Admission{}, &dialError{err}
	}
	p.keep(c)
	facts, _ := p.known()
	return p.r.t.admit(facts), nil
}

// prewarm opens two connections to the peer's process boot, which is in term: a new leader sends heartbeats and
// entries in parallel. It closes connections to an earlier process.
//
// The first connection is used once, because the library allocates its buffers only then. These 256 KiB at either end
// cost more in an election than the vote itself, and start a garbage collection.
func (p *peer) prewarm(target, boot string, term uint64) {
	if facts, ok := p.known(); ok && facts.BootID != boot {
		p.forget()
	}
	c, err := p.connect(target, p.r.t.params.rpc)
	if err != nil {
		return
	}
	p.keep(c)
	if term == 0 {
		return // a peer of an earlier version would take the message as its leader's
	}
	out, err := p.outbound()
	if err == nil {
		err = out.AppendEntries(raft.ServerID(p.id), raft.ServerAddress(target),
			&raft.AppendEntriesRequest{RPCHeader: p.r.header()}, new(raft.AppendEntriesResponse))
	}
	if err != nil {
		return
	}
	if c, err = p.connect(target, p.r.t.params.rpc); err == nil {
		p.keep(c)
	}
}

// isPrewarm reports whether a message only prewarms a connection: an append of term 0, in which there is no leader.
func isPrewarm(rpc raft.RPC) bool {
	c, ok := rpc.Command.(*raft.AppendEntriesRequest)
	return ok && c.Term == 0
}

// keep stores a connection for the next RPC, and closes the previous one.
func (p *peer) keep(c *outConn) {
	p.mu.Lock()
	if !p.closed {
		p.spareConn, c = c, p.spareConn
	}
	p.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// known returns the peer's newest admitted hello.
func (p *peer) known() (cluster.Peer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastHello == nil {
		return cluster.Peer{}, false
	}
	return *p.lastHello, true
}

// recordContact notes that a message has come now, before it is answered. It returns a time before the peer sent it;
// zero: unknown.
func (p *peer) recordContact(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contact = now
	return sentAfter(p.conns)
}

func (p *peer) lastContact() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.contact
}

// reset makes the next message in each direction repeat the hello.
func (p *peer) reset() {
	p.resets.Add(1)
	p.forget()
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	for _, c := range conns {
		c.retire()
	}
}

// forget closes the idle dialled connections.
func (p *peer) forget() {
	p.mu.Lock()
	out, spare := p.out, p.spareConn
	p.spareConn = nil
	p.mu.Unlock()
	if spare != nil {
		_ = spare.Close()
	}
	if out != nil {
		out.CloseStreams()
	}
}

// idle reports whether the peer may be evicted: it has no connection to this node, and is no member that this node has
// dialled.
func (p *peer) idle(member bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) == 0 && !(member && p.out != nil)
}

// shut closes all connections and both library transports. It does not wait for their goroutines.
func (p *peer) shut() {
	p.mu.Lock()
	p.closed = true
	in, out, spare := p.in, p.out, p.spareConn
	p.spareConn = nil
	conns, outs := slices.Clone(p.conns), slices.Clone(p.outs)
	p.mu.Unlock()
	for _, i := range []*libTransport{in, out} {
		if i != nil {
			_ = i.Close()
			i.drain()
		}
	}
	for _, c := range conns {
		_ = closeNow(c.Conn)
	}
	for _, c := range outs {
		_ = closeNow(c.Conn)
	}
	if spare != nil {
		_ = spare.Close()
	}
	if out != nil {
		out.CloseStreams() // the pool
	}
}
