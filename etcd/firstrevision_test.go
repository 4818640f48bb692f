package etcd

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/cluster"
	"northstar/state"
)

// nativeNode returns a node to which only clients of the native API have written: a, three times.
func nativeNode(t *testing.T) *fakeNode {
	t.Helper()
	n := &fakeNode{state: state.New(state.Options{}), leader: "n1", changed: make(chan struct{})}
	n.apply(t, state.Command{Kind: state.KindClusterInit, ClusterInit: &state.ClusterInit{
		ClusterID: "c-1", Generation: cluster.Generation{Number: 1}, AutoFailover: true,
	}}, put("a", "1"), put("a", "2"), put("a", "3"))
	return n
}

// TestReadersOfNativeWrites: clients that only read can name the revision that they were told, and the ones after it.
func TestReadersOfNativeWrites(t *testing.T) {
	t.Parallel()
	n := nativeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	conn, ctx := dial(t, addr), within(t)
	kv := pb.NewKVClient(conn)
	first, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
	if err != nil || first.Header.Revision != 3 {
		t.Fatalf("range: %v, %v", first, err)
	}
	n.apply(t, put("a", "4"), put("b", "1"))
	w, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Send(createWatch(&pb.WatchCreateRequest{
		Key: []byte("a"), StartRevision: first.Header.Revision + 1, PrevKv: true,
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0@5 created", "0@5 PUT a=4@4(3)"} {
		r, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := describeResponse(r); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	old, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Revision: first.Header.Revision})
	if err != nil || len(old.Kvs) != 1 || string(old.Kvs[0].Value) != "3" {
		t.Errorf("range at the earlier revision: %v, %v", old, err)
	}
}

// proposingCall is a call whose proposals are answered by a test.
type proposingCall struct {
	fakeCall
	propose func(context.Context, state.Command) (state.Result, error)
}

func (c proposingCall) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	return c.propose(ctx, cmd)
}

// nativeServer is a server over native writes, with calls whose proposals take a second.
type nativeServer struct {
	*Server
	node      *fakeNode
	proposals atomic.Int64
}

// call begins and ends a call.
func (k *nativeServer) call(ctx context.Context, name string) error {
	_, leave, err := k.begin(ctx, name)
	if err == nil {
		leave(nil)
	}
	return err
}

// withNative runs a test in virtual time. refusal is the answer to proposals, which are applied if it is nil.
func withNative(t *testing.T, refusal error, test func(t *testing.T, k *nativeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &nativeServer{node: nativeNode(t)}
		propose := func(ctx context.Context, cmd state.Command) (state.Result, error) {
			k.proposals.Add(1)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return state.Result{}, ctx.Err()
			}
			if refusal != nil {
				return state.Result{}, refusal
			}
			return k.node.propose(cmd)[0], nil
		}
		d := testDeps(k.node)
		d.TimeoutMax = time.Minute
		d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
			return proposingCall{fakeCall{ctx, k.node}, propose}, nil
		}
		k.Server = New(d)
		defer k.grpc.Stop()
		test(t, k)
	})
}

// TestKeepReplaced: of many calls at the same time one proposes, and all begin after that. Calls of operators and those
// that name no revision propose nothing, and without a leader none does or waits.
func TestKeepReplaced(t *testing.T) {
	t.Parallel()
	withNative(t, nil, func(t *testing.T, k *nativeServer) {
		for _, name := range []string{pb.KV_Compact_FullMethodName, pb.Maintenance_Status_FullMethodName} {
			if err := k.call(t.Context(), name); err != nil || k.proposals.Load() != 0 {
				t.Errorf("%s: %v, %d proposals", name, err, k.proposals.Load())
			}
		}
		k.node.setLeader("")
		began := time.Now()
		err := k.call(t.Context(), pb.KV_Range_FullMethodName)
		if took := time.Since(began); err != nil || k.proposals.Load() != 0 || took != 0 {
			t.Errorf("without a leader: %v after %v, %d proposals", err, took, k.proposals.Load())
		}
		k.node.setLeader("n1")
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				err := k.call(t.Context(), pb.KV_Range_FullMethodName)
				if kept := k.node.View().KeepsReplaced(); err != nil || !kept {
					t.Errorf("%v, kept: %v", err, kept)
				}
			})
		}
		calls.Wait()
		if got := k.proposals.Load(); got != 1 || k.node.View().Revision() != 3 {
			t.Errorf("%d proposals, revision %d", got, k.node.View().Revision())
		}
	})
}

// TestKeepReplaced_Refused: a member of an older build fails no call, and is asked seldom.
func TestKeepReplaced_Refused(t *testing.T) {
	t.Parallel()
	old := cluster.Errorf(cluster.CodeBadRequest, "some member reads only up to 5")
	withNative(t, old, func(t *testing.T, k *nativeServer) {
		for round := range 3 {
			before := k.proposals.Load()
			for range 10 {
				if err := k.call(t.Context(), pb.KV_Range_FullMethodName); err != nil {
					t.Fatal(err)
				}
			}
			if got := k.proposals.Load() - before; got != 1 {
				t.Errorf("round %d: %d proposals", round, got)
			}
			time.Sleep(keepAgainAfter)
		}
	})
}

// TestKeepReplaced_ClientGone: an attempt goes on when its client is gone, and ends with the limit of attempts.
func TestKeepReplaced_ClientGone(t *testing.T) {
	t.Parallel()
	withNative(t, nil, func(t *testing.T, k *nativeServer) {
		gone, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_ = k.call(gone, pb.KV_Range_FullMethodName)
		if !k.node.View().KeepsReplaced() {
			t.Error("replaced items are not kept")
		}
	})
	withNative(t, nil, func(t *testing.T, k *nativeServer) {
		k.deps.TimeoutMax = 100 * time.Millisecond
		began := time.Now()
		err := k.call(t.Context(), pb.KV_Range_FullMethodName)
		if took := time.Since(began); err != nil || took != 2*k.deps.TimeoutMax {
			t.Errorf("%v after %v", err, took)
		}
	})
}
