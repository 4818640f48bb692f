package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"northstar/cluster"
	"northstar/state"
)

func bytesOf(s string) io.Reader { return bytes.NewReader([]byte(s)) }

func createWatch(r *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

func cancelWatch(id int64) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id},
	}}
}

func requestProgress() *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{},
	}}
}

// pipe is a stream of watches in memory.
type pipe struct {
	grpc.ServerStream
	server *Server
	ctx    context.Context
	in     chan *pb.WatchRequest
	out    chan *pb.WatchResponse
	done   chan error // of the server
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Recv() (*pb.WatchRequest, error) {
	select {
	case r, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *pipe) Send(r *pb.WatchResponse) error {
	select {
	case p.out <- r:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *pipe) SendMsg(m any) error {
	message, sent := uncounted(m)
	defer sent()
	return p.Send(message.(*pb.WatchResponse))
}

// watching runs a test in virtual time with a server and a stream of watches.
func watching(t *testing.T, test func(t *testing.T, n *fakeNode, p *pipe)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		ctx, stop := context.WithCancel(t.Context())
		hubDone := make(chan struct{})
		go func() { s.hub.run(ctx); close(hubDone) }()
		p := openPipe(ctx, s)
		test(t, n, p)
		stop()
		<-p.done
		<-hubDone
		s.grpc.Stop()
	})
}

func openPipe(ctx context.Context, s *Server) *pipe {
	ctx = context.WithValue(ctx, callKey{}, Call(fakeCall{ctx, s.deps.Node.(*fakeNode)}))
	p := &pipe{
		server: s, ctx: ctx, in: make(chan *pb.WatchRequest), out: make(chan *pb.WatchResponse),
		done: make(chan error, 1),
	}
	go func() { p.done <- (&watchService{s: s}).Watch(p) }()
	return p
}

// want receives one message for each description, and no other.
func (p *pipe) want(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case r := <-p.out:
			if got := describeResponse(r); got != w {
				t.Errorf("got  %s\nwant %s", got, w)
			}
		case <-time.After(time.Hour):
			t.Fatalf("nothing instead of %s", w)
		}
	}
	synctest.Wait()
	select {
	case r := <-p.out:
		t.Errorf("and then %s", describeResponse(r))
	default:
	}
}

// describeResponse returns a message as "id@header-revision: what".
func describeResponse(r *pb.WatchResponse) string {
	s := fmt.Sprintf("%d@%d", r.WatchId, r.Header.Revision)
	if r.Created {
		s += " created"
	}
	if r.Canceled {
		s += " canceled"
	}
	if r.CompactRevision != 0 {
		s += fmt.Sprintf(" compacted %d", r.CompactRevision)
	}
	if r.CancelReason != "" {
		s += " (" + r.CancelReason + ")"
	}
	for _, e := range r.Events {
		s += fmt.Sprintf(" %s %s=%s@%d", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision)
		if e.PrevKv != nil {
			s += fmt.Sprintf("(%s)", e.PrevKv.Value)
		}
	}
	if r.Fragment {
		s += " fragment"
	}
	return s
}

func TestWatchFromNow(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		n.apply(t, put("a", "0"))
		first := n.View().Revision()
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		p.want(t, fmt.Sprintf("0@%d created", first))
		n.apply(t, put("a", "1"))
		p.want(t, fmt.Sprintf("0@%d PUT a=1@%d", first+1, first+1))
		n.apply(t, put("b", "x"), del("a"))
		p.want(t, fmt.Sprintf("0@%d DELETE a=@%d", first+3, first+3))
		p.in <- cancelWatch(0)
		p.in <- cancelWatch(5) // unknown: no answer
		synctest.Wait()
		n.apply(t, put("a", "2"))
		p.want(t, fmt.Sprintf("0@%d canceled", first+3))
	})
}

