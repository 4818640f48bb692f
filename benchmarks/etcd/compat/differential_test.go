package compat

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	programs  = flag.Int("programs", 300, "number of random programs")
	firstSeed = flag.Uint64("seed", 1, "seed of the first program: with -programs 1 it replays one")
)

// TestDifferential runs random programs on NorthStar and on etcd. All answers and errors must be equal, with
// revisions counted from the beginning of the program.
func TestDifferential(t *testing.T) {
	both := []*side{
		newSide(t, "etcd", startEtcd(t)),
		newSide(t, "NorthStar", startNorthstar(t, 1)[0].etcd),
	}
	failures := 0
	for seed := *firstSeed; seed < *firstSeed+uint64(*programs) && failures < 5; seed++ {
		if diff := compare(t, both, seed); diff != "" {
			failures++
			t.Errorf("seed %d (replay: -programs 1 -seed %d):\n%s", seed, seed, diff)
		}
	}
}

// side is one of the two servers.
type side struct {
	name string
	conn *grpc.ClientConn
	base int64 // revision at the beginning of the program
}

func newSide(t *testing.T, name, addr string) *side {
	return &side{name: name, conn: dial(t, addr)}
}

// compare runs one program on both sides and returns the first difference, "" if there is none.
func compare(t *testing.T, both []*side, seed uint64) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, s := range both {
		s.reset(ctx, t)
	}
	p := newProgram(seed)
	var history []string
	watches := make([]*watcher, len(both))
	for range 5 + p.IntN(20) {
		step := p.step()
		var got [2]string
		for i, s := range both {
			if step.watch != nil && watches[i] == nil {
				watches[i] = s.openWatch(ctx, t)
			}
			got[i] = s.do(ctx, t, step, watches[i])
		}
		history = append(history, step.String()+"\n    -> "+got[0])
		if got[0] != got[1] {
			history = append(history, "    NorthStar: "+got[1])
			return strings.Join(history[max(0, len(history)-12):], "\n")
		}
	}
	if watches[0] == nil {
		return ""
	}
	var seen [2]string
	for i, s := range both {
		seen[i] = watches[i].finish(ctx, t, s)
	}
	if seen[0] != withoutMissing(seen[1], seen[0]) {
		return fmt.Sprintf("%s\netcd's watches:\n%s\nNorthStar's:\n%s", strings.Join(history, "\n"), seen[0], seen[1])
	}
	return ""
}

// withoutMissing returns what was seen without the previous values that etcd leaves out: those that were compacted
// before it sent the event.
func withoutMissing(seen, etcd string) string {
	lines, other := strings.Split(seen, "\n"), strings.Split(etcd, "\n")
	for i := range min(len(lines), len(other)) {
		short, _, _ := strings.Cut(lines[i], " prev_kv:")
		if other[i] == short {
			lines[i] = short
		}
	}
	return strings.Join(lines, "\n")
}

// reset deletes all keys and leases, and notes the revision.
func (s *side) reset(ctx context.Context, t *testing.T) {
	t.Helper()
	leases, err := pb.NewLeaseClient(s.conn).LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		t.Fatal(s.name, err)
	}
	for _, l := range leases.Leases {
		if _, err := pb.NewLeaseClient(s.conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID}); err != nil {
			t.Fatal(s.name, err)
		}
	}
	kv := pb.NewKVClient(s.conn)
	_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatal(s.name, err)
	}
	out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("base")})
	if err != nil {
		t.Fatal(s.name, err)
	}
	s.base = out.Header.Revision
}

// step is one request. Its revisions above 0 count from the beginning of the program.
type step struct {
	method  string
	request proto.Message
	answer  proto.Message
	watch   *pb.WatchCreateRequest
}

func (st step) String() string {
	m := st.request
	if st.watch != nil {
		m = st.watch
	}
	return st.method + " " + prototext.MarshalOptions{}.Format(m)
}

