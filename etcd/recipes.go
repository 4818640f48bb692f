package etcd

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"northstar/state"
)

// recipes implements etcd's Lock and Election services, by the keys that Mutex and Election of clientv3 use: clients of
// the services and of that library exclude each other. The keys of a name form a queue, in order of their creation; the
// first one is the holder. Each belongs to a lease.
type recipes struct {
	s       *Server
	waiting atomic.Int64 // calls that wait for changes
}

// The errors of clientv3's package concurrency, which etcd's services return.
var (
	errSessionExpired = status.Error(codes.Unknown, "mutex: session is expired")
	errNotLeader      = status.Error(codes.Unknown, "election: not leader")
	errNoElected      = status.Error(codes.Unknown, "election: no leader")
	errNoLeaderKey    = status.Error(codes.Unknown, `"leader" field must be provided`)
)

// refusalOfLibrary returns the error of a request that was refused as etcd's services do. They call clientv3, whose
// errors have no code.
func refusalOfLibrary(err error) error {
	st := status.Convert(statusOf(err))
	switch st.Code() {
	case codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return status.Error(codes.Unknown, st.Message())
	}
	return err
}

const (
	recipeTTL    = 60              // seconds of the lease that a call without one gets
	leaveTimeout = 5 * time.Second // to leave a queue when a call is given up
)

// entry is the key of a caller in the queue of a name.
type entry struct {
	prefix, key string
	lease       int64
	rev         uint64 // create revision
	joined      uint64 // revision of the header when it was created or found
}

// answer returns an empty message of the file of another one.
func answer(to fields, name protoreflect.Name) fields {
	return fields{dynamicpb.NewMessage(to.Descriptor().ParentFile().Messages().ByName(name))}
}

// lock waits until the lease holds the lock.
func (r *recipes) lock(ctx context.Context, in fields) (fields, error) {
	e, err := r.join(ctx, in.bytes("name"), in.int("lease"), nil, false)
	if err != nil {
		return fields{}, err
	}
	v, err := r.awaitTurn(ctx, e, errSessionExpired)
	if err != nil {
		return fields{}, err
	}
	return answer(in, "LockResponse").set("header", r.s.header(v)).set("key", []byte(e.key)), nil
}

// unlock deletes a key that lock has returned.
func (r *recipes) unlock(ctx context.Context, in fields) (fields, error) {
	if len(in.bytes("key")) == 0 {
		return fields{}, rpctypes.ErrGRPCEmptyKey
	}
	remove := state.Op{Delete: &state.TxnDelete{Key: string(in.bytes("key"))}}
	header, _, err := r.write(ctx, &state.Txn{Success: []state.Op{remove}})
	if err != nil {
		return fields{}, err
	}
	return answer(in, "UnlockResponse").set("header", header), nil
}

// campaign waits until the lease leads the election.
func (r *recipes) campaign(ctx context.Context, in fields) (fields, error) {
	e, err := r.join(ctx, in.bytes("name"), in.int("lease"), in.bytes("value"), true)
	if err != nil {
		return fields{}, err
	}
	in.clear("value") // the state has it: thousands of calls may wait
	if _, err := r.awaitTurn(ctx, e, rpctypes.ErrGRPCLeaseNotFound); err != nil {
		return fields{}, err
	}
	leader := answer(in, "LeaderKey").set("name", in.bytes("name")).set("key", []byte(e.key)).set("rev", int64(e.rev)).
		set("lease", e.lease)
	return answer(in, "CampaignResponse").set("header", r.s.headerAt(e.joined)).set("leader", leader), nil
}

// proclaim changes the value of a leader.
func (r *recipes) proclaim(ctx context.Context, in fields) (fields, error) {
	leader, ok := in.message("leader")
	if !ok {
		return fields{}, errNoLeaderKey
	}
	lease, err := r.leaseOr(ctx, leader.int("lease"))
	if err != nil {
		return fields{}, err
	}
	key := string(leader.bytes("key"))
	put := state.Op{Put: &state.TxnPut{Key: key, Value: in.bytes("value"), Lease: lease}}
	header, out, err := r.write(ctx, ifCreatedAt(key, leader.int("rev"), put))
	if err == nil && !out.Succeeded {
		err = errNotLeader
	}
	if err != nil {
		return fields{}, err
	}
	return answer(in, "ProclaimResponse").set("header", header), nil
}

