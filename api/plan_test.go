package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// TestDryRun: a dry run shows the plan and does nothing, on the leader and
// through any other node; the call with its ID runs exactly it.
func TestDryRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		asked := make(chan string, 1)
		leader, follower := pair(t, func(d *Deps) {
			d.Leadership = fakeTransfer(func(_ context.Context, target cluster.NodeID) (cluster.TransferOutcome,
				error,
			) {
				asked <- string(target)
				return cluster.TransferOutcome{NewLeader: target}, nil
			})
		})
		post := func(n *node, body string) reply {
			return n.do("POST", "/admin/transfer", body, "Content-Type", jsonBody)
		}
		var id string
		for _, n := range []*node{leader, follower} {
			r := post(n, `{"dry_run":true}`)
			var p apiv1.Plan
			if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 200 {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			if !p.DryRun || !p.Possible || p.TargetID != "n2" || p.LeaderID != "n1" || p.Term != 2 ||
				p.ExpectedGapMS == nil || *p.ExpectedGapMS != 5 || p.GapSamples != 7 ||
				len(p.Candidates) != 2 || p.Candidates[0] != (apiv1.TargetCandidate{
				ID: "n2", Eligible: true,
				Voter: true, Priority: 100, LagEntries: 3,
			}) || p.Candidates[1].Reason != "it is draining" {
				t.Errorf("%s", r.body)
			}
			if id == "" {
				id = p.PlanID
			} else if id != p.PlanID {
				t.Errorf("%s through %s, %s on the leader", p.PlanID, n.addr, id)
			}
		}
		if r := post(follower, `{"plan_id":"`+id+`"}`); r.status != 200 || <-asked != "n2" {
			t.Errorf("the plan: %+v", r)
		}
		var refused apiv1.Plan
		r := post(follower, `{"dry_run":true,"target_leader_id":"n3"}`)
		if err := json.Unmarshal([]byte(r.body), &refused); err != nil || refused.Possible || refused.Refusal == nil ||
			refused.Refusal.Code != 4003 || refused.Refusal.Status != 409 {
			t.Errorf("dry run of what is refused: %+v", r)
		}
		post(follower, `{"dry_run":true,"target_leader_id":"n7"}`).is(t, 404, cluster.CodeNotFound)
		post(follower, `{"target_leader_id":"n3"}`).is(t, 409, cluster.CodeTransferFailed)
		post(follower, `{"plan_id":"x"}`).is(t, 400, cluster.CodeBadRequest)
		post(follower, `{"plan_id":"`+id+`","target_leader_id":"n1"}`).is(t, 400, cluster.CodeBadRequest)
		stale := strings.Replace(id, "transfer.2.", "transfer.1.", 1)
		post(follower, `{"plan_id":"`+stale+`"}`).is(t, 409, cluster.CodeTermStale)
		select {
		case to := <-asked:
			t.Errorf("leadership went to %s", to)
		default:
		}
	})
}
