package etcd

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"weak"

	"google.golang.org/grpc"

	"northstar/state"
)

// observed is a node, and the stream of a client that observes election "d" and does not read.
func observed(t *testing.T, n *fakeNode) (grpc.ClientStream, *wire) {
	d := testDeps(n)
	wires := wiresOf(&d)
	_, addr := serve(t, d, nil)
	conn := dial(t, addr, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, observeMethod)
	if err == nil {
		err = stream.SendMsg(electionMessage(t, "LeaderRequest").set("name", []byte("d")).Message)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream, <-wires
}

// TestObserveKeepsNoValues: while its client does not read, a stream of an election keeps none of the values that a
// leader has proclaimed. It goes on with the present one.
func TestObserveKeepsNoValues(t *testing.T) {
	t.Parallel()
	n, _ := forgetful(t, 0)
	value := strings.Repeat("v", 800<<10)
	n.apply(t, put("d/1", value))
	stream, w := observed(t, n)
	var proclaimed []weak.Pointer[state.Item]
	out := electionMessage(t, "LeaderResponse")
	receive := func() string {
		if err := stream.RecvMsg(out.Message); err != nil {
			t.Fatal(err)
		}
		kv, _ := out.message("kv")
		return string(kv.bytes("value"))
	}
	if receive() != value { // the first one: the stream then waits for changes
		t.Error("another value")
	}
	for range 3 {
		n.apply(t, put("d/1", value))
		proclaimed = append(proclaimed, itemOf(t, n))
	}
	awaitUnsent(t, w)
	n.apply(t, put("d/1", "now"))
	forget(t, n)
	for _, p := range proclaimed {
		awaitFreed(t, "a value", p)
	}
	for receive() != "now" {
	}
}

// TestObserveKeepsNoView: while its client does not read, a stream of an election keeps no state.
func TestObserveKeepsNoView(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	for _, key := range []string{"d/1", "d/2"} {
		n.apply(t, put(key, strings.Repeat("v", 800<<10)))
	}
	_, w := observed(t, n)
	sent := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.open[1] != nil && w.open[1].unsent > 0
	}
	for ctx := within(t); !sent(); runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("no leader is sent")
		}
	}
	n.apply(t, del("d/1"))
	kept := weak.Make(n.View())
	awaitUnsent(t, w)
	n.apply(t, put("other", "v"))
	awaitFreed(t, "a state", kept)
}

// TestWaitingCallsKeepNoView: a call that waits for a lock or an election keeps no state.
func TestWaitingCallsKeepNoView(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	c.must("election/campaign", `{"name":%q,"lease":%d}`, "e", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second := c.begin(ctx, "election/campaign", `{"name":%q,"lease":%d}`, "e", 2)
	kept := weak.Make(c.node.View())
	c.until("the call waits", func() bool { return c.server.recipes.waiting.Load() == 1 })
	c.node.apply(t, put("other", "v"))
	awaitFreed(t, "a state", kept)
	cancel()
	<-second
}
