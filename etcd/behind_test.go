package etcd

import (
	"context"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/cluster"
	"northstar/state"
)

// behindCall is a call at a node that has a write only after it has asked the leader.
type behindCall struct {
	fakeCall
	missing *[]state.Command
	err     error // of ReadIndex
}

func (c behindCall) ReadIndex(context.Context) error {
	if c.err == nil {
		c.node.propose(*c.missing...)
		*c.missing = nil
	}
	return c.err
}

// TestReadOfALaterRevision: a serializable read of a revision that only other nodes have yet is answered. STM of
// clientv3 makes such reads with a client of several nodes, and fails if one is refused.
func TestReadOfALaterRevision(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	k, key := &kvService{s: s}, []byte("a")
	read := func(ahead int64) *pb.RangeRequest {
		return &pb.RangeRequest{Key: key, Serializable: true, Revision: int64(n.View().Revision()) + ahead}
	}
	txn := func(r *pb.RangeRequest) *pb.TxnRequest {
		return &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: r}}}}
	}
	for _, c := range []struct {
		name  string
		ahead int64
		err   error // of the leader
		want  error
	}{
		{"the next one", 1, nil, nil},
		{"one that no node has", 2, nil, rpctypes.ErrGRPCFutureRev},
		{"no leader", 1, cluster.Errorf(cluster.CodeNoLeader, "none"), rpctypes.ErrGRPCNoLeader},
		{"the present one without a leader", 0, cluster.Errorf(cluster.CodeNoLeader, "none"), nil},
	} {
		missing := []state.Command{put("a", c.name)}
		call := behindCall{fakeCall{t.Context(), n}, &missing, c.err}
		ctx := context.WithValue(t.Context(), callKey{}, Call(call))
		if _, err := k.Range(ctx, read(c.ahead)); !errors.Is(statusOf(err), c.want) {
			t.Errorf("range, %s: %v", c.name, err)
		}
		missing = []state.Command{put("a", c.name)}
		if _, err := k.Txn(ctx, txn(read(c.ahead))); !errors.Is(statusOf(err), c.want) {
			t.Errorf("transaction, %s: %v", c.name, err)
		}
	}
}

// TestWatchFromNowOn_LaggingNode: a watch from now on shows no write that was acknowledged before.
func TestWatchFromNowOn_LaggingNode(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	ctx, end := context.WithCancel(t.Context())
	missing := []state.Command{put("a", "old")}
	ctx = context.WithValue(ctx, callKey{}, Call(behindCall{fakeCall{ctx, n}, &missing, nil}))
	p := &pipe{
		server: s, ctx: ctx, in: make(chan *pb.WatchRequest), out: make(chan *pb.WatchResponse),
		done: make(chan error, 1),
	}
	go func() { p.done <- (&watchService{s: s}).Watch(p) }()
	before := int64(n.View().Revision())
	p.in <- createWatch(&pb.WatchCreateRequest{Key: []byte("a")})
	if r := <-p.out; r.Header.Revision != before+1 {
		t.Errorf("the watch begins at revision %d, want %d", r.Header.Revision, before+1)
	}
	end()
	<-p.done
}
