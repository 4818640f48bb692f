package transport

import (
	"context"
	"fmt"
	"net"
	"time"

	"northstar/cluster"
)

// A relay connection carries one message to the leader, and its response:
//
//	message:  length [4] · bytes
//	response: length [4] · why the message was rejected; empty if it was accepted

// maxRelay bounds a message.
const maxRelay = 2 << 20

// Relay sends a message to another node's Config.Relayed. After an error it may have been handled.
func (t *Transport) Relay(ctx context.Context, to cluster.NodeID, message []byte) error {
	server, ok := cluster.FindServer(t.cfg.Membership.Servers(), to)
	if !ok {
		return fmt.Errorf("node %s is not a member", to)
	}
	if len(message) > maxRelay {
		return fmt.Errorf("a message of %d bytes is over %d", len(message), maxRelay)
	}
	conn, x, err := t.open(ctx, server.Address, purposeRelay, to)
	if err != nil {
		return err
	}
	defer func() { _ = closeNow(conn) }()
	if err := x.refused(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = closeNow(conn) })
	defer stop()
	if _, err := conn.Write(appendSized(nil, message)); err != nil {
		return fmt.Errorf("relay to node %s: %w", to, err)
	}
	why, err := readSized(conn, maxHello, errMalformed)
	if err != nil {
		return fmt.Errorf("relay to node %s: %w", to, err)
	}
	if len(why) > 0 {
		return fmt.Errorf("node %s: %s", to, why)
	}
	return nil
}

// relayed handles the message on an accepted connection, which is no longer half open once the message has arrived.
func (t *Transport) relayed(ctx context.Context, x completedHello, conn net.Conn, leave func()) {
	defer func() { _ = closeNow(conn) }()
	if err := t.checkCaller(x.peer); err != nil {
		t.rejectConn(conn, "not_member", err)
		return
	}
	message, err := readSized(conn, maxRelay, errMalformed)
	if err != nil {
		t.rejectConn(conn, helloReason(err), err)
		return
	}
	if t.relaying.Add(1) > maxRelaying {
		t.relaying.Add(-1)
		t.rejectConn(conn, "too_many", errTooMany)
		return
	}
	defer t.relaying.Add(-1)
	leave()
	ctx, cancel := context.WithTimeout(ctx, t.params.hello)
	defer cancel()
	why := ""
	if t.cfg.Handler == nil {
		why = "this node accepts no relayed messages"
	} else if err := t.cfg.Handler.Relayed(ctx, x.peer.NodeID, message); err != nil {
		why = err.Error()
		why = why[:min(len(why), maxHello)]
	}
	_ = conn.SetDeadline(time.Now().Add(t.params.rpc))
	// without a response the sender repeats it
	_, _ = conn.Write(appendSized(nil, []byte(why)))
}

// maxRelaying bounds the relayed messages in progress.
const maxRelaying = 32
