package monitor

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"northstar/cluster"
	"northstar/transport/crashdetect"
)

// Delays between two attempts to connect with a peer. The first attempt follows the end of a connection immediately.
const (
	minRedial    = 5 * time.Millisecond
	maxRedial    = 250 * time.Millisecond
	refusedDelay = time.Second // before a peer that has refused is dialled again
)

// maxExchanges is the number of exchanges of which the shortest is the round-trip time of the network.
const maxExchanges = 4

// monitor is the state of one peer's monitor connection. Safe for concurrent use.
type monitor struct {
	*Monitors
	id   cluster.NodeID
	kick chan struct{} // capacity 1: dial now

	redials atomic.Bool // a goroutine dials the peer beside the current connection, or serves what it has dialled

	mu             sync.Mutex
	conn           *monitorConn // the current connection, nil if none
	seen           cluster.ReceivedClaim
	boot           string         // boot ID of the newest hello
	crashSocket    crashSocketRef // the watched one
	lastLeaderSign time.Time      // its last claim as a leader that sends appends
	handshakeTime  time.Duration  // moving mean of dials with their hello; 0 if never dialled
	exchanges      []time.Duration
}

// record stores a claim of the peer. rtt is 0 if none was measured. The claim of a node that is not a member counts for
// nothing: any node certificate can send one.
func (m *monitor) record(claim cluster.Claim, rtt time.Duration, now time.Time, member bool) cluster.ReceivedClaim {
	m.mu.Lock()
	if !member {
		m.seen = cluster.ReceivedClaim{Connected: m.seen.Connected}
		m.mu.Unlock()
		return cluster.ReceivedClaim{}
	}
	m.seen.Claim, m.seen.At = claim, now
	if rtt > 0 {
		m.seen.LastExchange = rtt
	}
	if claim.Role == cluster.Leader && !claim.Disk.Stalled && claim.Yields == "" {
		m.lastLeaderSign = now
	}
	seen := m.seen
	m.mu.Unlock()
	m.cfg.Claims.OnHeard(m.id, &claim)
	m.notify()
	return seen
}

// networkRTT returns the round-trip time of the network to the peer; 0 if unknown.
func (m *monitor) networkRTT() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen.NetworkRTT
}

func (m *monitor) setNetworkRTT(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen.NetworkRTT = d
}

// recordExchange records a poll's duration. The shortest of a few is the network's: others include a busy peer's.
func (m *monitor) recordExchange(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exchanges = append(m.exchanges, d)
	if len(m.exchanges) > maxExchanges {
		m.exchanges = slices.Delete(m.exchanges, 0, 1)
	}
	m.seen.NetworkRTT = slices.Min(m.exchanges)
}

func (m *monitor) leaderSign() (boot string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boot, m.lastLeaderSign
}

func (m *monitor) current() *monitorConn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn
}

// latestClaim returns the newest claim; false if there is none.
func (m *monitor) latestClaim() (cluster.ReceivedClaim, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen, !m.seen.At.IsZero()
}

// RecordHandshake records how long a dial of a peer took, with its hello. The mean follows a change within a few
// dials, and no single slow dial moves it far.
func (ms *Monitors) RecordHandshake(id cluster.NodeID, d time.Duration) {
	m := ms.find(id)
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handshakeTime == 0 {
		m.handshakeTime = d
	}
	m.handshakeTime += (d - m.handshakeTime) / 4
}

// Handshake returns how long a dial of a peer takes, with its hello; 0 if none was measured.
func (ms *Monitors) Handshake(id cluster.NodeID) time.Duration {
	m := ms.find(id)
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handshakeTime
}

// setCurrent replaces the current connection with the peer. If that was with another process, it has died. Otherwise
// the peer is told that this end of it is no death. It reports whether the replaced one was with the same process.
func (m *monitor) setCurrent(c *monitorConn) (again bool) {
	m.mu.Lock()
	old := m.conn
	m.conn, m.boot = c, c.peer.BootID
	m.seen.Connected = true
	m.mu.Unlock()
	switch {
	case old == nil:
		return false
	case old.peer.BootID != c.peer.BootID:
		old.end(ErrReplaced)
		m.reportLoss(old, ErrReplaced)
		return false
	}
	leave := func(context.Context) {
		old.goodbye(ErrReplaced)
		old.end(ErrReplaced)
	}
	if !m.cfg.Host.Spawn(leave) { // a goodbye may block
		old.end(ErrReplaced)
	}
	return true
}

// disconnected removes c, and reports it if the peer's process seems dead.
func (m *monitor) disconnected(c *monitorConn, cause error) {
	m.mu.Lock()
	was := m.conn == c
	if was {
		m.conn = nil
		m.seen.Connected = false
	}
	m.mu.Unlock()
	if !was {
		return
	}
	m.notify()
	m.FastPoll()
	if crashdetect.ProcessEnded(cause) {
		m.reportLoss(c, cause)
	}
	m.cfg.Logger.Debug("monitor connection ended", "peer", m.id, "cause", cause)
}

func (m *monitor) reportLoss(c *monitorConn, cause error) {
	m.cfg.Claims.OnConnectionLost(cluster.ConnectionLoss{
		Peer: m.id, BootID: c.peer.BootID, At: time.Now(), Cause: cause,
	})
}

