package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"northstar/state"
)

// kvService implements etcd's KV service. Put and DeleteRange are transactions of one operation.
type kvService struct {
	pb.UnimplementedKVServer
	s *Server
}

// RangeStream is not served: only servers of version 3.7 and later have it.
func (k *kvService) RangeStream(*pb.RangeRequest, pb.KV_RangeStreamServer) error {
	return unsupported("RangeStream")
}

// Range reads keys, from this node's state.
func (k *kvService) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	v, err := k.s.readViewAt(ctx, r.Serializable, r.Revision)
	if err != nil {
		return nil, err
	}
	result, err := v.Range(ctx, rangeQuery(r), roomForAnswer(ctx))
	if err != nil {
		return nil, err
	}
	out := rangeResponse(&result)
	out.Header = k.s.header(v)
	return out, nil
}

// readView returns a view to read from: with every write acknowledged before the call, or localView.
func (s *Server) readView(ctx context.Context, serializable bool) (*state.View, error) {
	return s.readViewAt(ctx, serializable, 0)
}

// readViewAt is readView for a read of a revision. Clients name one that another node has told them of, as STM of
// clientv3 does. This node may not have it yet, and then learns from the leader whether there is one.
func (s *Server) readViewAt(ctx context.Context, serializable bool, revision int64) (*state.View, error) {
	if serializable {
		if err := s.awaitCaughtUp(ctx); err != nil {
			return nil, err
		}
		if v := s.localView(ctx); revision <= int64(v.Revision()) {
			return v, nil
		}
	}
	if err := callOf(ctx).ReadIndex(ctx); err != nil {
		return nil, err
	}
	return s.deps.Node.View(), nil
}

// newestRead returns the newest revision that a transaction of ranges names.
func newestRead(t *state.Txn) (revision int64) {
	for _, ops := range [][]state.Op{t.Success, t.Failure} {
		for i := range ops {
			revision = max(revision, ops[i].Range.Revision)
		}
	}
	return revision
}

// awaitCaughtUp returns once this node's state has all that was committed when it started. A leader knows what that is.
func (s *Server) awaitCaughtUp(ctx context.Context) error {
	err := s.deps.Node.CheckCaughtUp()
	if err != nil && callOf(ctx).ReadIndex(ctx) == nil {
		err = nil
	}
	return err
}

// Put writes a key.
func (k *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	result, err := k.write(ctx, r, &state.Txn{Success: []state.Op{{Put: putOp(r)}}})
	if err != nil {
		return nil, err
	}
	out := putResponse(result.Txn.Responses[0].Put)
	out.Header = k.s.headerAt(result.Revision)
	return out, nil
}

// DeleteRange deletes keys.
func (k *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	result, err := k.write(ctx, r, &state.Txn{Success: []state.Op{{Delete: deleteOp(r)}}})
	if err != nil {
		return nil, err
	}
	out := deleteResponse(result.Txn.Responses[0].Delete)
	out.Header = k.s.headerAt(result.Revision)
	return out, nil
}

// Txn executes a transaction. One that only reads needs no entry of the log.
func (k *kvService) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, state.MaxTxnOps); err != nil {
		return nil, err
	}
	t := txn(r)
	if !t.ReadOnly() {
		result, err := k.write(ctx, r, t)
		if err != nil {
			return nil, err
		}
		out := txnResponse(result.Txn)
		out.Header = k.s.headerAt(result.Revision)
		return out, nil
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	v, err := k.s.readViewAt(ctx, serializable(r), newestRead(t))
	if err != nil {
		return nil, err
	}
	result, err := v.ReadTxn(ctx, t, roomForAnswer(ctx))
	if err != nil {
		return nil, err
	}
	out := txnResponse(&result)
	out.Header = k.s.header(v)
	return out, nil
}

// serializable reports whether every range of a transaction that only reads may be answered by any node.
func serializable(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if !op.GetRequestRange().GetSerializable() {
				return false
			}
		}
	}
	return true
}

// Compact makes old revisions unavailable.
func (k *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	result, err := callOf(ctx).Propose(ctx, state.Command{
		Kind: state.KindCompact, Compact: &state.Compact{Revision: r.Revision},
	})
	if err != nil {
		return nil, err
	}
	return &pb.CompactionResponse{Header: k.s.headerAt(result.Revision)}, nil
}

// write proposes a transaction.
func (k *kvService) write(ctx context.Context, r proto.Message, t *state.Txn) (state.Result, error) {
	if proto.Size(r) > maxRequestBytes {
		return state.Result{}, rpctypes.ErrGRPCRequestTooLarge
	}
	leave, err := k.s.awaitPlace(ctx, t)
	if err != nil {
		return state.Result{}, err
	}
	defer leave()
	result, err := callOf(ctx).Propose(ctx, state.Command{Kind: state.KindTxn, Txn: t})
	if err == nil {
		err = awaitAnswer(ctx, sizeOfTxn(result.Txn))
	}
	return result, err
}

// awaitPlace waits for the place of a transaction whose result may have items. They cannot be counted before they
// come. A server that stops goes on waiting for drainQuiet: nothing is proposed yet.
func (s *Server) awaitPlace(ctx context.Context, t *state.Txn) (leave func(), err error) {
	if !returnsItems(t) {
		return func() {}, nil
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	undo := context.AfterFunc(s.stopping, func() {
		time.AfterFunc(s.drainQuiet, func() { end(rpctypes.ErrGRPCStopped) })
	})
	defer undo()
	return callOf(ctx).AwaitPlace(ctx)
}

// returnsItems reports whether the result of a transaction may have items.
func returnsItems(t *state.Txn) bool {
	for _, ops := range [][]state.Op{t.Success, t.Failure} {
		for i := range ops {
			op := &ops[i]
			if op.Range != nil && !op.Range.CountOnly || op.Put != nil && op.Put.PrevKV ||
				op.Delete != nil && op.Delete.PrevKV || op.Txn != nil && returnsItems(op.Txn) {
				return true
			}
		}
	}
	return false
}
