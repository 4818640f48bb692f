package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"northstar/cluster"
)

// A relay connection carries one message to the node that leads, and its answer:
//
//	message: length [4] · bytes
//	answer:  length [4] · why it was not taken; empty when it was

// maxRelay bounds a message.
const maxRelay = 2 << 20

// Relay hands a message to another node, whose Config.Relayed takes it. Without
// an error it has; with one it may have.
func (t *Transport) Relay(ctx context.Context, to cluster.NodeID, message []byte) error {
	server, ok := cluster.FindServer(t.cfg.Membership.Servers(), to)
	if !ok {
		return fmt.Errorf("node %s is no member", to)
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
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...)); err != nil {
		return fmt.Errorf("relay to node %s: %w", to, err)
	}
	why, err := readMessage(conn, maxHello)
	if err != nil {
		return fmt.Errorf("relay to node %s: %w", to, err)
	}
	if len(why) > 0 {
		return fmt.Errorf("node %s: %s", to, why)
	}
	return nil
}

// relayed takes one message on an accepted connection. It is no longer half open
// once the message has come.
func (t *Transport) relayed(ctx context.Context, x completedHello, conn net.Conn, leave func()) {
	defer func() { _ = closeNow(conn) }()
	message, err := readMessage(conn, maxRelay)
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
	if t.cfg.Relayed == nil {
		why = "nothing is relayed here"
	} else if err := t.cfg.Relayed(ctx, x.peer.NodeID, message); err != nil {
		why = err.Error()
		why = why[:min(len(why), maxHello)]
	}
	_ = conn.SetDeadline(time.Now().Add(t.params.rpc))
	_, _ = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(why))), why...)) // unanswered: it is sent again
}

// maxRelaying bounds the messages that are being taken.
const maxRelaying = 32

func readMessage(conn net.Conn, limit uint32) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > limit {
		return nil, fmt.Errorf("%w: message of %d bytes is over %d", errMalformed, size, limit)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(conn, body)
	return body, err
}
