package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"northstar/cluster"
	"northstar/transport/crashdetect"
)

// Probe completes a hello with the node at addr and closes the connection. It returns that node's identity and its
// decision about this node, also if either side refuses the other: then err is a *RefusedError. Any other error means
// that the hello was not completed. The callbacks of Config are called as for any hello. Probe takes as long as ctx
// allows, and at most the hello timeout: 2 × TimeoutMax or 1 s, whichever is longer.
func (t *Transport) Probe(ctx context.Context, addr string) (cluster.Peer, cluster.Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, t.params.hello)
	defer cancel()
	conn, x, err := t.open(ctx, addr, purposeProbe, "")
	if err != nil {
		return cluster.Peer{}, cluster.Admission{}, err
	}
	_ = closeNow(conn)
	return x.peer, x.theirs.admission(), x.refused()
}

// open dials, secures the connection and completes a hello, within ctx.
func (t *Transport) open(
	ctx context.Context, target string, p purpose, want cluster.NodeID,
) (net.Conn, completedHello, error) {
	start := time.Now()
	raw, err := t.cfg.Dial(ctx, target)
	if err != nil {
		return nil, completedHello{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	setTCPOptions(raw)
	conn, identity, err := t.secureClient(ctx, raw)
	var x completedHello
	if err == nil {
		x, err = t.dialHello(conn, p, want, identity)
	}
	if err != nil {
		_ = raw.Close()
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return nil, completedHello{}, fmt.Errorf("hello with %s: %w", target, err)
	}
	t.monitors.RecordHandshake(want, time.Since(start))
	return conn, x, nil
}

// deadDialBackoff is how long Raft does not dial a dead process: dials would delay the election that follows.
const deadDialBackoff = 30 * time.Millisecond

// dialBackoff is a dead process of a peer, and the time until which it is not dialled.
type dialBackoff struct {
	bootID string
	until  time.Time
}

// Confirm dials again to find out whether the process bootID of a peer still runs, within ctx and about 60 ms. It takes
// two handshakes if the peer is far away, and at most TimeoutMax.
func (t *Transport) Confirm(ctx context.Context, peer cluster.NodeID, bootID string) cluster.Liveness {
	target := t.monitors.Address(peer)
	if target == "" {
		return cluster.LivenessUnclear
	}
	found := crashdetect.DeathCheck{
		BootID: bootID, CrashSocket: t.monitors.CrashSocketOf(peer, bootID), Dial: t.cfg.Dial,
		Handshake: t.monitors.Handshake(peer), Far: t.cfg.TimeoutMax,
		Hello: func(ctx context.Context) (string, error) {
			conn, x, err := t.open(ctx, target, purposeProbe, peer)
			if err != nil {
				return "", err
			}
			_ = closeNow(conn)
			return x.peer.BootID, nil
		},
	}.Run(ctx)
	if found == cluster.LivenessDead {
		if p, err := t.Raft().peer(peer); err == nil { // Raft does not dial it for deadDialBackoff
			p.backoff.Store(&dialBackoff{bootID, time.Now().Add(deadDialBackoff)})
		}
	}
	return found
}

// checkBackoff returns a dial error if the peer's last known process was recently found dead.
func (p *peer) checkBackoff(now time.Time) error {
	b := p.backoff.Load()
	if b == nil || !now.Before(b.until) {
		return nil
	}
	if facts, known := p.known(); !known || facts.BootID != b.bootID {
		return nil // another process has completed a hello since
	}
	return &dialError{errProcessDead}
}
