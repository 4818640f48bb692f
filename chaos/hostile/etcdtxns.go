package hostile

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// hugeTxn makes a transaction that is as large as it may be, or larger, and waits for its answer.
func hugeTxn(ctx context.Context, a *attacker, w *worker, i int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	h, err := w.etcd(ctx, a)
	if err != nil {
		return err
	}
	_ = h.conn.SetDeadline(time.Now().Add(requestTimeout))
	body, err := proto.Marshal([]*pb.TxnRequest{putTxn(100, 14<<10), rangeTxn(), putTxn(100, 19<<10), deepTxn()}[i%4])
	if err != nil {
		return err
	}
	id, err := h.open(w.number, pb.KV_Txn_FullMethodName)
	if err != nil {
		return err
	}
	if err := h.data(ctx, id, message(body), true); err != nil {
		return err
	}
	for {
		select {
		case done, ok := <-w.ended:
			if !ok {
				return errClosing
			}
			if done == id {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// putTxn returns a transaction that puts values.
func putTxn(puts, size int) *pb.TxnRequest {
	t := &pb.TxnRequest{}
	for i := range puts {
		put := &pb.PutRequest{Key: fmt.Appendf(nil, "hostile/txn/%d", i), Value: make([]byte, size), PrevKv: true}
		t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	return t
}

// rangeTxn returns a transaction that changes one key, and lists all keys in each of some hundred nested operations.
func rangeTxn() *pb.TxnRequest {
	all := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, SortTarget: pb.RangeRequest_VALUE},
	}}
	inner := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{
		RequestTxn: &pb.TxnRequest{Success: slices.Repeat([]*pb.RequestOp{all}, 120)},
	}}
	t := putTxn(1, 1)
	t.Success = append(t.Success, slices.Repeat([]*pb.RequestOp{inner}, 7)...)
	return t
}

// deepTxn returns a transaction that is nested too deeply.
func deepTxn() *pb.TxnRequest {
	t := putTxn(1, 1)
	for range 3000 {
		t = &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}}}
	}
	return t
}