// do makes a request and returns its answer in a form that both sides share.
func (s *side) do(ctx context.Context, t *testing.T, st step, w *watcher) string {
	t.Helper()
	if st.watch != nil {
		create := proto.Clone(st.watch).(*pb.WatchCreateRequest)
		shift(create.ProtoReflect(), s.base)
		w.create(ctx, t, s, create)
		return ""
	}
	request, answer := proto.Clone(st.request), proto.Clone(st.answer)
	shift(request.ProtoReflect(), s.base)
	if err := s.conn.Invoke(ctx, st.method, request, answer); err != nil {
		return status.Convert(err).Code().String() + ": " + status.Convert(err).Message()
	}
	return describe(answer, s.base)
}

// describe returns a message without what differs between any two clusters.
func describe(m proto.Message, base int64) string {
	if l, ok := m.(*pb.LeaseLeasesResponse); ok { // in etcd their order is by expiry
		slices.SortFunc(l.Leases, func(a, b *pb.LeaseStatus) int { return cmp.Compare(a.ID, b.ID) })
	}
	if l, ok := m.(*pb.LeaseTimeToLiveResponse); ok { // and that of a lease's keys has none
		slices.SortFunc(l.Keys, bytes.Compare)
	}
	shift(m.ProtoReflect(), -base)
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(m)), " ")
}

// shift adds d to each revision above 0, and clears numbers of clusters and members, terms, and what a lease has left.
func shift(m protoreflect.Message, d int64) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := string(f.Name()); {
		case name == "cluster_id", name == "member_id", name == "raft_term",
			name == "TTL" && m.Descriptor().Name() == "LeaseTimeToLiveResponse" && v.Int() > 0:
			m.Clear(f)
		case name == "lease" && m.Descriptor().Name() == "KeyValue" && !m.Has(m.Descriptor().Fields().ByName("value")):
			m.Clear(f) // etcd 3.7 leaves it out with keys_only, and earlier versions do not
		case strings.HasSuffix(name, "revision"):
			if v.Int() > 0 {
				m.Set(f, protoreflect.ValueOfInt64(v.Int()+d))
			}
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				shift(v.List().Get(i).Message(), d)
			}
		case f.Message() != nil:
			shift(v.Message(), d)
		}
		return true
	})
}

// program draws the steps of one program.
type program struct {
	*rand.Rand
	revision int64 // about the present one
	watching bool
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

func (p *program) lease() int64 { return []int64{0, 0, 0, 1, 2, 3}[p.IntN(6)] }

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
		ttl := []int64{1000, 1000, 2000, 9_000_000_001}[p.IntN(4)]
		return step{
			method: pb.Lease_LeaseGrant_FullMethodName, answer: &pb.LeaseGrantResponse{},
			request: &pb.LeaseGrantRequest{ID: 1 + p.Int64N(3), TTL: ttl},
		}
	case n < 91:
		return step{
			method: pb.Lease_LeaseRevoke_FullMethodName, answer: &pb.LeaseRevokeResponse{},
			request: &pb.LeaseRevokeRequest{ID: 1 + p.Int64N(3)},
		}
	case n < 94:
		return step{
			method: pb.Lease_LeaseTimeToLive_FullMethodName, answer: &pb.LeaseTimeToLiveResponse{},
			request: &pb.LeaseTimeToLiveRequest{ID: 1 + p.Int64N(3), Keys: p.coin(2)},
		}
	case n < 96:
		return step{
			method: pb.Lease_LeaseLeases_FullMethodName, answer: &pb.LeaseLeasesResponse{},
			request: &pb.LeaseLeasesRequest{},
		}
	default:
		if p.watching {
			return step{method: "watch", watch: p.watchRequest()}
		}
		return p.step()
	}
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
		// ties have no order in etcd: keys and revisions of their last change, but for transactions, have none
		r.SortTarget = pb.RangeRequest_KEY
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
