package api

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

// Every call that changes the membership can be a dry run, which changes nothing,
// and runs exactly its plan, also through another node.
func TestMemberPlans(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, tc := range []struct{ method, path, fields, action, did string }{
			{"POST", "/admin/members", `"id":"n4","raft_address":"h4:7700","http_address":"h4:7701",`, "member_add", `add {"ID":"n4"`},
			{"PATCH", "/admin/members/n2", `"priority":3,`, "member_set", `patch n2 {"Priority":3`},
			{"DELETE", "/admin/members/n2", ``, "member_remove", "remove n2"},
			{"POST", "/admin/nodes/n2/drain", ``, "drain", `"Drain":true`},
			{"POST", "/admin/nodes/n2/undrain", ``, "undrain", `"Drain":false`},
		} {
			long := fmt.Sprintf(`{%s"reason":%q}`, tc.fields, strings.Repeat("x", maxReason+1))
			refused := follower.do(tc.method, tc.path, long, "Content-Type", jsonBody).is(t, 400, cluster.CodeBadRequest)
			if !strings.HasPrefix(refused.Detail, "reason:") {
				t.Errorf("%s: %s", tc.action, refused.Detail)
			}
			r := follower.do(tc.method, tc.path, "{"+tc.fields+`"dry_run":true,"reason":"why"}`, "Content-Type", jsonBody)
			var plan apiv1.Plan
			if err := json.Unmarshal([]byte(r.body), &plan); err != nil || r.status != 200 || !plan.DryRun ||
				!plan.Possible || plan.Action != tc.action {
				t.Fatalf("%s %s: %d %s", tc.method, tc.path, r.status, r.body)
			}
			if got := leader.fake.calls(); len(got) != 0 {
				t.Fatalf("a dry run did %v", got)
			}
			if r = follower.do(tc.method, tc.path, fmt.Sprintf(`{%s"plan_id":%q}`, tc.fields, plan.PlanID), "Content-Type", jsonBody); r.status != 200 {
				t.Fatalf("by plan: %d %s", r.status, r.body)
			}
			if got := strings.Join(leader.fake.calls(), ";"); !strings.Contains(got, tc.did) ||
				!strings.HasSuffix(got, "as planned for m") {
				t.Errorf("%s: did %q", tc.action, got)
			}
			leader.fake.set(func() { leader.fake.members = nil })
			other := strings.Replace(plan.PlanID, ".2.", ".1.", 1)
			follower.do(tc.method, tc.path, fmt.Sprintf(`{%s"plan_id":%q}`, tc.fields, other), "Content-Type", jsonBody).is(t, 409, cluster.CodeTermStale)
		}
		// What would be refused is a plan, and an error only when it is run.
		r := leader.do("DELETE", "/admin/members/n3", `{"dry_run":true}`, "Content-Type", jsonBody)
		if r.status != 200 || !strings.Contains(r.body, `"possible":false`) || !strings.Contains(r.body, `"ERR_QUORUM_AT_RISK"`) {
			t.Errorf("refused: %d %s", r.status, r.body)
		}
		if got := leader.fake.calls(); len(got) != 0 {
			t.Errorf("it did %v", got)
		}
	})
}

// Only a change of the leader's record needs no node that could take over.
func TestChangesRecordOnly(t *testing.T) {
	t.Parallel()
	yes, no, none, voter, addr := true, false, 0, cluster.NonVoter, "h1:1"
	for want, patches := range map[bool][]cluster.MemberPatch{
		true:  {{Drain: &yes}, {Eligible: &no}, {Priority: &none}},
		false: {{Suffrage: &voter, Eligible: &no}, {RaftAddress: &addr}, {Readmit: true}},
	} {
		for _, p := range patches {
			if got := changesRecordOnly(cluster.MemberChange{ID: "n1", Patch: &p}); got != want {
				t.Errorf("%+v: %v", p, got)
			}
		}
	}
	if changesRecordOnly(cluster.MemberChange{ID: "n1"}) {
		t.Error("a removal")
	}
}

// noSuccessor is a leader whose leadership no other voter can take over.
type noSuccessor struct{ fakeTransfer }

func (f noSuccessor) Plan(ctx context.Context, o cluster.LeadershipRequest) (cluster.Plan, error) {
	p, err := f.fakeTransfer.Plan(ctx, o)
	p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "no eligible target")
	return p, err
}

// A dry run of a change that has the leader hand over first says that it is refused while no other voter may lead.
func TestMemberPlan_NoSuccessor(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) {
			d.Leadership = noSuccessor{fakeTransfer(noTransfer)}
		})
		for patch, possible := range map[string]bool{
			`"eligible":false`: true, `"readmit":true`: false, `"suffrage":"nonvoter"`: false,
		} {
			r := n.do("PATCH", "/admin/members/n1", "{"+patch+`,"dry_run":true}`, "Content-Type", jsonBody)
			var plan apiv1.Plan
			err := json.Unmarshal([]byte(r.body), &plan)
			refused := strings.Contains(r.body, `"ERR_QUORUM_AT_RISK"`)
			if err != nil || r.status != 200 || plan.Possible != possible || refused == possible {
				t.Errorf("%s: %d %s", patch, r.status, r.body)
			}
		}
	})
}

// A change of the leader itself tells who could take over, and who feels it.
func TestMemberPlanOfTheLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		session := f.apply(state.Command{
			Kind: state.KindSessionCreate, Now: 1,
			SessionCreate: &state.SessionCreate{Nonce: "abcdefghijklmnop", Name: "w", TTL: 10e9},
		}).Session
		f.apply(state.Command{Kind: state.KindRoleCampaign, Now: 1, RoleCampaign: &state.RoleCampaign{
			Role:    "r",
			Session: session.ID,
		}})
		r := n.do("DELETE", "/admin/members/n1", `{"dry_run":true}`, "Content-Type", jsonBody)
		var plan apiv1.Plan
		if err := json.Unmarshal([]byte(r.body), &plan); err != nil {
			t.Fatal(err)
		}
		if len(plan.Candidates) != 2 || plan.GapSamples != 7 ||
			plan.Affected != (apiv1.Affected{Roles: 1, Sessions: 1}) {
			t.Errorf("plan %+v", plan)
		}
		r = n.do("POST", "/admin/transfer", `{"dry_run":true}`, "Content-Type", jsonBody)
		if !strings.Contains(r.body, `"affected":{"roles":1,"sessions":1}`) {
			t.Errorf("of a transfer: %s", r.body)
		}
		// The leader transfers leadership, and another term begins: the plan ends there.
		f.set(func() { f.fail = problem.NoLeader("node n1 had to transfer leadership first") })
		n.do("DELETE", "/admin/members/n1", fmt.Sprintf(`{"plan_id":%q}`, plan.PlanID), "Content-Type", jsonBody).is(t, 409, cluster.CodeTermStale)
	})
}
