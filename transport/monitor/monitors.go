// Package monitor keeps one connection between each two nodes, on which they exchange claims about themselves and the
// leader. The end of such a connection, or of the connection to a peer's crash socket, shows that the peer's process
// has died.
package monitor

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// MaxPeers bounds the monitored nodes.
const MaxPeers = 64

// maxSilence is how long a connection may be silent although its peer is known to be alive.
const maxSilence = 10 * time.Second

// reconcileInterval is between two checks of the configuration; the hello of a peer without a monitor triggers one.
const reconcileInterval = time.Second

// lookDelay is the minimum delay before a check that a hello triggers.
const lookDelay = time.Millisecond

var (
	// ErrRefused is wrapped by an error of Host.Open if either side refuses the other.
	ErrRefused = errors.New("refused")
	// ErrTooMany is returned by Accept for a peer above MaxPeers.
	ErrTooMany = errors.New("too many peers")
	// ErrIdentity is returned by Accept if a claim is not of the hello's process.
	ErrIdentity = errors.New("wrong node identity")
	// ErrStale is returned by Accept if the peer's identity has changed since its hello, as when it adopts a cluster
	// ID. The peer connects again.
	ErrStale = errors.New("the peer's identity has changed since its hello")
)

// Host is the part of the transport that monitor connections use.
type Host interface {
	// Open dials a node and completes the hello within ctx. It returns the peer's side of the hello.
	Open(ctx context.Context, addr string, want cluster.NodeID) (net.Conn, cluster.Peer, error)
	// Dial opens a connection without a hello.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Admit returns an error if a peer is not admitted at present, and reports whether it is a member.
	Admit(cluster.Peer) (member bool, err error)
	// Connected is called at the first frame of a connection that replaces none with the same process. The process was
	// in term when it sent the frame.
	Connected(peer cluster.Peer, term uint64)
	// WaitMainLoop returns nil once Raft has finished its current message.
	WaitMainLoop(ctx context.Context) error
	// LastMessage returns when a node last sent a Raft message; zero if never.
	LastMessage(cluster.NodeID) time.Time
	// Spawn runs f in a goroutine that ends before the transport does. It returns false if the transport does not run.
	Spawn(f func(context.Context)) bool
	// ApplyFaults applies injected faults to a frame, and reports whether it must be sent. gone is closed when the
	// connection has ended.
	ApplyFaults(to cluster.NodeID, c *cluster.Claim, gone <-chan struct{}) (send bool)
}

// Members is this node, and the members of its cluster.
type Members interface {
	// LocalPeer returns this node as its hellos describe it.
	LocalPeer() cluster.Peer
	// Servers returns Raft's latest configuration.
	Servers() []cluster.Server
}

// Claims are what this node says of itself, and hears of its peers.
type Claims interface {
	// Claim returns this node's claim, without the fields that Monitors.Claim fills in.
	Claim() cluster.Claim
	// OnHeard is called for each claim that has arrived.
	OnHeard(from cluster.NodeID, claim *cluster.Claim)
	// OnConnectionLost is called when a peer's process, or the kernel for a dead one, ends its monitor connection.
	OnConnectionLost(cluster.ConnectionLoss)
}

// Config is what New needs. Methods of Members and Claims are called often and concurrently, and must not block.
type Config struct {
	Host                   Host
	Members                Members
	Claims                 Claims
	CrashSocketPort        int           // of this process; 0 if it has no crash socket
	TimeoutMin, TimeoutMax time.Duration // the election timeouts
	RPCTimeout             time.Duration // of a dial with its hello, and of a write
	HelloTimeout           time.Duration // of the first frame after a hello
	Logger                 hclog.Logger
}

// Monitors holds a monitor for each peer. Of two nodes the one with the lower ID dials. Safe for concurrent use.
type Monitors struct {
	cfg Config

	mu      sync.Mutex
	byID    map[cluster.NodeID]*monitor
	dialled map[cluster.NodeID]context.CancelFunc // peers that this node dials
	changed chan struct{}                         // closed at the next claim; nil while there is no waiter

	look     chan struct{} // capacity 1: check the configuration now
	fastPoll chan struct{} // capacity 1: poll fast for a while
}

// New creates the monitors. It starts nothing.
func New(cfg Config) *Monitors {
	return &Monitors{
		cfg: cfg, byID: map[cluster.NodeID]*monitor{}, dialled: map[cluster.NodeID]context.CancelFunc{},
		look: make(chan struct{}, 1), fastPoll: make(chan struct{}, 1),
	}
}

// of returns the peer's monitor, created at first use; nil if there are too many.
func (ms *Monitors) of(id cluster.NodeID) *monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m := ms.byID[id]
	if m == nil {
		if len(ms.byID) >= MaxPeers && !ms.evict() {
			return nil
		}
		m = &monitor{Monitors: ms, id: id, kick: make(chan struct{}, 1)}
		ms.byID[id] = m
	}
	return m
}

// evict removes a monitor that is neither connected nor dialled. mu is held.
func (ms *Monitors) evict() bool {
	for id, m := range ms.byID {
		if ms.dialled[id] == nil && m.current() == nil {
			delete(ms.byID, id)
			return true
		}
	}
	return false
}

func (ms *Monitors) find(id cluster.NodeID) *monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.byID[id]
}

func (ms *Monitors) all() []*monitor {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return slices.Collect(maps.Values(ms.byID))
}

// nodeOf returns the node that a process belonged to when it was last connected, "" if unknown.
func (ms *Monitors) nodeOf(bootID string) cluster.NodeID {
	for _, m := range ms.all() {
		if boot, _ := m.leaderSign(); boot == bootID {
			return m.id
		}
	}
	return ""
}