// resign ends the leadership of a key. One that does not lead any more is no error.
func (r *recipes) resign(ctx context.Context, in fields) (fields, error) {
	leader, ok := in.message("leader")
	if !ok {
		return fields{}, errNoLeaderKey
	}
	key := string(leader.bytes("key"))
	header, _, err := r.write(ctx, ifCreatedAt(key, leader.int("rev"), state.Op{Delete: &state.TxnDelete{Key: key}}))
	if err != nil {
		return fields{}, err
	}
	return answer(in, "ResignResponse").set("header", header), nil
}

// leader returns the key of the present leader.
func (r *recipes) leader(ctx context.Context, in fields) (fields, error) {
	v, err := r.s.readView(ctx, false)
	if err != nil {
		return fields{}, err
	}
	first, err := firstOf(ctx, v, queueOf(in.bytes("name")), roomForAnswer(ctx))
	if err == nil && first == nil {
		err = errNoElected
	}
	if err != nil {
		return fields{}, err
	}
	return leaderResponse(in, r.s.header(v), first), nil
}

func leaderResponse(to fields, header *pb.ResponseHeader, it *state.Item) fields {
	return answer(to, "LeaderResponse").set("header", header).set("kv", keyValue(it))
}

// observe sends each leader, and each value that it proclaims. While its client does not read, it keeps neither.
func (r *recipes) observe(ctx context.Context, in fields, send func(m any) error) error {
	if len(in.bytes("name")) > maxWatchKey {
		return rpctypes.ErrGRPCRequestTooLarge // the stream keeps it
	}
	ctx, stop := r.s.untilStopped(ctx)
	defer stop()
	prefix := queueOf(in.bytes("name"))
	show := func(header *pb.ResponseHeader, it *state.Item) error {
		m, err := r.s.countedMessage(ctx, leaderResponse(in, header, it).Message, sizeOfItem(it), awaitBytes)
		if err != nil {
			return err
		}
		return send(m)
	}
	for {
		if err := linkOf(ctx).awaitSent(ctx); err != nil {
			return err
		}
		v, err := r.s.readView(ctx, false)
		if err != nil {
			return err
		}
		after := v.Revision() // below, the view would be kept
		first, err := firstOf(ctx, v, prefix, nil)
		if err != nil {
			return err
		}
		key, end, known := prefix, prefixEnd(prefix), first != nil
		if known {
			key, end = first.Key, ""
			if err := show(r.s.header(v), first); err != nil {
				return err
			}
		}
		err = r.follow(ctx, key, end, after, func(c *state.Change) (more bool, err error) {
			if c.Deleted || !known { // not first, whose value the state may have replaced
				return false, nil
			}
			return true, show(r.s.headerAt(c.Revision), c.Item)
		})
		if err != nil {
			return err
		}
	}
}

func queueOf(name []byte) string { return string(name) + "/" }

// prefixEnd returns the range end of a prefix that ends in a slash.
func prefixEnd(prefix string) string { return prefix[:len(prefix)-1] + string('/'+1) }

// ifCreatedAt returns a transaction that executes an operation if the key still is the one created at a revision.
func ifCreatedAt(key string, rev int64, op state.Op) *state.Txn {
	return &state.Txn{
		Compare: []state.Compare{{Key: key, Target: state.CompareCreateRevision, Number: rev}}, Success: []state.Op{op},
	}
}

func (r *recipes) write(ctx context.Context, t *state.Txn) (*pb.ResponseHeader, *state.TxnResult, error) {
	leave, err := r.s.awaitPlace(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	result, err := callOf(ctx).Propose(ctx, state.Command{Kind: state.KindTxn, Txn: t})
	if err != nil {
		return nil, nil, err
	}
	return r.s.headerAt(result.Revision), result.Txn, nil
}

// leaseOr returns the lease of a call, a new one if that is 0: no key of a queue may outlast its client for ever.
func (r *recipes) leaseOr(ctx context.Context, lease int64) (int64, error) {
	if lease != 0 {
		return lease, nil
	}
	granted, err := (&leaseService{s: r.s}).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: recipeTTL})
	return granted.GetID(), err
}

