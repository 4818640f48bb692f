package compat

import (
	"math/rand/v2"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// step is one request. Its revisions above 0 count from the beginning of the program.
type step struct {
	method  string
	request proto.Message
	answer  proto.Message // nil: of a stream
}

func (st step) String() string {
	return st.method + " " + prototext.MarshalOptions{}.Format(st.request)
}

// Leases 1 to 3 have the IDs that the program chooses; the server has drawn that of drawnLease. It is granted once at
// most, since two drawn ones would compare otherwise on each side.
const (
	chosenLeases = 3
	drawnLease   = 4
)

// program draws the steps of one program.
type program struct {
	*rand.Rand
	revision int64 // about the present one
	watching bool
	drawn    bool // a lease whose ID the server draws
}

func newProgram(seed uint64) *program {
	p := &program{Rand: rand.New(rand.NewPCG(seed, 7))}
	p.watching = p.IntN(8) == 0
	return p
}

var keys = []string{"a", "ab", "abc", "b", "b0", "c", "d", "base"}

func (p *program) key() []byte {
	if p.IntN(60) == 0 {
		return nil
	}
	return []byte(keys[p.IntN(len(keys))])
}

func (p *program) end() []byte {
	switch p.IntN(6) {
	case 0:
		return []byte{0}
	case 1, 2:
		return []byte(keys[p.IntN(len(keys))] + "\x00")
	case 3:
		return []byte("z")
	}
	return nil
}

// lease returns one that a key may have, 0 for none.
func (p *program) lease() int64 { return max(0, p.Int64N(8)-3) }

// anyLease returns a lease that may exist.
func (p *program) anyLease() int64 { return 1 + p.Int64N(drawnLease) }

func (p *program) coin(n int) bool { return p.IntN(n) == 0 }

// someRevision returns one around those of the program.
func (p *program) someRevision() int64 { return max(1, p.Int64N(p.revision+3)) }

func (p *program) step() step {
	switch n := p.IntN(100); {
	case n < 22:
		return step{method: pb.KV_Range_FullMethodName, request: p.rangeRequest(), answer: &pb.RangeResponse{}}
	case n < 45:
		p.revision++
		return step{method: pb.KV_Put_FullMethodName, request: p.putRequest(), answer: &pb.PutResponse{}}
	case n < 53:
		p.revision++
		return step{method: pb.KV_DeleteRange_FullMethodName, request: p.deleteRequest(), answer: &pb.DeleteRangeResponse{}}
	case n < 78:
		p.revision++
		r := p.txnRequest(3)
		if deletes(r) {
			ignoreNothing(r)
		}
		return step{method: pb.KV_Txn_FullMethodName, request: r, answer: &pb.TxnResponse{}}
	case n < 82:
		return step{
			method: pb.KV_Compact_FullMethodName, answer: &pb.CompactionResponse{},
			request: &pb.CompactionRequest{Revision: p.someRevision(), Physical: p.coin(2)},
		}
	case n < 88:
		return step{method: pb.Lease_LeaseGrant_FullMethodName, request: p.grantRequest(), answer: &pb.LeaseGrantResponse{}}
	case n < 90:
		return step{
			method: pb.Lease_LeaseRevoke_FullMethodName, answer: &pb.LeaseRevokeResponse{},
			request: &pb.LeaseRevokeRequest{ID: p.anyLease()},
		}
	case n < 92:
		return step{
			method: pb.Lease_LeaseTimeToLive_FullMethodName, answer: &pb.LeaseTimeToLiveResponse{},
			request: &pb.LeaseTimeToLiveRequest{ID: p.anyLease(), Keys: p.coin(2)},
		}
	case n < 94:
		return step{
			method: pb.Lease_LeaseKeepAlive_FullMethodName, request: &pb.LeaseKeepAliveRequest{ID: p.anyLease()},
		}
	case n < 96:
		return step{
			method: pb.Lease_LeaseLeases_FullMethodName, answer: &pb.LeaseLeasesResponse{},
			request: &pb.LeaseLeasesRequest{},
		}
	case !p.watching:
		return p.step()
	case p.coin(4):
		return step{method: pb.Watch_Watch_FullMethodName, request: &pb.WatchCancelRequest{WatchId: p.Int64N(3)}}
	default:
		return step{method: pb.Watch_Watch_FullMethodName, request: p.watchRequest()}
	}
}

// grantRequest returns a request for a lease with a chosen ID, once also for one that the server draws.
func (p *program) grantRequest() *pb.LeaseGrantRequest {
	r := &pb.LeaseGrantRequest{ID: 1 + p.Int64N(chosenLeases), TTL: []int64{1000, 1000, 2000, 9_000_000_001}[p.IntN(4)]}
	if !p.drawn && p.coin(5) {
		p.drawn, r.ID, r.TTL = true, 0, 1000
	}
	return r
}

func (p *program) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: p.key(), RangeEnd: p.end(), Serializable: p.coin(2), KeysOnly: p.coin(6), CountOnly: p.coin(10),
	}
	if p.coin(3) {
		r.Limit = p.Int64N(4) - 1
	}
	if p.coin(4) {
		r.Revision = p.someRevision() - p.Int64N(2)
	}
	if p.coin(3) {
		r.SortOrder = pb.RangeRequest_SortOrder(p.IntN(3))
		r.SortTarget = pb.RangeRequest_SortTarget(p.IntN(5)) // ties keep the order of keys in etcd, up to 12 items
		if p.coin(60) {
			r.SortTarget = 9
		}
	}
	if p.coin(8) {
		r.MinModRevision, r.MaxModRevision = p.Int64N(p.revision+2), p.Int64N(p.revision+2)
	}
	if p.coin(8) {
		r.MinCreateRevision, r.MaxCreateRevision = p.Int64N(p.revision+2), p.Int64N(p.revision+2)
	}
	return r
}

