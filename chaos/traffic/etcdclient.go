package traffic

import (
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/chaos/check"
)

// etcdSet is a set of keys that transactions only write together, with one value: the beginning of their names.
type etcdSet string

func (s etcdSet) keys() []string { return []string{string(s) + "/a", string(s) + "/b"} }

// all is the range of the set.
func (s etcdSet) all() *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(s + "/"), RangeEnd: []byte(s + "0")} // 0 follows the slash
}

// etcdClient reads and writes sets of keys, one operation at a time.
type etcdClient struct {
	etcdUser
	ops    int
	seen   map[string]seenValue // by set: what it last read or wrote
	newest int64                // highest revision in a header
}

func (c *etcdClient) run() {
	for c.Pause(c.cfg.ThinkTime.Draw(c.rand)) {
		c.ops++
		set := etcdSet(c.cluster.Key(c.rand.IntN(c.cfg.Keys)))
		switch x := c.rand.Float64(); {
		case x < 0.3:
			c.read(set)
		case x < 0.4:
			c.readAt(set)
		case x < 0.6:
			c.write(set, check.Put)
		case x < 0.85:
			c.write(set, check.CAS)
		case x < 0.92:
			c.write(set, check.Create)
		default:
			c.write(set, check.Delete)
		}
	}
}

// read reads a set: by a range, a serializable range, or a transaction of ranges.
func (c *etcdClient) read(set etcdSet) {
	at, begin, began := c.place(), c.Revisions.Begin(), c.now()
	r := set.all()
	r.Serializable = c.rand.Float64() < staleReads
	out := &pb.RangeResponse{}
	var err error
	if c.rand.IntN(3) == 0 {
		t, got := &pb.TxnRequest{}, &pb.TxnResponse{}
		for _, k := range set.keys() {
			t.Success = append(t.Success, rangeOp(&pb.RangeRequest{Key: []byte(k), Serializable: r.Serializable}))
		}
		err = c.ask(at, pathEtcdTxn, t, got)
		out.Header = got.Header
		for _, o := range got.Responses {
			out.Kvs = append(out.Kvs, o.GetResponseRange().GetKvs()...)
		}
	} else {
		err = c.ask(at, pathEtcdRange, r, out)
	}
	if err != nil {
		return
	}
	c.etcd.saw(c.by("range", at), out.Header.Revision, set.keys(), out.Kvs)
	if !r.Serializable {
		c.fresh(set, at, begin, began, out)
	}
}

// fresh records a linearizable read of a set.
func (c *etcdClient) fresh(set etcdSet, at int, begin uint64, began time.Duration, out *pb.RangeResponse) {
	c.newest = max(c.newest, out.Header.Revision)
	c.Revisions.Read(c.by("range", at), begin, uint64(out.Header.Revision))
	c.remember(set, out.Kvs)
	op := check.Op{Client: c.id, Begin: began, End: c.now(), Kind: check.Get, Outcome: check.Done}
	op.Node, op.Value = c.cluster.Nodes()[at].ID, c.seen[string(set)].value
	c.record(set, op)
}

// remember keeps what a set has now.
func (c *etcdClient) remember(set etcdSet, items []*mvccpb.KeyValue) {
	var now seenValue
	if len(items) > 0 {
		now = seenValue{string(items[0].Value), uint64(items[0].ModRevision)}
	}
	for _, kv := range items {
		if len(items) != len(set.keys()) || string(kv.Value) != now.value || uint64(kv.ModRevision) != now.revision {
			c.violated(check.AtomicTransactions, "etcd client %d saw a part of a transaction: %v", c.id, items)
		}
	}
	c.seen[string(set)] = now
}

// record adds one operation for each key of a set.
func (c *etcdClient) record(set etcdSet, op check.Op) {
	for _, k := range set.keys() {
		op.Key = k
		c.History.Add(op)
	}
}

// readAt reads a set at an old revision.
func (c *etcdClient) readAt(set etcdSet) {
	if c.newest == 0 {
		return
	}
	at, r, out := c.place(), set.all(), &pb.RangeResponse{}
	compacted, _ := c.etcd.compactions()
	r.Revision = max(1, c.newest-int64(c.rand.IntN(200)))
	err := c.ask(at, pathEtcdRange, r, out)
	_, asked := c.etcd.compactions()
	switch e := asEtcdError(err); {
	case err == nil && uint64(r.Revision) < compacted:
		c.violated(check.CompactedIsRefused, "%s revision %d was read after a compaction to %d", c.by("range", at),
			r.Revision, compacted)
	case err == nil:
		c.etcd.saw(c.by("old range", at), r.Revision, set.keys(), out.Kvs)
	case e.is(rpctypes.ErrGRPCCompacted) && uint64(r.Revision) >= asked, e.is(rpctypes.ErrGRPCFutureRev):
		c.violated(check.CompactedIsRefused, "%s revision %d: %v; the newest is at least %d, compacted %d",
			c.by("range", at), r.Revision, err, c.newest, asked)
	}
}

