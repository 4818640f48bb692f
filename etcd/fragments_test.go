package etcd

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"northstar/state"
)

// wiresOf has a server tell the connections of its calls.
func wiresOf(d *Deps) <-chan *wire {
	wires := make(chan *wire, 1)
	n := d.Node.(*fakeNode)
	d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
		wires <- wireOf(ctx)
		return fakeCall{ctx, n}, nil
	}
	return wires
}

// awaitUnsent waits until the call of a connection waits for its client.
func awaitUnsent(t *testing.T, w *wire) {
	t.Helper()
	ctx := within(t)
	waits := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		h, ok := w.open[1]
		return ok && h.sent != nil
	}
	for !waits() {
		if ctx.Err() != nil {
			t.Fatal("the call does not wait for its client")
		}
		runtime.Gosched()
	}
}

// awaitFreed waits until nothing holds what a weak pointer points to.
func awaitFreed[T any](t *testing.T, what string, p weak.Pointer[T]) {
	t.Helper()
	for ctx := within(t); p.Value() != nil; runtime.GC() {
		if ctx.Err() != nil {
			t.Fatal(what + " is kept")
		}
	}
}

// forgetful returns a node that keeps only the last change, and keys d0 and so on with large values, and their deletion
// in one transaction.
func forgetful(t *testing.T, keys int) (n *fakeNode, deletion state.Command) {
	n = newFakeNode(t)
	n.state = state.New(state.Options{HistoryRevisions: 1, HistoryBytes: 1})
	n.apply(t, state.Command{Kind: state.KindFirstRevision, FirstRevision: &state.FirstRevision{}})
	var txn state.Txn
	for i := range keys {
		key := fmt.Sprintf("d%d", i)
		n.apply(t, put(key, strings.Repeat("v", 800<<10)))
		txn.Success = append(txn.Success, state.Op{Delete: &state.TxnDelete{Key: key}})
	}
	return n, state.Command{Kind: state.KindTxn, Txn: &txn}
}

// itemOf returns the item of the last change.
func itemOf(t *testing.T, n *fakeNode) weak.Pointer[state.Item] {
	v := n.View()
	changes, _, err := v.Changes("\x00", "\x00", v.Revision(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return weak.Make(changes[len(changes)-1].Item)
}

// forget has the node drop its earlier changes.
func forget(t *testing.T, n *fakeNode) {
	for range 3 {
		n.apply(t, put("other", strings.Repeat("v", 1<<20)))
	}
}

// TestFragmentsKeepNoChanges: between two fragments that its client does not read, a watch keeps none of its changes.
// If they are gone when the client reads on, the watch ends.
func TestFragmentsKeepNoChanges(t *testing.T) {
	t.Parallel()
	n, deletion := forgetful(t, 3)
	d := testDeps(n)
	wires := wiresOf(&d)
	_, addr := serve(t, d, nil)
	conn := dial(t, addr, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	stream, err := pb.NewWatchClient(conn).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	receive := func() *pb.WatchResponse {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	_ = stream.Send(createWatch(&pb.WatchCreateRequest{
		Key: []byte("d"), RangeEnd: []byte("e"), PrevKv: true, Fragment: true,
	}))
	receive()
	last := itemOf(t, n)
	n.apply(t, deletion)
	awaitUnsent(t, <-wires)
	forget(t, n)
	awaitFreed(t, "a change of the third fragment", last)
	if r := receive(); len(r.Events) != 1 || !r.Fragment {
		t.Errorf("%d events, fragment %v", len(r.Events), r.Fragment)
	}
	if r := receive(); !r.Canceled || r.CompactRevision == 0 {
		t.Errorf("not the end: %v", r)
	}
}

// TestFragments: the fragments of one message show each of its changes once, with the same header, also while there are
// new ones.
func TestFragments(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	var sent []*pb.WatchResponse
	ws := watchesOf(t, s, func(r *pb.WatchResponse) {
		if sent = append(sent, r); r.Fragment {
			n.apply(t, put("d", "new"))
		}
	})
	defer ws.close()
	r := &pb.WatchCreateRequest{Key: []byte("d"), RangeEnd: []byte("e"), Fragment: true, PrevKv: true, StartRevision: 2}
	if err := ws.handle(createWatch(r)); err != nil {
		t.Fatal(err)
	}
	sent = nil
	var want []string
	var txn state.Txn
	for i := range 5 {
		key := fmt.Sprintf("d%d", i)
		n.apply(t, put(key, strings.Repeat("v", 200<<10)))
		n.apply(t, put(key, strings.Repeat("v", 700<<10)))
		want = append(want, "PUT "+key, "PUT "+key)
		txn.Success = append(txn.Success, state.Op{Delete: &state.TxnDelete{Key: key}})
	}
	n.apply(t, put("d9", "small"))
	want = append(want, "PUT d9")
	n.apply(t, state.Command{Kind: state.KindTxn, Txn: &txn})
	for i := range 5 {
		want = append(want, fmt.Sprintf("DELETE d%d", i))
	}
	ws.hub.advance()
	for more, err := true, error(nil); more; {
		if more, err = ws.step(); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	fragments := 0
	for i, r := range sent {
		if i > 0 && sent[i-1].Fragment && r.Header.Revision != sent[i-1].Header.Revision {
			t.Errorf("revision %d after %d", r.Header.Revision, sent[i-1].Header.Revision)
		}
		if r.Fragment {
			fragments++
			want = append(want, "PUT d")
		}
		for _, e := range r.Events {
			got = append(got, e.Type.String()+" "+string(e.Kv.Key))
			if e.Kv.ModRevision > r.Header.Revision {
				t.Errorf("a change of revision %d in a message of %d", e.Kv.ModRevision, r.Header.Revision)
			}
		}
	}
	if !slices.Equal(got, want) || fragments < 2 {
		t.Errorf("%d fragments: got %q\nwant %q", fragments, got, want)
	}
	if n.answers.Load() != 0 {
		t.Errorf("%d bytes are not given back", n.answers.Load())
	}
}
