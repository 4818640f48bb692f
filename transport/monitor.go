package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
)

// Delays between two attempts to connect with a peer. The first one follows an
// end at once, so that a cut connection is no gap.
const (
	firstRedial = 5 * time.Millisecond
	maxRedial   = 250 * time.Millisecond
	refusedWait = time.Second // before a peer that has refused is asked again
)

// maxExchanges is how many the round trip of the network is taken from.
const maxExchanges = 4

// monitor is what this node knows of one peer by its monitor connection. Of
// each pair the node with the lower ID dials: one connection shows both that
// the other's process has died. Safe for concurrent use.
type monitor struct {
	t    *Transport
	id   cluster.NodeID
	kick chan struct{} // capacity 1: the peer has shown itself, dial now

	mu             sync.Mutex
	conv           *monitorConn // nil: none stands
	seen           cluster.ReceivedClaim
	boot           string          // of the newest hello
	crashSocket    crashSocketRef  // being watched
	lastLeaderSign time.Time       // when it last spoke as a leader whose disk works
	handshake      time.Duration   // a mean of the last dials, hello included; 0: never dialled
	exchanges      []time.Duration // what the last routine ones took, up to maxExchanges
}

// record keeps a claim of the peer. rtt 0 means that none was measured.
func (m *monitor) record(claim cluster.Claim, rtt time.Duration, now time.Time) cluster.ReceivedClaim {
	m.mu.Lock()
	m.seen.Claim, m.seen.At = claim, now
	if rtt > 0 {
		m.seen.LastExchange = rtt
	}
	if claim.Role == cluster.Leader && !claim.Disk.Stalled { // one that has stepped down is not waited for
		m.lastLeaderSign = now
	}
	seen := m.seen
	m.mu.Unlock()
	m.t.monitors.notify()
	return seen
}

// networkRTT is the round trip of the network to the peer; 0: not known.
func (m *monitor) networkRTT() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen.NetworkRTT
}

func (m *monitor) setTrip(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen.NetworkRTT = d
}

// recordExchange takes note of what a routine exchange took. The least of the last few is
// the round trip of the network: a peer that was kept from answering says nothing of that.
func (m *monitor) recordExchange(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exchanges = append(m.exchanges, d)
	if len(m.exchanges) > maxExchanges {
		m.exchanges = slices.Delete(m.exchanges, 0, 1)
	}
	m.seen.NetworkRTT = slices.Min(m.exchanges)
}

// handshakeTime is how long a dial with its hello takes; 0 when none was measured.
func (m *monitor) handshakeTime() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handshake
}

// leaderSign gives the peer's newest process, and when it last gave a sign of life as a
// leader.
func (m *monitor) leaderSign() (boot string, sign time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boot, m.lastLeaderSign
}

func (m *monitor) current() *monitorConn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conv
}

// latestClaim is the newest claim; false when there never was one.
func (m *monitor) latestClaim() (cluster.ReceivedClaim, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen, !m.seen.At.IsZero()
}

// recordHandshake takes note of how long a dial with its hello took. The mean follows a
// change within a few dials, and no single slow one moves it far.
func (m *monitor) recordHandshake(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handshake == 0 {
		m.handshake = d
	}
	m.handshake += (d - m.handshake) / 4
}

// setCurrent makes c the conversation with the peer, in the place of an older one.
// When that was with another process, that process has died.
func (m *monitor) setCurrent(c *monitorConn) {
	m.mu.Lock()
	old := m.conv
	m.conv, m.boot = c, c.x.peer.BootID
	m.seen.Connected = true
	m.mu.Unlock()
	if old == nil {
		return
	}
	old.end(errReplaced)
	if old.x.peer.BootID != c.x.peer.BootID {
		m.lost(old, errReplaced)
	}
}

// disconnected takes c out again, and reports it when the peer's process seems gone.
func (m *monitor) disconnected(c *monitorConn, cause error) {
	m.mu.Lock()
	was := m.conv == c
	if was {
		m.conv = nil
		m.seen.Connected = false
	}
	m.mu.Unlock()
	if !was {
		return
	}
	m.t.monitors.notify()
	wake(m.t.monitors.fastPoll)
	if processGone(cause) {
		m.lost(c, cause)
	}
	m.t.log.Debug("monitor connection ended", "peer", m.id, "cause", cause)
}

func (m *monitor) lost(c *monitorConn, cause error) {
	m.t.cfg.ConnectionLost(cluster.ConnectionLoss{Peer: m.id, BootID: c.x.peer.BootID, At: time.Now(), Cause: cause})
}

// awaitRetryable holds a conversation until it ends. The error is why it ended; heard
// tells whether the peer ever said anything.
func (m *monitor) serveConn(ctx context.Context, c *monitorConn) (heard bool, cause error) {
	heard, cause = c.run(ctx)
	m.disconnected(c, cause)
	return heard, cause
}

// dial keeps a conversation with the peer until ctx ends.
func (m *monitor) dial(ctx context.Context) {
	wait := firstRedial
	for ctx.Err() == nil {
		heard, err := m.dialOnce(ctx)
		var refused *RefusedError
		switch {
		case heard:
			wait = firstRedial
		case errors.As(err, &refused):
			wait = refusedWait
		default:
			wait = min(2*wait, maxRedial)
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-m.kick:
			sleep(firstRedial, ctx.Done()) // so that kicks never make it spin
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// dialOnce makes one connection and converses on it.
func (m *monitor) dialOnce(ctx context.Context) (heard bool, err error) {
	target := m.t.monitors.address(m.id)
	if target == "" {
		return false, errNoAddress
	}
	hello, cancel := context.WithTimeout(ctx, m.t.params.rpc)
	conn, x, err := m.t.open(hello, target, purposeProbe, m.id)
	cancel()
	if err != nil {
		return false, err
	}
	if err := x.refused(); err != nil {
		_ = closeNow(conn)
		return false, err
	}
	// The first answer is due as a hello is.
	if err := conn.SetReadDeadline(time.Now().Add(m.t.params.hello)); err != nil {
		_ = closeNow(conn)
		return false, err
	}
	c := newConversation(m, conn, x)
	c.dialled = true
	c.poll()
	return m.serveConn(ctx, c)
}

var errNoAddress = errors.New("no address is known")
