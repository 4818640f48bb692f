package monitor

import (
	"context"
	"net"
	"strconv"
	"time"

	"northstar/cluster"
	"northstar/transport/crashdetect"
)

// Delays between two connections to a peer's crash socket.
const (
	minCrashSocketDelay = time.Second
	maxCrashSocketDelay = time.Minute
)

// crashSocketRef is the crash socket of a process of the peer.
type crashSocketRef struct {
	boot string // boot ID of the process; "" if no crash socket is known
	addr string
}

// watchNewCrashSocket starts to watch the crash socket of the process that made this claim, unless it is watched
// already.
func (m *monitor) watchNewCrashSocket(claim cluster.Claim) {
	if claim.CrashSocketPort <= 0 || claim.CrashSocketPort > 65535 || m.crashSocketOf(claim.BootID) != "" {
		return
	}
	host, _, err := net.SplitHostPort(m.Address(m.id))
	if err != nil {
		return // no longer a server
	}
	ref := crashSocketRef{claim.BootID, net.JoinHostPort(host, strconv.Itoa(claim.CrashSocketPort))}
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
	if m.crashSocket == ref {
		m.crashSocket = crashSocketRef{}
	}
}

// CrashSocketOf returns the address of the crash socket of a peer's process, "" if unknown.
func (ms *Monitors) CrashSocketOf(id cluster.NodeID, boot string) string {
	if m := ms.find(id); m != nil {
		return m.crashSocketOf(boot)
	}
	return ""
}

func (m *monitor) crashSocketOf(boot string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashSocket.boot != boot {
		return ""
	}
	return m.crashSocket.addr
}

// watchCrashSocket keeps a connection to a crash socket while the monitor connection is with that process. It reports
// the end of the connection as the end of the process. An unreachable crash socket, for example behind a firewall, is
// dialled at growing intervals.
func (m *monitor) watchCrashSocket(ctx context.Context, ref crashSocketRef) {
	defer m.forgetCrashSocket(ref)
	wait := minCrashSocketDelay
	for {
		connected, cause := crashdetect.Hold(ctx, m.cfg.Host.Dial, ref.addr, m.cfg.RPCTimeout)
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