func TestWatchFromThePast(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		n.apply(t, put("a1", "1"), put("b", "2"), put("a2", "3"))
		r := n.View().Revision()
		p.in <- createWatch(&pb.WatchCreateRequest{
			Key: []byte("a"), RangeEnd: []byte("b"), StartRevision: int64(r - 2), WatchId: 7,
		})
		p.want(t, fmt.Sprintf("7@%d created", r), fmt.Sprintf("7@%d PUT a1=1@%d PUT a2=3@%d", r, r-2, r))
	})
}

// TestWatchFromTheFuture sends nothing before its revision, and no progress.
func TestWatchFromTheFuture(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		r := n.View().Revision()
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: int64(r + 2), ProgressNotify: true})
		p.want(t, fmt.Sprintf("0@%d created", r))
		p.in <- requestProgress()
		n.apply(t, put("a", "1"))
		p.want(t)
		time.Sleep(time.Hour)
		p.want(t)
		n.apply(t, put("a", "2"))
		// the event, and the progress that was asked for
		p.want(t, fmt.Sprintf("0@%d PUT a=2@%d", r+2, r+2), fmt.Sprintf("-1@%d", r+2))
	})
}

func TestWatchRefusals(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		r := n.View().Revision()
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1})
		p.want(t, fmt.Sprintf("-1@%d created canceled (etcdserver: mvcc: required revision has been compacted)", r))
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")})
		p.want(t, fmt.Sprintf("-1@%d created canceled (mvcc: watcher range is empty)", r))
		p.in <- createWatch(&pb.WatchCreateRequest{WatchId: 3})
		p.want(t, fmt.Sprintf("3@%d created", r))
		p.in <- createWatch(&pb.WatchCreateRequest{WatchId: 3})
		p.want(t, fmt.Sprintf("-1@%d created canceled (mvcc: duplicate watch ID provided on the WatchStream)", r))
	})
}

// TestWatchProgress: a progress message names a revision up to which all was sent, and not only of the last event.
func TestWatchProgress(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		p.in <- requestProgress() // without a watch: no answer
		p.want(t)
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		p.want(t, fmt.Sprintf("0@%d created", n.View().Revision()))
		n.apply(t, put("b", "1"))
		p.in <- requestProgress()
		p.want(t, fmt.Sprintf("-1@%d", n.View().Revision()))
		n.apply(t, put("a", "1"))
		r := n.View().Revision()
		p.in <- requestProgress()
		p.want(t, fmt.Sprintf("0@%d PUT a=1@%d", r, r), fmt.Sprintf("-1@%d", r))
	})
}

// TestProgressNotify: a watch that asked for it hears of the revision when it had no event for an interval, also for
// its first one.
func TestProgressNotify(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), ProgressNotify: true})
		p.want(t, fmt.Sprintf("0@%d created", n.View().Revision()))
		n.apply(t, put("b", "1"))
		start := time.Now()
		p.want(t, fmt.Sprintf("0@%d", n.View().Revision()))
		if d := time.Since(start); d < 10*time.Minute || d > 11*time.Minute {
			t.Errorf("the notification came after %v", d)
		}
	})
}

// TestWatchCompacted: a watch from a revision that is no longer kept ends, and says from where one can start.
func TestWatchCompacted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{state: state.New(state.Options{HistoryRevisions: 4}), leader: "n1", changed: make(chan struct{})}
		n.apply(t, state.Command{Kind: state.KindFirstRevision, FirstRevision: &state.FirstRevision{}})
		for i := 1; i < 10; i++ {
			n.apply(t, put("a", fmt.Sprint(i)))
		}
		s := New(testDeps(n))
		ctx, stop := context.WithCancel(t.Context())
		p := openPipe(ctx, s)
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 6})
		p.want(t, "0@10 created", "0@10 canceled compacted 7")
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 7})
		p.want(t, "1@10 created", "1@10 PUT a=6@7 PUT a=7@8 PUT a=8@9 PUT a=9@10")
		stop()
		<-p.done
		s.grpc.Stop()
	})
}

