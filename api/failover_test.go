package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
)

// leadership answers as the test says, and keeps the orders.
type leadership struct {
	plan     func(cluster.LeadershipRequest) (cluster.Plan, error)
	requests []cluster.LeadershipRequest // that were carried out
	fail     error
	execute  func(context.Context) error // instead of fail
}

func (l *leadership) Plan(_ context.Context, o cluster.LeadershipRequest) (cluster.Plan, error) {
	return l.plan(o)
}

func (l *leadership) Execute(ctx context.Context, o cluster.LeadershipRequest, p cluster.Plan) (cluster.TransferOutcome,
	error,
) {
	if p.Refusal != nil {
		return cluster.TransferOutcome{}, p.Refusal
	}
	l.requests = append(l.requests, o)
	if l.execute != nil {
		return cluster.TransferOutcome{}, l.execute(ctx)
	}
	return cluster.TransferOutcome{NewLeader: p.Target, Term: 3}, l.fail
}

// electionTo returns the plan of an election that an operator requested.
func electionTo(target cluster.NodeID) func(o cluster.LeadershipRequest) (cluster.Plan, error) {
	return func(o cluster.LeadershipRequest) (cluster.Plan, error) {
		return cluster.Plan{
			Action: o.Action, Term: 2, Membership: "m", Target: target, Executor: target,
			Method: cluster.MethodElection, Risk: cluster.RiskMedium,
		}, nil
	}
}

// orderly is n2, and n1, each with a leadership of its own. n2 knows where n1 is,
// and no leader.
func orderly(t *testing.T) (n1, n2 *node, at1, at2 *leadership) {
	at1, at2 = &leadership{plan: electionTo("n1")}, &leadership{plan: electionTo("n1")}
	n1 = startServer(t, newFakeCluster("n1", false), func(d *Deps) { d.Leadership = at1 })
	f := newFakeCluster("n2", false)
	f.addRecord(cluster.Member{ID: "n1", HTTPAddress: n1.addr, RaftAddress: "h1:7700", Lifecycle: cluster.Active})
	return n1, startServer(t, f, func(d *Deps) { d.Leadership = at2 }), at1, at2
}

// TestFailover_ForwardedToTarget: without a leader any node has the target start an election.
func TestFailover_ForwardedToTarget(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, n2, at1, at2 := orderly(t)
		for _, body := range []string{"", `{"target_leader_id":"n1","reason":"n3 hangs"}`} {
			at1.requests = nil
			var r reply
			if body == "" {
				r = n2.do("POST", "/admin/failover", "")
			} else {
				r = n2.do("POST", "/admin/failover", body, "Content-Type", jsonBody)
			}
			if r.status != 200 || !strings.Contains(r.body, `"new_leader_id":"n1"`) {
				t.Fatalf("%+v", r)
			}
			want := cluster.LeadershipRequest{Action: "failover", Target: "n1", Operator: "loopback", Forwarded: true}
			if body != "" {
				want.Reason = "n3 hangs"
			}
			if len(at1.requests) != 1 || at1.requests[0] != want || len(at2.requests) != 0 {
				t.Errorf("%q: n1 carries out %+v, n2 %+v", body, at1.requests, at2.requests)
			}
		}
		at1.requests = nil
		r := n2.do("POST", "/admin/failover/emergency", `{"target_leader_id":"n1","force":true,"reason":"now"}`, "Content-Type", jsonBody)
		if want := (cluster.LeadershipRequest{
			Action: "emergency", Target: "n1", Reason: "now", Operator: "loopback",
			Forwarded: true,
		}); r.status != 200 || len(at1.requests) != 1 || at1.requests[0] != want {
			t.Errorf("%+v: %+v", r, at1.requests)
		}
		at2.plan = electionTo("n2")
		if r := n2.do("POST", "/admin/failover", ""); r.status != 200 || len(at2.requests) != 1 ||
			at2.requests[0].Forwarded {
			t.Errorf("itself: %+v, %+v", r, at2.requests)
		}
	})
}

// TestFailover_DeniedVotes: the answer of a target that is not elected does not name it as the leader.
func TestFailover_DeniedVotes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2, at1, _ := orderly(t)
		at1.fail = cluster.Errorf(cluster.CodeVoteDenied, "n3 hears a leader")
		r := n2.do("POST", "/admin/failover/emergency", `{"target_leader_id":"n1","force":true,"reason":"now"}`,
			"Content-Type", jsonBody)
		r.is(t, 409, cluster.CodeVoteDenied)
		if named := r.header.Get(apiv1.HeaderLeader); named != "" || len(at1.requests) != 1 {
			t.Errorf("it names %q, n1 is %s; carried out: %+v", named, n1.addr, at1.requests)
		}
	})
}

// TestFailover_NoNodeExecutes: the plan was out of date, or its actor is gone.
func TestFailover_NoNodeExecutes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, n2, at1, at2 := orderly(t)
		tries := 0
		at1.plan = func(o cluster.LeadershipRequest) (cluster.Plan, error) {
			if tries++; tries == 1 {
				return cluster.Plan{}, problem.NoLeader("n1 does not lead")
			}
			return electionTo("n1")(o)
		}
		if r := n2.do("POST", "/admin/failover", ""); r.status != 200 || tries != 2 {
			t.Errorf("a plan that was out of date: %+v after %d tries", r, tries)
		}
		at2.plan = electionTo("n3") // its address is unknown
		p := n2.do("POST", "/admin/failover", "").is(t, 409, cluster.CodeTransferFailed)
		if !strings.Contains(p.Detail, "nothing was done") || p.Retryable {
			t.Errorf("%+v", p)
		}
		addr, requests := brokenLeader(t, false)
		n2.fake.addRecord(cluster.Member{
			ID: "n3", HTTPAddress: addr, RaftAddress: "h3:7700",
			Lifecycle: cluster.Active,
		})
		n2.do("POST", "/admin/failover", "").is(t, 504, cluster.CodeOutcomeUnknown)
		if got := requests.Load(); got != 1 {
			t.Errorf("sent %d times", got)
		}
	})
}

