package compat

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// TestLockServices: clients of the Lock and Election services and those of clientv3's recipes exclude each other, on
// NorthStar through two followers as on etcd.
func TestLockServices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Run("etcd", func(t *testing.T) {
		n := &node{etcd: startEtcd(t)}
		testLockServices(ctx, t, n, n)
	})
	t.Run("northstar", func(t *testing.T) {
		nodes := startNorthstar(t, 3)
		testLockServices(ctx, t, nodes[1], nodes[2])
	})
}

func testLockServices(ctx context.Context, t *testing.T, service, library *node) {
	locks, elections := v3lockpb.NewLockClient(dial(t, service.etcd)), v3electionpb.NewElectionClient(dial(t, service.etcd))
	c := client(t, library)
	s := session(t, c, 10)
	grant := func() int64 {
		lease, err := c.Grant(ctx, 60)
		if err != nil {
			t.Fatal(err)
		}
		return int64(lease.ID)
	}
	waits := func(what, prefix string, keys int64) {
		for {
			got, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got.Count == keys {
				return
			}
		}
	}
	mutex := concurrency.NewMutex(s, "lock")
	if err := mutex.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	held := make(chan *v3lockpb.LockResponse, 1)
	go func() {
		got, err := locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("lock"), Lease: grant()})
		if err != nil {
			t.Error(err)
		}
		held <- got
	}()
	waits("the service's client", "lock/", 2)
	if err := mutex.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	got := <-held
	if err := concurrency.NewMutex(s, "lock").TryLock(ctx); err != concurrency.ErrLocked {
		t.Errorf("a lock that the service's client has: %v", err)
	}
	if _, err := locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: got.GetKey()}); err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(s, "lock").TryLock(ctx); err != nil {
		t.Errorf("a lock that is free: %v", err)
	}
	lead, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{
		Name: []byte("election"), Lease: grant(), Value: []byte("service"),
	})
	if err != nil {
		t.Fatal(err)
	}
	testLeaderKey(ctx, t, c, elections)
	election := concurrency.NewElection(s, "election")
	won := make(chan error, 1)
	go func() { won <- election.Campaign(ctx, "library") }()
	waits("the library's client", "election/", 2)
	if now, err := election.Leader(ctx); err != nil || string(now.Kvs[0].Value) != "service" {
		t.Errorf("leader: %v, %v", now, err)
	}
	if _, err := elections.Resign(ctx, &v3electionpb.ResignRequest{Leader: lead.Leader}); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	now, err := elections.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("election")})
	if err != nil || string(now.Kv.Value) != "library" {
		t.Errorf("leader: %v, %v", now, err)
	}
}

// testLeaderKey changes the key of a leader in ways for which the services need no lease and no value.
func testLeaderKey(ctx context.Context, t *testing.T, c *clientv3.Client, elections v3electionpb.ElectionClient) {
	lead, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("short"), Value: []byte("first")})
	if err != nil {
		t.Fatal(err)
	}
	leader := &v3electionpb.LeaderKey{Name: lead.Leader.Name, Key: lead.Leader.Key, Rev: lead.Leader.Rev}
	if _, err := elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{
		Leader: leader, Value: []byte("second"),
	}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(ctx, string(leader.Key))
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "second" {
		t.Fatalf("the leader's key: %v, %v", got, err)
	}
	lease := got.Kvs[0].Lease
	left, err := c.TimeToLive(ctx, clientv3.LeaseID(lease))
	if err != nil || lease == lead.Leader.Lease || left.GrantedTTL != 60 {
		t.Errorf("after a proclamation without a lease: lease %x, %+v, %v", lease, left, err)
	}
	if _, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{
		Name: []byte("short"), Lease: lead.Leader.Lease, Value: nil,
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get(ctx, string(leader.Key)); err != nil || len(got.Kvs) != 1 || len(got.Kvs[0].Value) != 0 {
		t.Errorf("after a campaign of the same lease without a value: %v, %v", got, err)
	}
}
