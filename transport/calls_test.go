package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"northstar/cluster"
)

// knows makes n dial the other ends as members.
func knows(n *end, others ...*end) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers = nil
	for _, o := range others {
		n.servers = append(n.servers, cluster.Server{ID: o.id, Address: o.addr, Suffrage: cluster.Voter})
	}
}

func TestCall(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	n1 := newEnd(t, "n1", func(c *Config, _ *end) {
		c.Called = func(ctx context.Context, from cluster.NodeID, request []byte) []byte {
			if string(request) == "slow" {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return append([]byte(from+" "), request...)
		}
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	slow := make(chan error, 1)
	go func() {
		got, err := n2.tr.Call(ctx, "n1", []byte("slow"))
		if string(got) != "n2 slow" {
			err = errors.Join(err, fmt.Errorf("got %q", got))
		}
		slow <- err
	}()
	var calls sync.WaitGroup
	for i := range 100 { // they overtake the slow one, all on one connection
		calls.Go(func() {
			request := bytes.Repeat([]byte{byte(i)}, i*1000)
			if got, err := n2.tr.Call(ctx, "n1", request); err != nil || !bytes.Equal(got[3:], request) {
				t.Errorf("call %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	calls.Wait()
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if n := n1.tr.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	n1.stop()
	var notSent *NotSentError
	for {
		_, err := n2.tr.Call(ctx, "n1", []byte("x"))
		if errors.As(err, &notSent) {
			break // no process listens any longer
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("a node that has ended answers: %v", err)
		}
	}
}

// A call fails without having been sent to a node that is no member, is not admitted, or would not read it.
func TestCall_NotSent(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var notSent *NotSentError
	if _, err := n2.tr.Call(ctx, "n1", make([]byte, maxCall+1)); !errors.As(err, &notSent) {
		t.Errorf("too large: %v", err)
	}
	if _, err := n2.tr.Call(ctx, "n3", nil); !errors.As(err, &notSent) {
		t.Errorf("no member: %v", err)
	}
	if _, err := n2.tr.Call(ctx, "n1", nil); err == nil || errors.As(err, &notSent) {
		t.Errorf("no handler: %v", err)
	}
	n1.remember("n2", cluster.Record{Removed: true})
	if _, err := n2.tr.Call(ctx, "n1", nil); !errors.As(err, &notSent) {
		t.Errorf("removed: %v", err)
	}
}

// A member that is removed while its connection is open is not served any longer.
func TestCall_RemovedMeanwhile(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1", func(c *Config, _ *end) {
		c.Called = func(context.Context, cluster.NodeID, []byte) []byte { return []byte("served") }
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := n2.tr.Call(ctx, "n1", nil); err != nil {
		t.Fatal(err)
	}
	n1.remember("n2", cluster.Record{Removed: true})
	if got, err := n2.tr.Call(ctx, "n1", nil); err == nil {
		t.Errorf("served: %q", got)
	}
}

// The end of a call's context ends it, also if the other node never answers.
func TestCall_ContextEnds(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1", func(c *Config, _ *end) {
		c.Called = func(ctx context.Context, _ cluster.NodeID, _ []byte) []byte {
			<-ctx.Done()
			return nil
		}
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(testMin, func() { cancel(why) })
	if _, err := n2.tr.Call(ctx, "n1", nil); !errors.Is(err, why) {
		t.Error(err)
	}
}