func (p *program) putRequest() *pb.PutRequest {
	r := &pb.PutRequest{Key: p.key(), Lease: p.lease(), PrevKv: p.coin(2)}
	if !p.coin(5) {
		r.Value = []byte{byte('0' + p.IntN(4))}
	}
	r.IgnoreValue, r.IgnoreLease = p.coin(10), p.coin(10)
	return r
}

func (p *program) deleteRequest() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: p.key(), RangeEnd: p.end(), PrevKv: p.coin(2)}
}

func (p *program) txnRequest(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range p.IntN(3) {
		r.Compare = append(r.Compare, p.compare())
	}
	r.Success, r.Failure = p.ops(depth), p.ops(depth)
	return r
}

// deletes reports whether a transaction deletes keys. If it also puts one of them with ignore_value, etcd 3.7.3 ends
// with a panic: index out of range in txn.put.
func deletes(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(r.GetSuccess(), r.GetFailure()), func(op *pb.RequestOp) bool {
		return op.GetRequestDeleteRange() != nil || op.GetRequestTxn() != nil && deletes(op.GetRequestTxn())
	})
}

func ignoreNothing(r *pb.TxnRequest) {
	for _, op := range slices.Concat(r.GetSuccess(), r.GetFailure()) {
		if put := op.GetRequestPut(); put != nil {
			put.IgnoreValue, put.IgnoreLease = false, false
		}
		if op.GetRequestTxn() != nil {
			ignoreNothing(op.GetRequestTxn())
		}
	}
}

func (p *program) ops(depth int) (out []*pb.RequestOp) {
	for range p.IntN(4) {
		op := &pb.RequestOp{}
		switch n := p.IntN(20); {
		case n < 6:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: p.rangeRequest()}
		case n < 13:
			op.Request = &pb.RequestOp_RequestPut{RequestPut: p.putRequest()}
		case n < 16:
			r := p.deleteRequest()
			if string(r.RangeEnd) == "\x00" { // etcd allows a put of the same key beside it, and later ends: no revision pair
				r.RangeEnd = []byte("z")
			}
			op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}
		case n < 19 && depth > 0:
			op.Request = &pb.RequestOp_RequestTxn{RequestTxn: p.txnRequest(depth - 1)}
		case n == 19 && p.coin(4): // none
		default:
			op.Request = &pb.RequestOp_RequestRange{RequestRange: p.rangeRequest()}
		}
		out = append(out, op)
	}
	return out
}

func (p *program) compare() *pb.Compare {
	c := &pb.Compare{
		Key: p.key(), Result: pb.Compare_CompareResult(p.IntN(4)), Target: pb.Compare_CompareTarget(p.IntN(5)),
	}
	if p.coin(3) {
		c.RangeEnd = p.end()
	}
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: p.Int64N(4)}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: p.Int64N(p.revision + 2)}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: p.Int64N(p.revision + 2)}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: []byte{byte('0' + p.IntN(4))}}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: p.lease()}
	}
	return c
}

func (p *program) watchRequest() *pb.WatchCreateRequest {
	r := &pb.WatchCreateRequest{Key: p.key(), RangeEnd: p.end(), PrevKv: p.coin(2), Fragment: p.coin(3)}
	if p.coin(2) {
		r.StartRevision = p.someRevision()
	}
	if p.coin(4) {
		r.Filters = append(r.Filters, pb.WatchCreateRequest_FilterType(p.IntN(2)))
	}
	if p.coin(6) {
		r.WatchId = p.Int64N(4)
	}
	return r
}