// serveConn serves a connection until it ends, and returns why. heard reports whether the peer ever sent a frame.
func (m *monitor) serveConn(ctx context.Context, c *monitorConn) (heard bool, cause error) {
	heard, cause = c.run(ctx)
	m.disconnected(c, cause)
	return heard, cause
}

// dial keeps a connection with the peer until ctx ends.
func (m *monitor) dial(ctx context.Context) {
	wait := minRedial
	for ctx.Err() == nil {
		if c := m.current(); c != nil && c.dialled { // of redial
			select {
			case <-c.gone:
			case <-ctx.Done():
			}
		}
		if m.current() != nil || m.redials.Load() { // it ends, or the new one has no frame yet
			sleep(minRedial, ctx.Done())
			continue
		}
		heard, err := m.dialOnce(ctx)
		switch {
		case heard:
			wait = minRedial
		case errors.Is(err, ErrRefused):
			wait = refusedDelay
		default:
			wait = min(2*wait, maxRedial)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-m.kick:
			sleep(minRedial, ctx.Done()) // so that kicks never make it spin
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// dialOnce makes one connection and serves it.
func (m *monitor) dialOnce(ctx context.Context) (heard bool, err error) {
	addr := m.Address(m.id)
	if addr == "" {
		return false, errNoServer
	}
	hello, cancel := context.WithTimeout(ctx, m.cfg.RPCTimeout)
	conn, peer, err := m.cfg.Host.Open(hello, addr, m.id)
	cancel()
	if err != nil {
		return false, err
	}
	return m.serveDialled(ctx, opened{conn, peer}, m.cfg.HelloTimeout, func() {})
}

// serveDialled serves a dialled connection. Its first frame has to come in time, and onFirstFrame is called then.
func (m *monitor) serveDialled(ctx context.Context, o opened, limit time.Duration, onFirstFrame func(),
) (heard bool, err error) {
	if err := o.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		_ = o.conn.Close()
		return false, err
	}
	c := newMonitorConn(m, o.conn, o.peer)
	c.dialled, c.onFirstFrame = true, onFirstFrame
	c.poll()
	return m.serveConn(ctx, c)
}

// Delays between two connections to a peer's crash socket.
const (
	minCrashSocketDelay = time.Second
	maxCrashSocketDelay = time.Minute
)

// crashSocketRef is the crash socket of a process of the peer.
type crashSocketRef struct {
	boot    string // boot ID of the process; "" if no crash socket is known
	addr    string
	reached bool // there was a connection to it: a firewall may refuse all dials although the process runs
}

// watchNewCrashSocket starts to watch the crash socket of the claiming process, unless it is watched already.
func (m *monitor) watchNewCrashSocket(claim cluster.Claim) {
	m.mu.Lock()
	watched := m.crashSocket.boot == claim.BootID
	m.mu.Unlock()
	if claim.CrashSocketPort <= 0 || claim.CrashSocketPort > 65535 || watched {
		return
	}
	host, _, err := net.SplitHostPort(m.Address(m.id))
	if err != nil {
		return // no longer a server
	}
	ref := crashSocketRef{boot: claim.BootID, addr: net.JoinHostPort(host, strconv.Itoa(claim.CrashSocketPort))}
	m.mu.Lock()
	m.crashSocket = ref
	m.mu.Unlock()
	if !m.cfg.Host.Spawn(func(ctx context.Context) { m.watchCrashSocket(ctx, ref) }) {
		m.forgetCrashSocket(ref)
	}
}

func (m *monitor) forgetCrashSocket(ref crashSocketRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket.boot == ref.boot && m.crashSocket.addr == ref.addr {
		m.crashSocket = crashSocketRef{}
	}
}

// reachCrashSocket records that there was a connection to a crash socket.
func (m *monitor) reachCrashSocket(ref crashSocketRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket.boot == ref.boot && m.crashSocket.addr == ref.addr {
		m.crashSocket.reached = true
	}
}

// CrashSocketOf returns the address of the crash socket of a peer's process, "" if it is unknown or was never reached.
func (ms *Monitors) CrashSocketOf(id cluster.NodeID, boot string) string {
	m := ms.find(id)
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket.boot != boot || !m.crashSocket.reached {
		return ""
	}
	return m.crashSocket.addr
}

// watchCrashSocket keeps a connection to a crash socket while the monitor connection is with that process, and reports
// its end as the end of the process. An unreachable crash socket is dialled at growing intervals.
func (m *monitor) watchCrashSocket(ctx context.Context, ref crashSocketRef) {
	defer m.forgetCrashSocket(ref)
	wait := minCrashSocketDelay
	for {
		connected, cause := crashdetect.Hold(ctx, m.cfg.Host.Dial, ref.addr, m.cfg.RPCTimeout,
			func() { m.reachCrashSocket(ref) })
		c := m.current()
		if ctx.Err() != nil || c == nil || c.peer.BootID != ref.boot {
			return // the monitor connection has ended first, and was reported
		}
		if connected && crashdetect.ProcessEnded(cause) {
			m.reportLoss(c, cause)
		}
		select {
		case <-time.After(wait):
		case <-c.gone:
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, maxCrashSocketDelay)
	}
}