// TestSlowWatch: a client that does not read delays no other stream, and then gets all events in order.
func TestSlowWatch(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, slow *pipe) {
		s := New(testDeps(n))
		defer s.grpc.Stop()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		hubDone := make(chan struct{})
		go func() { s.hub.run(ctx); close(hubDone) }()
		fast := openPipe(ctx, s)
		slow.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte{0}})
		<-slow.out
		fast.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte{0}})
		<-fast.out
		r := n.View().Revision()
		var want []int64
		for i := range uint64(100) {
			n.apply(t, put("a", "v"))
			fast.want(t, fmt.Sprintf("0@%d PUT a=v@%d", r+1+i, r+1+i))
			want = append(want, int64(r+1+i))
		}
		var got []int64
		for len(got) < len(want) {
			for _, e := range (<-slow.out).Events {
				got = append(got, e.Kv.ModRevision)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
		stop()
		<-fast.done
		<-hubDone
	})
}

// TestManyWatches: a stream has a limit of watches, and each of them gets its event.
func TestManyWatches(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		for i := range maxWatchesPerStream {
			p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
			if r := <-p.out; r.Canceled || r.WatchId != int64(i) {
				t.Fatalf("watch %d: %s", i, describeResponse(r))
			}
		}
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		p.want(t, fmt.Sprintf("-1@%d created canceled (etcdserver: too many requests)", n.View().Revision()))
		n.apply(t, put("a", "1"))
		seen := map[int64]bool{}
		for range maxWatchesPerStream {
			if r := <-p.out; len(r.Events) == 1 {
				seen[r.WatchId] = true
			}
		}
		if len(seen) != maxWatchesPerStream {
			t.Errorf("%d watches got the event", len(seen))
		}
	})
}

// TestWatchesAreShared: a stream has no more watches than its caller's share, and returns those that have ended.
func TestWatchesAreShared(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		n.watches.set(2, 1<<20)
		create := func() *pb.WatchResponse {
			p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("key")})
			return <-p.out
		}
		for range 2 {
			if r := create(); r.Canceled {
				t.Fatalf("within the share: %s", describeResponse(r))
			}
		}
		if r := create(); !r.Canceled || r.CancelReason != "etcdserver: too many requests" {
			t.Errorf("beyond the share: %s", describeResponse(r))
		}
		p.in <- cancelWatch(0)
		<-p.out
		if r := create(); r.Canceled {
			t.Errorf("after the end of a watch: %s", describeResponse(r))
		}
		if places, bytes := n.watches.taken(); places != 2 || bytes != 2*len("key") {
			t.Errorf("%d watches and %d bytes are taken", places, bytes)
		}
	})
}

// TestWatchKeysAreLimited: the keys of watches stay in memory, and clients choose them.
func TestWatchKeysAreLimited(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		long := bytes.Repeat([]byte("k"), maxWatchKey+1)
		for _, r := range []*pb.WatchCreateRequest{{Key: long}, {Key: []byte("a"), RangeEnd: long}} {
			p.in <- createWatch(r)
			p.want(t, fmt.Sprintf("-1@%d created canceled (etcdserver: request is too large)", n.View().Revision()))
		}
		const room = 20
		n.watches.set(0, room*maxWatchKey)
		for i := range room {
			p.in <- createWatch(&pb.WatchCreateRequest{Key: long[1:]})
			if r := <-p.out; r.Canceled {
				t.Fatalf("watch %d: %s", i, describeResponse(r))
			}
		}
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		p.want(t, fmt.Sprintf("-1@%d created canceled (etcdserver: too many requests)", n.View().Revision()))
		p.in <- cancelWatch(7)
		<-p.out
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
		if r := <-p.out; r.Canceled {
			t.Errorf("after the end of a watch: %s", describeResponse(r))
		}
	})
}