func rangeOp(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func putOp(key, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
		Key: []byte(key), Value: []byte(value), Lease: lease, PrevKv: true,
	}}}
}

func compareMod(key string, revision uint64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: int64(revision)},
	}
}

func compareCreate(key string, revision uint64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Target: pb.Compare_CREATE,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: int64(revision)},
	}
}

// txn returns the transaction of a write, which reads the set if its condition does not hold. Half of those with a
// condition have a nested one, whose comparison is of the other key.
func (c *etcdClient) txn(set etcdSet, op check.Op, last seenValue) (t *pb.TxnRequest, nested bool) {
	a, b := set.keys()[0], set.keys()[1]
	t = &pb.TxnRequest{Success: []*pb.RequestOp{putOp(a, op.Value, 0), putOp(b, op.Value, 0)}}
	if op.Kind == check.Delete {
		d := &pb.DeleteRangeRequest{Key: set.all().Key, RangeEnd: set.all().RangeEnd, PrevKv: true}
		t.Success = []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}}}
	}
	switch {
	case op.Kind == check.Create:
		t.Compare = append(t.Compare, compareCreate(b, 0))
	case op.Expect != "":
		t.Compare = append(t.Compare, compareMod(b, last.revision))
	default:
		return t, false
	}
	read := []*pb.RequestOp{rangeOp(set.all())}
	t.Failure = read
	if op.Expect == "" || c.rand.IntN(2) == 0 {
		return t, false
	}
	value := &pb.Compare{
		Key: []byte(a), Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte(last.value)},
	}
	inner := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
	return &pb.TxnRequest{Compare: []*pb.Compare{value}, Success: []*pb.RequestOp{inner}, Failure: read}, true
}

// write writes or deletes a set, in one transaction.
func (c *etcdClient) write(set etcdSet, kind check.Kind) {
	last := c.seen[string(set)]
	op := check.Op{Client: c.id, Kind: kind, Begin: c.now()}
	if kind == check.CAS && last.value == "" {
		op.Kind = check.Put
	}
	if op.Kind == check.CAS || op.Kind == check.Delete && c.rand.IntN(2) == 0 {
		op.Expect = last.value
	}
	if op.Kind != check.Delete {
		op.Value = fmt.Sprintf("e%d-%d", c.id, c.ops)
	}
	t, nested := c.txn(set, op, last)
	at, begin, began, out := c.place(), c.Revisions.Begin(), time.Now(), &pb.TxnResponse{}
	err := c.ask(at, pathEtcdTxn, t, out)
	op.Node, op.End = c.cluster.Nodes()[at].ID, c.now()
	if err != nil {
		if op.Note = err.Error(); mayHaveHappened(err) {
			op.Outcome = check.Unknown
			c.record(set, op)
		}
		return
	}
	succeeded, responses := out.Succeeded, out.Responses
	if nested && succeeded {
		succeeded, responses = responses[0].GetResponseTxn().Succeeded, responses[0].GetResponseTxn().Responses
	}
	revision := uint64(out.Header.Revision)
	c.newest = max(c.newest, out.Header.Revision)
	c.note(set, at, &op, succeeded, out.Header.Revision, responses)
	if op.Outcome == check.Refused {
		c.Revisions.Read(c.by("refused txn", at), begin, revision)
	} else {
		op.Revision = revision
		c.Revisions.Wrote(c.by("txn", at), begin, revision)
		c.acknowledged(began)
	}
	c.record(set, op)
}

// note takes from the answer to a write what it shows of the set, and the outcome.
func (c *etcdClient) note(
	set etcdSet, at int, op *check.Op, succeeded bool, revision int64, responses []*pb.ResponseOp,
) {
	op.Outcome = check.Done
	if !succeeded {
		op.Outcome = check.Refused
		items := responses[0].GetResponseRange().Kvs
		c.etcd.saw(c.by("refused txn", at), revision, set.keys(), items)
		c.remember(set, items)
		return
	}
	var before []*mvccpb.KeyValue
	for _, r := range responses {
		if prev := r.GetResponsePut().GetPrevKv(); prev != nil {
			before = append(before, prev)
		}
		before = append(before, r.GetResponseDeleteRange().GetPrevKvs()...)
	}
	c.seen[string(set)] = seenValue{op.Value, uint64(revision)}
	if op.Kind != check.Delete {
		c.etcd.saw(c.by("txn", at), revision-1, set.keys(), before)
		return
	}
	if len(before) == 0 { // there was nothing to delete
		op.Outcome = check.Refused
		c.etcd.saw(c.by("delete", at), revision, set.keys(), nil)
		return
	}
	c.etcd.saw(c.by("delete", at), revision-1, set.keys(), before)
}