// notify wakes the goroutines that wait for claims.
func (ms *Monitors) notify() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.changed != nil {
		close(ms.changed)
		ms.changed = nil
	}
}

// Kick makes a monitor dial now, because the peer has completed a hello with this node.
func (ms *Monitors) Kick(id cluster.NodeID) {
	m := ms.find(id)
	if m == nil {
		ms.Look()
		return
	}
	if m.current() == nil {
		wake(m.kick)
	}
}

// Look makes Run check the configuration now.
func (ms *Monitors) Look() { wake(ms.look) }

// FastPoll makes Run request claims often for fastPollFor.
func (ms *Monitors) FastPoll() { wake(ms.fastPoll) }

// wake wakes the goroutine that waits on a channel of capacity 1.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Address returns the address of a peer, "" if it is not a server.
func (ms *Monitors) Address(id cluster.NodeID) string {
	s, _ := cluster.FindServer(ms.cfg.Members.Servers(), id)
	return s.Address
}

// Run polls fast for fastPollFor after an event, but only after fastPollDelay: a failover sends its own requests, and
// other frames would delay it on a busy machine.
const (
	fastPollFor   = time.Second
	fastPollDelay = 25 * time.Millisecond
)

// Run dials the servers with a higher ID than this node and polls their claims, until ctx ends; then it waits for its
// goroutines. It has one timer for all peers, slow while there is a leader, so that an idle cluster sleeps.
func (ms *Monitors) Run(ctx context.Context) {
	var dialling sync.WaitGroup
	defer dialling.Wait()
	var reconciled, fastSince time.Time
	for {
		now := time.Now()
		if now.Sub(reconciled) >= reconcileInterval {
			ms.reconcile(ctx, &dialling)
			reconciled = now
		}
		timer := time.NewTimer(ms.pollInterval(now, fastSince))
		select {
		case <-timer.C:
			ms.pollAll()
		case <-ms.fastPoll:
			if now := time.Now(); now.Sub(fastSince) >= fastPollFor {
				fastSince = now
			}
		case <-ms.look:
			sleep(lookDelay, ctx.Done()) // so that hellos never make it spin
			reconciled = time.Time{}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// pollInterval returns the time until the next poll. fastSince is the start of the last fast polling.
func (ms *Monitors) pollInterval(now, fastSince time.Time) time.Duration {
	if !ms.dials() {
		return reconcileInterval
	}
	if since := now.Sub(fastSince); since < fastPollDelay {
		return fastPollDelay - since
	}
	silence := ms.Claim().LeaderSilence
	if silence < 0 || silence >= ms.cfg.TimeoutMin || now.Sub(fastSince) < fastPollFor {
		return min(ms.cfg.TimeoutMin*2/3, maxSilence/4)
	}
	return ms.idleInterval()
}

// idleInterval returns the time between two polls while there is a leader; a node that needs claims requests them
// then. It is shorter than maxSilence, after which the other side ends a silent connection.
func (ms *Monitors) idleInterval() time.Duration { return min(ms.cfg.TimeoutMin*10/3, maxSilence/4) }

func (ms *Monitors) isDialled(id cluster.NodeID) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.dialled[id] != nil
}

func (ms *Monitors) dials() bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return len(ms.dialled) > 0
}

// pollAll polls the dialled peers without an unanswered poll. A request keeps the other side up to date by its claim.
func (ms *Monitors) pollAll() {
	for _, m := range ms.all() {
		if c := m.current(); c != nil && c.dialled {
			c.poll()
			m.considerRedial(c, time.Now())
		}
	}
}

// reconcile starts and stops dialling according to the configuration.
func (ms *Monitors) reconcile(ctx context.Context, dialling *sync.WaitGroup) {
	self := ms.cfg.Members.LocalPeer().NodeID
	servers := ms.cfg.Members.Servers()
	for _, s := range servers {
		if s.ID <= self {
			continue
		}
		m := ms.of(s.ID)
		if own := ms.startDialing(ctx, m); own != nil {
			dialling.Go(func() { m.dial(own) })
		}
	}
	for _, m := range ms.all() {
		if _, ok := cluster.FindServer(servers, m.id); !ok {
			ms.stopDialing(m)
		}
	}
}

// startDialing returns the context to dial a peer in, nil if the peer is dialled already.
func (ms *Monitors) startDialing(ctx context.Context, m *monitor) context.Context {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m == nil || ms.dialled[m.id] != nil {
		return nil
	}
	own, cancel := context.WithCancel(ctx)
	ms.dialled[m.id] = cancel
	return own
}

// stopDialing stops dialling a peer that is no longer a server.
func (ms *Monitors) stopDialing(m *monitor) {
	ms.mu.Lock()
	cancel := ms.dialled[m.id]
	delete(ms.dialled, m.id)
	ms.mu.Unlock()
	if cancel == nil {
		return
	}
	if c := m.current(); c != nil {
		c.goodbye(errNoServer)
		c.end(errNoServer)
	}
	cancel()
}

// Accept serves an accepted connection until it ends, and returns why it ended. onFirstFrame is called at the peer's
// first frame: without one the peer only wanted the hello.
func (ms *Monitors) Accept(ctx context.Context, peer cluster.Peer, conn net.Conn, onFirstFrame func()) error {
	m := ms.of(peer.NodeID)
	if m == nil {
		_ = conn.Close()
		return ErrTooMany
	}
	c := newMonitorConn(m, conn, peer)
	c.onFirstFrame = onFirstFrame
	_, err := m.serveConn(ctx, c)
	return err
}

// sleep waits for d, or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
