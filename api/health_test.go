package api

import (
	"context"
	"slices"
	"testing"

	"northstar/api/leadercall"
	"northstar/cluster"
)

// pairWithCalls is pair for nodes that call each other.
func pairWithCalls(t *testing.T, change ...func(*Deps)) (leader, follower *node) {
	t.Helper()
	leader, follower = pair(t, append(slices.Clone(change), func(d *Deps) {
		d.Call = func(ctx context.Context, _ cluster.NodeID, request []byte) ([]byte, error) {
			return leader.Calls().Handle(ctx, "n2", request), nil
		}
	})...)
	follower.fake.addRecord(cluster.Member{
		ID: "n1", HTTPAddress: leader.addr, RaftAddress: "h1:7700", Lifecycle: cluster.Active, Reads: leadercall.Version,
	})
	return leader, follower
}

// A load balancer has no token. What it asks of a follower needs none, and is no failed authentication at the leader.
func TestFollowerHealthNeedsNoIdentity(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, _ := tokenFile()
		leader, follower := pairWithCalls(t, withTokens(data), func(d *Deps) { d.PrivateViews = true })
		for leader.fake.Applied() < follower.fake.Applied()+7 {
			leader.fake.put("k", "v")
		}
		for _, headers := range [][]string{nil, {"Authorization", "Bearer invented"}} {
			if r := follower.do("GET", "/health/follower?max_lag=7", "", headers...); r.status != 200 {
				t.Errorf("%v: %+v", headers, r)
			}
			follower.do("GET", "/health/follower?max_lag=6", "", headers...).is(t, 503, cluster.CodeBusy)
		}
		for _, n := range []*node{leader, follower} {
			families, err := n.deps.Metrics.Registry().Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == "northstar_auth_failures_total" && f.GetMetric()[0].GetCounter().GetValue() != 0 {
					t.Errorf("%s counts failures: %v", n.deps.Node.ID, f)
				}
			}
		}
	})
}