// join adds the key of a lease to the queue of a name, if it is not there. Otherwise it sets its value if replace is
// true.
func (r *recipes) join(ctx context.Context, name []byte, lease int64, value []byte, replace bool) (entry, error) {
	lease, err := r.leaseOr(ctx, lease)
	if err != nil {
		return entry{}, err
	}
	e := entry{prefix: queueOf(name), lease: lease}
	e.key = fmt.Sprintf("%s%x", e.prefix, lease)
	put := state.Op{Put: &state.TxnPut{Key: e.key, Value: value, Lease: lease}}
	t := ifCreatedAt(e.key, 0, put)
	t.Failure = []state.Op{{Range: &state.RangeQuery{Key: e.key}}}
	header, out, err := r.write(ctx, t)
	if err != nil {
		return e, err
	}
	e.rev, e.joined = uint64(header.Revision), uint64(header.Revision)
	if out.Succeeded {
		return e, nil
	}
	it := out.Responses[0].Range.Items[0]
	e.rev = it.CreateRevision
	if replace && !bytes.Equal(value, it.Value) {
		_, out, err = r.write(ctx, ifCreatedAt(e.key, int64(e.rev), put))
		if err == nil && !out.Succeeded {
			err = errNotLeader
		}
	}
	return e, err
}

// awaitTurn returns once the entry is the first of its queue, with a view that shows it. lost is the error if its key
// is gone. After an error the caller is out of the queue.
func (r *recipes) awaitTurn(ctx context.Context, e entry, lost error) (_ *state.View, err error) {
	call := callOf(ctx)
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		leave := ifCreatedAt(e.key, int64(e.rev), state.Op{Delete: &state.TxnDelete{Key: e.key}})
		_, _ = call.Propose(ctx, state.Command{Kind: state.KindTxn, Txn: leave}) // otherwise its lease ends it
	}()
	ctx, stop := r.s.untilStopped(ctx)
	defer stop()
	for {
		v, err := r.s.readView(ctx, false) // not the result: with a defer, results are kept
		if err != nil {
			return nil, err
		}
		own, err := v.Range(ctx, &state.RangeQuery{Key: e.key}, nil)
		if err != nil {
			return nil, err
		}
		if len(own.Items) == 0 || own.Items[0].CreateRevision != e.rev {
			return nil, lost
		}
		before, err := v.Range(ctx, &state.RangeQuery{
			Key: e.prefix, End: prefixEnd(e.prefix), MaxCreateRevision: int64(e.rev - 1),
			Target: state.SortByCreateRevision, Order: state.SortDescend, Limit: 1, KeysOnly: true,
		}, nil)
		if err != nil {
			return nil, err
		}
		if len(before.Items) == 0 || e.rev <= 1 {
			return v, nil
		}
		err = r.follow(ctx, before.Items[0].Key, "", v.Revision(), func(c *state.Change) (bool, error) {
			return !c.Deleted, nil
		})
		if err != nil {
			return nil, err
		}
	}
}

// follow calls on for each change of a range after a revision, until that wants no more. It returns nil then, and also
// when changes are no longer kept: the caller looks at the present state again. While the client does not read, follow
// keeps no change.
func (r *recipes) follow(
	ctx context.Context, key, end string, after uint64, on func(*state.Change) (more bool, err error),
) error {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	cursor, err := r.s.deps.Node.Feed().RangeCursor(key, end, int64(after+1))
	if err != nil {
		return nil
	}
	for {
		if err := linkOf(ctx).awaitSent(ctx); err != nil {
			return err
		}
		changes, err := cursor.Next(ctx, 1)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return nil
		}
		for i := range changes {
			if more, err := on(&changes[i]); err != nil || !more {
				return err
			}
		}
	}
}

// firstOf returns the first key of a queue, nil if it is empty. room may be nil.
func firstOf(ctx context.Context, v *state.View, prefix string, room state.Room) (*state.Item, error) {
	out, err := v.Range(ctx, &state.RangeQuery{
		Key: prefix, End: prefixEnd(prefix), Target: state.SortByCreateRevision, Order: state.SortAscend, Limit: 1,
	}, room)
	if err != nil || len(out.Items) == 0 {
		return nil, err
	}
	return out.Items[0], nil
}
