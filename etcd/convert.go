package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/state"
)

// The checks are those of etcd, in its order: a request with several errors gets the same one.

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	_, order := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]
	_, target := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]
	if !order || !target {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn checks a transaction whose lists may have room operations and comparisons.
func checkTxn(r *pb.TxnRequest, room int) error {
	used := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if used > room {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range ops {
			if err := checkOp(op, room-used); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, room int) error {
	switch u := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(u.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(u.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDelete(u.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(u.RequestTxn, room)
	}
	return rpctypes.ErrGRPCKeyNotFound // an operation that is none
}

func rangeQuery(r *pb.RangeRequest) *state.RangeQuery {
	return &state.RangeQuery{
		Key: string(r.Key), End: string(r.RangeEnd), Revision: r.Revision, Limit: r.Limit,
		Target: sortTargets[r.SortTarget], Order: state.SortOrder(r.SortOrder),
		MinRevision: r.MinModRevision, MaxRevision: r.MaxModRevision,
		MinCreateRevision: r.MinCreateRevision, MaxCreateRevision: r.MaxCreateRevision,
		KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
	}
}

var sortTargets = map[pb.RangeRequest_SortTarget]state.SortTarget{
	pb.RangeRequest_KEY: state.SortByKey, pb.RangeRequest_VERSION: state.SortByVersion,
	pb.RangeRequest_CREATE: state.SortByCreateRevision, pb.RangeRequest_MOD: state.SortByRevision,
	pb.RangeRequest_VALUE: state.SortByValue,
}

func putOp(r *pb.PutRequest) *state.TxnPut {
	return &state.TxnPut{
		Key: string(r.Key), Value: r.Value, Lease: r.Lease, PrevKV: r.PrevKv,
		IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease,
	}
}

func deleteOp(r *pb.DeleteRangeRequest) *state.TxnDelete {
	return &state.TxnDelete{Key: string(r.Key), End: string(r.RangeEnd), PrevKV: r.PrevKv}
}

// txn converts a transaction that checkTxn has accepted.
func txn(r *pb.TxnRequest) *state.Txn {
	t := &state.Txn{Success: ops(r.GetSuccess()), Failure: ops(r.GetFailure())}
	for _, c := range r.GetCompare() {
		t.Compare = append(t.Compare, compare(c))
	}
	return t
}

func ops(in []*pb.RequestOp) []state.Op {
	out := make([]state.Op, len(in))
	for i, op := range in {
		switch u := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			out[i].Range = rangeQuery(u.RequestRange)
		case *pb.RequestOp_RequestPut:
			out[i].Put = putOp(u.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			out[i].Delete = deleteOp(u.RequestDeleteRange)
		case *pb.RequestOp_RequestTxn:
			out[i].Txn = txn(u.RequestTxn)
		}
	}
	return out
}

// compare converts a comparison. An operand of another type than the target counts as 0, or as no value, as in etcd.
func compare(c *pb.Compare) state.Compare {
	out := state.Compare{
		Key: string(c.Key), End: string(c.RangeEnd),
		Target: state.CompareTarget(c.Target), Result: state.CompareResult(c.Result),
	}
	switch c.Target {
	case pb.Compare_VERSION:
		out.Number = c.GetVersion()
	case pb.Compare_CREATE:
		out.Number = c.GetCreateRevision()
	case pb.Compare_MOD:
		out.Number = c.GetModRevision()
	case pb.Compare_LEASE:
		out.Number = c.GetLease()
	case pb.Compare_VALUE:
		out.Value = c.GetValue()
	}
	return out
}

func keyValue(it *state.Item) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(it.Key), Value: it.Value, CreateRevision: int64(it.CreateRevision),
		ModRevision: int64(it.Revision), Version: int64(it.Version), Lease: it.Lease(),
	}
}

func keyValues(items []*state.Item) []*mvccpb.KeyValue {
	out := make([]*mvccpb.KeyValue, len(items))
	for i, it := range items {
		out[i] = keyValue(it)
	}
	return out
}

func rangeResponse(r *state.RangeResult) *pb.RangeResponse {
	return &pb.RangeResponse{Kvs: keyValues(r.Items), Count: r.Count, More: r.More}
}

func putResponse(r *state.PutResult) *pb.PutResponse {
	out := &pb.PutResponse{}
	if r.Prev != nil {
		out.PrevKv = keyValue(r.Prev)
	}
	return out
}

func deleteResponse(r *state.DeleteResult) *pb.DeleteRangeResponse {
	return &pb.DeleteRangeResponse{Deleted: int64(r.Deleted), PrevKvs: keyValues(r.Prev)}
}

func txnResponse(r *state.TxnResult) *pb.TxnResponse {
	out := &pb.TxnResponse{Succeeded: r.Succeeded, Responses: make([]*pb.ResponseOp, len(r.Responses))}
	for i := range r.Responses {
		out.Responses[i] = responseOp(&r.Responses[i])
	}
	return out
}

// responseOp converts the result of one operation. Its header has the revision alone.
func responseOp(r *state.OpResult) *pb.ResponseOp {
	switch {
	case r.Range != nil:
		out := rangeResponse(r.Range)
		out.Header = &pb.ResponseHeader{Revision: int64(r.Range.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: out}}
	case r.Put != nil:
		out := putResponse(r.Put)
		out.Header = &pb.ResponseHeader{Revision: int64(r.Put.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: out}}
	case r.Delete != nil:
		out := deleteResponse(r.Delete)
		out.Header = &pb.ResponseHeader{Revision: int64(r.Delete.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: out}}
	case r.Txn != nil:
		out := txnResponse(r.Txn)
		out.Header = &pb.ResponseHeader{}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: out}}
	}
	return &pb.ResponseOp{}
}