// TestFailover_Refused: what speaks against it is said before anybody is asked, and
// what the voters have said comes through another node unchanged.
func TestFailover_Refused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, n2, at1, at2 := orderly(t)
		refusal := cluster.Errorf(cluster.CodeVoteDenied, "node n1 gets no majority")
		refusal.Votes = []cluster.Vote{
			{Voter: "n1", Granted: true, Reason: "itself"},
			{Voter: "n3", Reason: "log behind: 41 < 44"},
		}
		at1.fail = refusal
		check := func(name string) {
			t.Helper()
			p := n2.do("POST", "/admin/failover", "").is(t, 409, cluster.CodeVoteDenied)
			if len(p.Votes) != 2 || p.Votes[1] != (apiv1.Vote{VoterID: "n3", Reason: "log behind: 41 < 44"}) {
				t.Errorf("%s: votes %+v", name, p.Votes)
			}
		}
		check("by the voters")
		at1.requests, at1.fail = nil, nil
		at2.plan = func(o cluster.LeadershipRequest) (cluster.Plan, error) {
			p, err := electionTo("n1")(o)
			p.Refusal = refusal
			return p, err
		}
		check("by the plan")
		if len(at1.requests) != 0 {
			t.Errorf("n1 was asked: %+v", at1.requests)
		}
		r := n2.do("POST", "/admin/failover", `{"dry_run":true}`, "Content-Type", jsonBody)
		var p apiv1.Plan
		if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 200 || p.Possible ||
			p.How != "election" || p.Refusal == nil || len(p.Refusal.Votes) != 2 {
			t.Errorf("%+v", r)
		}
	})
}

// TestLeadersPlan: a failover that the leader carries out is planned there.
func TestLeadersPlan(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, n2, at1, at2 := orderly(t)
		at1.plan = func(o cluster.LeadershipRequest) (cluster.Plan, error) {
			return cluster.Plan{
				Action: o.Action, Term: 2, Membership: "m", Target: "n2", Executor: "n1",
				Method: cluster.MethodTransfer, Summary: "the leader's",
			}, nil
		}
		at2.plan = func(o cluster.LeadershipRequest) (cluster.Plan, error) {
			return cluster.Plan{
				Action: o.Action, Term: 2, Membership: "m", Target: o.Target, Executor: "n1",
				Method: cluster.MethodTransfer,
			}, nil
		}
		var p apiv1.Plan
		r := n2.do("POST", "/admin/failover", `{"dry_run":true}`, "Content-Type", jsonBody)
		if err := json.Unmarshal([]byte(r.body), &p); err != nil || p.Summary != "the leader's" ||
			len(at1.requests) != 0 {
			t.Fatalf("%+v", r)
		}
		r = n2.do("POST", "/admin/failover", `{"plan_id":"`+p.PlanID+`"}`, "Content-Type", jsonBody)
		if r.status != 200 || len(at1.requests) != 1 || at1.requests[0].Target != "n2" {
			t.Errorf("%+v: %+v", r, at1.requests)
		}
		at1.fail = &cluster.Error{Code: cluster.CodeTransferFailed, Status: 504, Detail: "told, and it does not lead"}
		n2.do("POST", "/admin/failover", "").is(t, 504, cluster.CodeTransferFailed)
	})
}

func TestFailover_InvalidRequests(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, n2, at1, at2 := orderly(t)
		for _, tc := range []struct{ path, body, field string }{
			{"/admin/failover", `{"target_leader_id":"N1"}`, "target_leader_id"},
			{"/admin/failover", `{"timeout_ms":5}`, "timeout_ms"},
			{"/admin/failover", `{"force":true}`, "force"},
			{"/admin/failover", `{"reason":"` + strings.Repeat("x", maxReason+1) + `"}`, "reason"},
			{"/admin/failover", `{"plan_id":"x"}`, "plan_id"},
			{"/admin/failover/emergency", `{"force":true,"reason":"r"}`, "target_leader_id"},
			{"/admin/failover/emergency", `{"target_leader_id":"n1","reason":"r"}`, "force"},
			{"/admin/failover/emergency", `{"target_leader_id":"n1","force":false,"reason":"r"}`, "force"},
			{"/admin/failover/emergency", `{"target_leader_id":"n1","force":true}`, "reason"},
			{"/admin/failover/emergency", `{"target_leader_id":"n1","force":1,"reason":"r"}`, "force"},
			{"/admin/failover/emergency", ``, "target_leader_id"},
		} {
			var r reply
			if tc.body == "" {
				r = n2.do("POST", tc.path, "")
			} else {
				r = n2.do("POST", tc.path, tc.body, "Content-Type", jsonBody)
			}
			if p := r.is(t, 400, cluster.CodeBadRequest); !strings.Contains(p.Detail, tc.field) {
				t.Errorf("%s %s: detail %q does not name %s", tc.path, tc.body, p.Detail, tc.field)
			}
		}
		if len(at1.requests)+len(at2.requests) != 0 {
			t.Errorf("bad orders are carried out: %+v %+v", at1.requests, at2.requests)
		}
		// A dry run needs neither force nor reason.
		if r := n2.do("POST", "/admin/failover/emergency", `{"target_leader_id":"n1","dry_run":true}`, "Content-Type", jsonBody); r.status != 200 {
			t.Errorf("%+v", r)
		}
	})
}
