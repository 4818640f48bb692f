package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/cluster"
	"northstar/state"
)

// followerCall is a call at a follower. The leader applies writes, and the follower when it asks for the read index.
type followerCall struct {
	fakeCall
	leader *fakeNode
	behind []state.Command // what the follower has not applied yet
	asked  int             // for the read index
	hangs  bool            // the leader does not answer
}

func (c *followerCall) Propose(_ context.Context, cmd state.Command) (state.Result, error) {
	r := c.leader.propose(cmd)[0]
	if r.Err != nil {
		return r, r.Err
	}
	c.behind = append(c.behind, cmd)
	return r, nil
}

func (c *followerCall) ReadIndex(ctx context.Context) error {
	c.asked++
	if c.hangs {
		<-ctx.Done()
		return cluster.Errorf(cluster.CodeNoLeader, "no answer: %w", context.Cause(ctx))
	}
	if len(c.behind) > 0 {
		c.node.propose(c.behind...)
		c.behind = nil
	}
	return nil
}

// withFollower runs a test in virtual time at a follower.
func withFollower(t *testing.T, test func(ctx context.Context, k *kvService, call *followerCall)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		call := &followerCall{fakeCall: fakeCall{t.Context(), n}, leader: newFakeNode(t)}
		test(context.WithValue(t.Context(), callKey{}, Call(call)), &kvService{s: s}, call)
	})
}

// serializableGet returns the value of a key, "" if there is none, and how long the read took.
func serializableGet(ctx context.Context, t *testing.T, k *kvService, key string) (string, time.Duration) {
	t.Helper()
	start, r := time.Now(), &pb.RangeRequest{Key: []byte(key), Serializable: true}
	out, err := k.Range(ctx, r)
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	inTxn, err := k.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestRange{RequestRange: r}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := inTxn.Responses[0].GetResponseRange()
	if len(got.Kvs) != len(out.Kvs) {
		t.Errorf("%d items, %d in a transaction", len(out.Kvs), len(got.Kvs))
	}
	if len(out.Kvs) == 0 {
		return "", took
	}
	return string(out.Kvs[0].Value), took
}

// TestSerializableReadOfOwnWrites: a serializable read at a follower shows each write that was acknowledged through the
// same node. It asks the leader only if one is missing.
func TestSerializableReadOfOwnWrites(t *testing.T) {
	withFollower(t, func(ctx context.Context, k *kvService, call *followerCall) {
		key := []byte("a")
		call.leader.apply(t, put("other", "v")) // through another node
		call.behind = []state.Command{put("other", "v")}
		if got, _ := serializableGet(ctx, t, k, "other"); got != "" || call.asked > 0 {
			t.Errorf("a read without writes: %q, the leader was asked %d times", got, call.asked)
		}
		_, err := k.Put(ctx, &pb.PutRequest{Key: key, Value: []byte("1")})
		if got, _ := serializableGet(ctx, t, k, "a"); got != "1" || err != nil {
			t.Errorf("after a put: %q, %v", got, err)
		}
		_, err = k.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: key, Value: []byte("2")},
		}}}})
		if got, _ := serializableGet(ctx, t, k, "a"); got != "2" || err != nil {
			t.Errorf("after a transaction: %q, %v", got, err)
		}
		_, err = k.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key})
		if got, _ := serializableGet(ctx, t, k, "a"); got != "" || err != nil {
			t.Errorf("after a deletion: %q, %v", got, err)
		}
		lease := &leaseService{s: k.s}
		_, err = lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: 60})
		_, putErr := k.Put(ctx, &pb.PutRequest{Key: key, Value: []byte("3"), Lease: 7})
		_, endErr := lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 7})
		if got, _ := serializableGet(ctx, t, k, "a"); got != "" || errors.Join(err, putErr, endErr) != nil {
			t.Errorf("after the end of its lease: %q, %v", got, errors.Join(err, putErr, endErr))
		}
		if call.asked != 4 {
			t.Errorf("the leader was asked %d times", call.asked)
		}
	})
}

// TestSerializableRead_NoAnswer: without an answer of the leader a serializable read shows what the node has.
func TestSerializableRead_NoAnswer(t *testing.T) {
	withFollower(t, func(ctx context.Context, k *kvService, call *followerCall) {
		if _, err := k.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		limit := k.s.deps.TimeoutMax
		call.hangs = true
		short, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if got, took := serializableGet(short, t, k, "a"); got != "" || took != limit/2 {
			t.Errorf("for a client with little time: %q after %v", got, took)
		}
		if got, took := serializableGet(ctx, t, k, "a"); got != "" || took != limit {
			t.Errorf("no answer: %q after %v", got, took)
		}
		if got, took := serializableGet(ctx, t, k, "a"); got != "" || took != 0 {
			t.Errorf("soon after that: %q after %v", got, took)
		}
		call.hangs = false
		time.Sleep(askAgainAfter)
		if got, took := serializableGet(ctx, t, k, "a"); got != "1" || took != 0 {
			t.Errorf("the leader is there again: %q after %v", got, took)
		}
	})
}

// TestSerializableRead_StateIsReplaced: a revision that the present state never had costs one question.
func TestSerializableRead_StateIsReplaced(t *testing.T) {
	withFollower(t, func(ctx context.Context, k *kvService, call *followerCall) {
		k.s.own.note(1 << 40)
		for range 3 {
			serializableGet(ctx, t, k, "a")
		}
		if call.asked != 1 {
			t.Errorf("the leader was asked %d times", call.asked)
		}
		if _, err := k.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		if got, _ := serializableGet(ctx, t, k, "a"); got != "1" {
			t.Errorf("after the next write: %q", got)
		}
	})
}
