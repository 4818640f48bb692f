package etcd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPutAndRange: revisions and versions are those of the state, and the header is as new as the items.
func TestPutAndRange(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	kv := pb.NewKVClient(dial(t, addr))
	ctx := within(t)
	for i := int64(2); i < 4; i++ {
		out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("v"), PrevKv: true})
		if err != nil || out.Header.Revision != i || (out.PrevKv != nil) != (i == 3) {
			t.Fatalf("put: %v, %v", out, err)
		}
	}
	out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
	if err != nil || len(out.Kvs) != 1 || out.Header.Revision != 3 || out.Header.RaftTerm != 3 {
		t.Fatalf("range: %v, %v", out, err)
	}
	if it := out.Kvs[0]; it.CreateRevision != 2 || it.ModRevision != 3 || it.Version != 2 || string(it.Value) != "v" {
		t.Errorf("item: %v", it)
	}
	deleted, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("b")})
	if err != nil || deleted.Deleted != 1 || deleted.Header.Revision != 4 {
		t.Errorf("delete: %v, %v", deleted, err)
	}
}

// TestAnswersAreCounted: large answers and batches of watches, gRPC's and those over HTTP, hold the budget until they
// are sent, and one beyond it is refused.
func TestAnswersAreCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	kv := pb.NewKVClient(dial(t, addr))
	ctx := within(t)
	value := strings.Repeat("v", 1<<20)
	n.apply(t, put("a", value))
	large := grpc.MaxCallRecvMsgSize(maxAnswer)
	count := func(what string, least int64, call func() error) {
		t.Helper()
		n.answers.Store(maxAnswer)
		if err := call(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s without a budget: %v", what, err)
		}
		n.answers.Store(0)
		n.largest.Store(0)
		if err := call(); err != nil || n.largest.Load() < least {
			t.Errorf("%s: %v, and %d bytes are counted", what, err, n.largest.Load())
		}
		for n.answers.Load() != 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		if left := n.answers.Load(); left != 0 {
			t.Errorf("%s: %d bytes are not given back", what, left)
		}
	}
	read := &pb.RangeRequest{Key: []byte("a")}
	count("range", 1<<20, func() error {
		_, err := kv.Range(ctx, read, large)
		return err
	})
	count("txn", 1<<20, func() error {
		op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: read}}
		_, err := kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{op}}, large)
		return err
	})
	count("JSON", 2<<20, func() error {
		resp, err := http.Post("http://"+addr+"/v3/kv/range", "", strings.NewReader(`{"key":"YQ=="}`))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			return status.Error(codes.ResourceExhausted, "")
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	})
	for i := range maxAnswer >> 20 { // one answer is limited, also if there is more left
		n.apply(t, put(fmt.Sprintf("b%d", i), value))
	}
	whole := &pb.RangeRequest{Key: []byte("b"), RangeEnd: []byte("c")}
	if _, err := kv.Range(ctx, whole, large); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an answer over the limit: %v", err)
	}
	if whole.KeysOnly = true; n.answers.Load() != 0 {
		t.Errorf("a refused answer holds %d bytes", n.answers.Load())
	}
	if _, err := kv.Range(ctx, whole, large); err != nil {
		t.Errorf("its keys alone: %v", err)
	}
}

// TestWriteAnswers: the answer to a write is not refused as one that was not executed. It waits for the budget.
func TestWriteAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		n.apply(t, put("a", strings.Repeat("v", 1<<20)))
		s := New(testDeps(n))
		defer s.grpc.Stop()
		held := &heldAnswer{}
		ctx := context.WithValue(t.Context(), callKey{}, Call(fakeCall{t.Context(), n}))
		ctx = context.WithValue(ctx, answerKey{}, held)
		r := &pb.PutRequest{Key: []byte("a"), Value: bytes.Repeat([]byte("w"), 1<<20), PrevKv: true}
		n.answers.Store(maxAnswer)
		if _, err := (&kvService{s: s}).Put(ctx, r); status.Code(err) != codes.Unknown || held.taken != 0 {
			t.Errorf("a put whose answer finds no room: %v", err)
		}
		time.AfterFunc(answerTimeout/2, func() { n.answers.Store(0) })
		n.answers.Store(maxAnswer)
		if out, err := (&kvService{s: s}).Put(ctx, r); err != nil || out.PrevKv.Value[0] != 'w' || held.taken == 0 {
			t.Errorf("a put whose answer finds room: %v", err)
		}
	})
}

// TestCountedIsGivenBack: a message that is never encoded, or whose encoding nothing frees, is given back with the
// memory.
func TestCountedIsGivenBack(t *testing.T) {
	t.Parallel()
	given := make(chan struct{})
	newCounted(&pb.RangeResponse{}, func() { close(given) }, time.Hour, func() {})
	for {
		runtime.GC()
		select {
		case <-given:
			return
		case <-within(t).Done():
			t.Fatal("not given back")
		default:
		}
	}
}

// TestWritesThatReturnItems: their number in progress is limited, since their answers cannot be counted before they
// come. Other writes do not wait for them.
func TestWritesThatReturnItems(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	kv := pb.NewKVClient(dial(t, addr))
	if err := n.returning.Acquire(t.Context(), maxReturning); err != nil {
		t.Fatal(err)
	}
	nested := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{
			RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("a"), PrevKv: true},
		}}},
	}}}}}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := kv.Txn(short, nested); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a transaction that returns items: %v", err)
	}
	if _, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a")}); err != nil {
		t.Error(err)
	}
	n.returning.Release(maxReturning)
	if _, err := kv.Txn(within(t), nested); err != nil {
		t.Error(err)
	}
}
