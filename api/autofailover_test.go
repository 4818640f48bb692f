package api

import (
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

func TestAutoFailover(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		if r := leader.do("GET", "/admin/auto-failover", ""); r.status != 200 || !strings.Contains(r.body, `"enabled":true`) {
			t.Fatalf("%+v", r)
		}
		r := follower.do("POST", "/admin/auto-failover", `{"enabled":false,"ttl_ms":60000,"reason":"upgrade"}`, "Content-Type", jsonBody)
		if r.status != 200 || !strings.Contains(r.body, `"enabled":false`) || !strings.Contains(r.body, `"paused_until"`) || !strings.Contains(r.body, `"operator":"loopback"`) {
			t.Fatalf("%+v", r)
		}
		if leader.fake.awaitApplied != 1 {
			t.Errorf("the setting was spread %d times before the answer", leader.fake.awaitApplied)
		}
		set := leader.fake.state.View().Settings()
		if left := time.Until(time.Unix(0, set.PausedUntil)); set.AutoFailover || set.Reason != "upgrade" ||
			left < 50*time.Second || left > time.Minute {
			t.Errorf("set: %+v", set)
		}
		for path, want := range map[string]string{"/status": `"auto_failover":false`, "/v1/cluster": `"auto_failover":false`, "/readyz?verbose": "auto_failover"} {
			if r := leader.do("GET", path, ""); !strings.Contains(r.body, want) {
				t.Errorf("GET %s does not show the pause: %s", path, r.body)
			}
		}
		if r := leader.do("POST", "/admin/auto-failover", `{"enabled":true}`, "Content-Type", jsonBody); r.status != 200 || !strings.Contains(r.body, `"enabled":true`) {
			t.Errorf("%+v", r)
		}
	})
}

func TestAutoFailoverDryRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		post := func(body string) reply {
			return follower.do("POST", "/admin/auto-failover", body, "Content-Type", jsonBody)
		}
		plan := into[apiv1.Plan](t, post(`{"enabled":false,"ttl_ms":60000,"dry_run":true}`))
		if !plan.Possible || plan.Action != "auto_failover" || !strings.Contains(plan.Summary, "1m0s") ||
			len(plan.Warnings) != 1 || !leader.fake.View().AutoFailover(time.Now()) {
			t.Fatalf("%+v", plan)
		}
		other := into[apiv1.Plan](t, post(`{"enabled":false,"dry_run":true}`)).PlanID
		post(`{"enabled":false,"ttl_ms":60000,"plan_id":"`+other+`"}`).is(t, 409, cluster.CodeTermStale)
		if r := post(`{"enabled":false,"ttl_ms":60000,"plan_id":"` + plan.PlanID + `"}`); r.status != 200 || leader.fake.View().AutoFailover(time.Now()) {
			t.Fatalf("%+v", r)
		}
		leader.fake.lead("n1", 3)
		leader.waitForLeaderView()
		post(`{"enabled":false,"ttl_ms":60000,"plan_id":"`+plan.PlanID+`"}`).is(t, 409, cluster.CodeTermStale)
	})
}

func TestAutoFailoverRefusals(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for body, field := range map[string]string{
			`{}`:                              "enabled",
			`{"reason":"x"}`:                  "enabled",
			`{"enabled":true,"ttl_ms":1}`:     "ttl_ms",
			`{"enabled":false,"ttl_ms":0}`:    "ttl_ms",
			`{"enabled":false,"ttl_ms":1e99}`: "ttl_ms",
			`{"enabled":false,"for":1}`:       "for",
			`{"enabled":false,"reason":"` + strings.Repeat("x", 2000) + `"}`: "reason",
		} {
			r := n.do("POST", "/admin/auto-failover", body, "Content-Type", jsonBody)
			r.is(t, 400, cluster.CodeBadRequest)
			if !strings.Contains(r.body, field) {
				t.Errorf("%s: the answer does not name %s: %s", body, field, r.body)
			}
		}
		alone := startServer(t, newFakeCluster("n1", false))
		alone.do("POST", "/admin/auto-failover", `{"enabled":false}`, "Content-Type", jsonBody).is(t, 503, cluster.CodeNoLeader)
	})
}

func TestElectionShowsHowLong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.fake.apply(state.Command{Kind: state.KindLeaderStart, Now: 20e6, LeaderStart: &state.LeaderStart{
			Term: 2, Node: "n1", Trigger: "connection_lost", Reason: "node n3 is lost, as n1, n2 report",
			Operator: "anna", LeaderlessAt: 3e6, StartedAt: 15e6,
			Votes: []byte(`[{"voter_id":"n1","granted":true,"reason":"itself"},{"voter_id":"n2","granted":false,"reason":"log behind: 41 < 44"}]`),
		}})
		r := n.do("GET", "/v1/elections", "")
		for _, want := range []string{`"leaderless_ms":17`, `"duration_ms":5`, `"operator":"anna"`, `"reason":"log behind: 41 \u003c 44"`, `"trigger":"connection_lost"`} {
			if !strings.Contains(r.body, want) && !strings.Contains(r.body, strings.ReplaceAll(want, `\u003c`, "<")) {
				t.Errorf("no %s in %s", want, r.body)
			}
		}
	})
}
