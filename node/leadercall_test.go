package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/leadercall"
	"northstar/state"
)

// upgraded waits until every node reads the records that say that every member reads the command version of this build.
func upgraded(t *testing.T, nodes []*testNode) {
	t.Helper()
	eventually(t, "the records say what members read", func() bool {
		return !slices.ContainsFunc(nodes, func(n *testNode) bool {
			return n.Consensus().ReadsVersion() < state.CommandVersion
		})
	})
}

func others(nodes []*testNode, than *testNode) []*testNode {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *testNode) bool { return n == than })
}

func putWithLease(key string, lease int64) state.Command {
	return state.Command{Kind: state.KindTxn, Txn: &state.Txn{
		Success: []state.Op{{Put: &state.TxnPut{Key: key, Value: []byte("v"), Lease: lease}}},
	}}
}

// Every node proposes transactions and leases, reads what it has written, and renews leases at the leader.
func TestCallsToTheLeader(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	startAll(t, nodes)
	upgraded(t, nodes)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for i, n := range nodes {
		calls, lease, key := n.api.Calls(), int64(i+1), fmt.Sprint("key", i)
		granted, err := calls.Propose(ctx, state.Command{
			Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: lease, TTL: 60},
		})
		if err != nil || granted.Err != nil || granted.Session.TTL != time.Minute {
			t.Fatalf("%s: %+v, %v", n.cfg.ID, granted, err)
		}
		written, err := calls.Propose(ctx, putWithLease(key, lease))
		if err != nil || written.Err != nil || written.Txn.Responses[0].Put.Revision != written.Revision {
			t.Fatalf("%s: %+v, %v", n.cfg.ID, written, err)
		}
		if err := calls.ReadIndex(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if item, ok := n.Consensus().View().Get(key); !ok || item.Lease() != lease {
			t.Errorf("%s: its own write is missing: %+v", n.cfg.ID, item)
		}
		session := granted.Session.ID
		if left, err := calls.RenewSessions(ctx, []string{session}); err != nil || left[session] != leadercall.Renewed {
			t.Errorf("%s: %v, %v", n.cfg.ID, left, err)
		}
		left, lives, err := calls.Remaining(ctx, granted.Session.ID)
		if err != nil || !lives || left > time.Minute || left < time.Minute-soon {
			t.Errorf("%s: %v left, %v, %v", n.cfg.ID, left, lives, err)
		}
		refused, err := calls.Propose(ctx, putWithLease(key, 99))
		if err != nil || !errors.Is(refused.Err, state.LeaseNotFound) {
			t.Errorf("%s: %+v, %v", n.cfg.ID, refused, err)
		}
		revoke := state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: lease}}
		if r, err := calls.Propose(ctx, revoke); err != nil || r.Err != nil {
			t.Fatal(r.Err, err)
		}
		if left, err := calls.RenewSessions(ctx, []string{session}); err != nil || left[session] != 0 {
			t.Errorf("%s: a lease that has ended: %v, %v", n.cfg.ID, left, err)
		}
		if _, lives, err = calls.Remaining(ctx, granted.Session.ID); err != nil || lives {
			t.Errorf("%s: a lease that has ended: %v, %v", n.cfg.ID, lives, err)
		}
	}
}

// A follower answers GET of keys itself after a read index, and with the newest write.
func TestFollowerReadsKeys(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	leader := startAll(t, nodes)
	upgraded(t, nodes)
	follower := others(nodes, leader)[0]
	eventually(t, "the follower's API knows the leader", func() bool {
		_, text, err := request(plain, "GET", "http://"+follower.httpAddr+apiv1.PathLeader, "")
		return err == nil && text != ""
	})
	for i := range 20 {
		value := fmt.Sprint(i)
		want(t, plain, "PUT", "http://"+leader.httpAddr+"/v1/kv/a", value, 200, "revision")
		for _, path := range []string{"/v1/kv/a", "/v1/kv?prefix=a"} {
			resp, err := plain.Get("http://" + follower.httpAddr + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if by := resp.Header.Get(apiv1.HeaderLeader); resp.StatusCode != http.StatusOK || by != "" {
				t.Errorf("GET %s: %d, answered by %q", path, resp.StatusCode, by)
			}
		}
		want(t, plain, "GET", "http://"+follower.httpAddr+"/v1/kv/a", "", 200, value)
	}
}

// The death of the leader is a delay for what other nodes propose, and each command is applied once.
func TestProposalsOutliveTheLeader(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(_ int, c *Config) {
		c.Failover.Hold = time.Minute // on a busy machine, an election may take longer than usual
	})
	old := startAll(t, nodes)
	upgraded(t, nodes)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var stop atomic.Bool
	var count atomic.Int64
	var writers sync.WaitGroup
	survivors := others(nodes, old)
	for _, n := range survivors {
		for w := range 4 {
			writers.Go(func() {
				key := fmt.Sprint(n.cfg.ID, w)
				for i := int64(1); !stop.Load(); i++ {
					r, err := n.api.Calls().Propose(ctx, putWithLease(key, 0))
					if err != nil || r.Err != nil {
						t.Errorf("%s: %v, %v", key, err, r.Err)
						return
					}
					count.Add(1)
					item, _ := n.Consensus().View().Get(key)
					if int64(item.Version) > i {
						t.Errorf("%s: version %d after %d writes: one was applied twice", key, item.Version, i)
						return
					}
				}
			})
		}
	}
	written := func(n int64) { eventually(t, "writes", func() bool { return count.Load() >= n || t.Failed() }) }
	written(50)
	old.stop()
	written(count.Load() + 200)
	stop.Store(true)
	writers.Wait()
}
