package transport

import (
	"context"
	"fmt"
	"net"
	"time"

	"northstar/cluster"
	"northstar/transport/monitor"
)

// monitorHost is the transport as the monitor connections see it.
type monitorHost struct{ *Transport }

var _ monitor.Host = monitorHost{}

// abruptConn closes without TLS shutdown, which can block.
type abruptConn struct{ net.Conn }

func (c abruptConn) Close() error { return closeNow(c.Conn) }

func (h monitorHost) Open(ctx context.Context, addr string, want cluster.NodeID) (net.Conn, cluster.Peer, error) {
	conn, x, err := h.open(ctx, addr, purposeProbe, want)
	if err != nil {
		return nil, cluster.Peer{}, err
	}
	if err := x.refused(); err != nil {
		_ = closeNow(conn)
		return nil, cluster.Peer{}, fmt.Errorf("%w: %w", monitor.ErrRefused, err)
	}
	return trustedConn{abruptConn{conn}, h.trustOfServer(conn)}, x.peer, nil
}

func (h monitorHost) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := h.cfg.Dial(ctx, addr)
	if err == nil {
		setTCPOptions(conn)
	}
	return conn, err
}

func (h monitorHost) Admit(p cluster.Peer) (member bool, err error) {
	a := h.admit(p)
	if !a.OK() {
		return false, &RefusedError{Node: p.NodeID, Refusal: a.Refusal, Reason: a.Reason}
	}
	return !a.Outside, nil
}

// Connected prewarms Raft connections with a peer that has just connected.
func (h monitorHost) Connected(peer cluster.Peer, term uint64) {
	target := h.monitors.Address(peer.NodeID)
	if target == "" {
		return
	}
	h.spawn(func(context.Context) {
		if p, err := h.Raft().peer(peer.NodeID); err == nil {
			p.prewarm(target, peer.BootID, term)
		}
	})
}

func (h monitorHost) WaitMainLoop(ctx context.Context) error { return h.Raft().WaitMainLoop(ctx) }

// LastMessage returns when this process last heard from a node. A Raft that was replaced has forgotten its contacts.
func (h monitorHost) LastMessage(id cluster.NodeID) time.Time {
	at := h.Raft().contactFrom(id)
	if last := h.lastLeaderContact(); last.Leader == id && last.At.After(at) {
		return last.At
	}
	return at
}

func (h monitorHost) Spawn(f func(context.Context)) bool { return h.spawn(f) }

func (h monitorHost) ApplyFaults(to cluster.NodeID, c *cluster.Claim, gone <-chan struct{}) bool {
	hook := h.cfg.Faults
	if hook == nil {
		return true
	}
	if changing, ok := hook.(ClaimFaults); ok {
		*c = changing.Claim(to, *c)
	}
	fault := hook.Outgoing(Message{From: h.cfg.Membership.LocalPeer().NodeID, To: to, Kind: "probe", Term: c.Term})
	if fault.Delay > 0 {
		sleep(fault.Delay, gone)
	}
	return !fault.lost()
}

// Claim returns this node's current claim; see monitor.Monitors.Claim.
func (t *Transport) Claim() cluster.Claim { return t.monitors.Claim() }

// Claims returns the newest claim received from each peer.
func (t *Transport) Claims() map[cluster.NodeID]cluster.ReceivedClaim { return t.monitors.Claims() }

// ClaimsChanged returns a channel that is closed at the next claim of any peer, and when a monitor connection ends.
// Take the channel before calling Claims, then wait for it.
func (t *Transport) ClaimsChanged() <-chan struct{} { return t.monitors.Changed() }

// Poll requests fresh claims from peers; see monitor.Monitors.Poll.
func (t *Transport) Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
	return t.monitors.Poll(ctx, peers)
}

// Ask requests a claim from a peer, unless a request has no response yet. It does not wait.
func (t *Transport) Ask(id cluster.NodeID) { t.monitors.Ask(id) }

// Answer returns the boot ID of a peer's process that answers over the present connection; see monitor.Monitors.Answer.
func (t *Transport) Answer(ctx context.Context, id cluster.NodeID) (bootID string) {
	return t.monitors.Answer(ctx, id)
}

// Announce sends this node's claim to every peer now. It does not wait.
func (t *Transport) Announce() { t.monitors.Announce() }