// TestEndWithoutLeader: a stream that requires a leader ends when this node has known none for some timeouts, and one
// that does not goes on.
func TestEndWithoutLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		ctx, end := context.WithCancelCause(t.Context())
		stop := s.endWithoutLeader(ctx, end)
		defer stop()
		n.setLeader("")
		time.Sleep(2 * s.deps.TimeoutMax)
		n.setLeader("n2")
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Fatal("a short time without a leader ends the stream")
		}
		n.setLeader("")
		start := time.Now()
		<-ctx.Done()
		if d := time.Since(start); d != noLeaderTimeouts*s.deps.TimeoutMax {
			t.Errorf("the stream ends after %v", d)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, rpctypes.ErrGRPCNoLeader) {
			t.Errorf("it ends with %v", cause)
		}
	})
}

// TestEndWithoutLeader_Panics: the goroutine of a call that panics ends the call, and not the node.
func TestEndWithoutLeader_Panics(t *testing.T) {
	t.Parallel()
	s := New(testDeps(newFakeNode(t)))
	defer s.grpc.Stop()
	s.deps.Node = panickingNode{s.deps.Node}
	ctx, end := context.WithCancelCause(t.Context())
	stop := s.endWithoutLeader(ctx, end)
	defer stop()
	<-ctx.Done()
	if cause := context.Cause(ctx); status.Code(cause) != codes.Internal {
		t.Errorf("the stream ends with %v", cause)
	}
}

type panickingNode struct{ Node }

func (panickingNode) LeaderChanged() <-chan struct{} { panic("a fault") }

// TestHeadersNeverGoBack: the first batch of a watch from the past ends before the revision of its created message.
func TestHeadersNeverGoBack(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		for range eventBatch + 100 {
			n.apply(t, put("a", "v"))
		}
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 2})
		highest, events := int64(0), 0
		for events < eventBatch+100 {
			r := <-p.out
			if r.Header.Revision < highest {
				t.Errorf("the revision decreases from %d to %d", highest, r.Header.Revision)
			}
			highest, events = r.Header.Revision, events+len(r.Events)
		}
	})
}

// TestWatchBatchesAreCounted: a batch waits for the budget. A stream whose batch finds no room for long ends, and so
// does one with a batch over the limit, unless its watch asked for fragments.
func TestWatchBatchesAreCounted(t *testing.T) {
	watching(t, func(t *testing.T, n *fakeNode, p *pipe) {
		n.answers.Store(maxAnswer)
		p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte{0}, PrevKv: true})
		<-p.out
		value := strings.Repeat("v", 1<<20)
		start := time.Now()
		time.AfterFunc(answerTimeout/2, func() { n.answers.Store(0) })
		n.apply(t, put("a", value))
		if r := <-p.out; len(r.Events) != 1 || time.Since(start) < answerTimeout/2 || n.largest.Load() < 1<<20 {
			t.Errorf("%d events after %v, %d bytes", len(r.Events), time.Since(start), n.largest.Load())
		}
		s := New(testDeps(n))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		fragments := openPipe(ctx, s)
		fragments.in <- createWatch(&pb.WatchCreateRequest{
			Key: []byte("a"), RangeEnd: []byte{0}, PrevKv: true, Fragment: true,
			StartRevision: int64(n.View().Revision()) + maxAnswer>>20 + 1,
		})
		<-fragments.out
		var deletions state.Txn
		for i := range maxAnswer >> 20 {
			key := fmt.Sprintf("b%d", i)
			n.apply(t, put(key, value))
			<-p.out
			deletions.Success = append(deletions.Success, state.Op{Delete: &state.TxnDelete{Key: key}})
		}
		n.apply(t, state.Command{Kind: state.KindTxn, Txn: &deletions})
		if err := <-p.done; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a batch over the limit: %v", err)
		}
		p.done <- nil
		hubDone := make(chan struct{})
		go func() { s.hub.run(ctx); close(hubDone) }()
		for events := 0; events < maxAnswer>>20; {
			events += len((<-fragments.out).Events)
		}
		n.answers.Store(maxAnswer)
		n.apply(t, put("a", value))
		if err := <-fragments.done; !cluster.IsCode(err, cluster.CodeBusy) {
			t.Errorf("a batch that finds no room: %v", err)
		}
		stop()
		<-hubDone
		s.grpc.Stop()
	})
}
