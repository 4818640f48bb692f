package transport

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func TestRelay(t *testing.T) {
	t.Parallel()
	type got struct {
		from    cluster.NodeID
		message []byte
	}
	taken := make(chan got, 8)
	var answer error
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.relayed = func(from cluster.NodeID, message []byte) error {
			taken <- got{from, message}
			return answer
		}
	})
	n2 := newEnd(t, "n2")
	n2.mu.Lock()
	n2.servers = []cluster.Server{{ID: "n1", Address: n1.addr, Suffrage: cluster.Voter}}
	n2.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	big := bytes.Repeat([]byte("x"), maxRelay)
	for _, message := range [][]byte{[]byte("hello"), big, nil} {
		if err := n2.tr.Relay(ctx, "n1", message); err != nil {
			t.Fatal(err)
		}
		if g := <-taken; g.from != "n2" || !bytes.Equal(g.message, message) {
			t.Fatalf("%d bytes from %s", len(g.message), g.from)
		}
	}
	answer = errors.New("the disk is full")
	if err := n2.tr.Relay(ctx, "n1", []byte("x")); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("refused: %v", err)
	}
	if err := n2.tr.Relay(ctx, "n1", append(big, 'x')); err == nil {
		t.Error("a message over the bound is sent")
	}
	if err := n2.tr.Relay(ctx, "n3", nil); err == nil {
		t.Error("sent to nobody")
	}
	// A relay fails to a node that is not admitted, and to one without a handler.
	n1.remember("n2", cluster.Record{Removed: true})
	<-taken
	if err := n2.tr.Relay(ctx, "n1", []byte("x")); err == nil || len(taken) != 0 {
		t.Errorf("a removed node: %v, %d messages", err, len(taken))
	}
	n1.mu.Lock()
	n1.servers = []cluster.Server{{ID: "n2", Address: n2.addr, Suffrage: cluster.Voter}}
	n1.mu.Unlock()
	n3 := newEnd(t, "n3")
	n3.mu.Lock()
	n3.servers = n1.servers
	n3.mu.Unlock()
	if err := n3.tr.Relay(ctx, "n2", nil); err == nil || !strings.Contains(err.Error(), "accepts no relayed messages") {
		t.Errorf("no taker: %v", err)
	}
}
