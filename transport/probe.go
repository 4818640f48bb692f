package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"northstar/cluster"
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
