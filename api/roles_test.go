package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/roles"
	"northstar/state"
)

const asJSON = "Content-Type"

// runLeadershipRequest runs the clocks of a node's sessions until the test ends.
func (n *node) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.deps.Sessions.(*roles.SessionManager).Lead(ctx, 2) })
	n.t.Cleanup(func() { cancel(); wg.Wait() })
}

// post sends a JSON body, which is written with ' for ".
func (n *node) post(path, body string) reply {
	n.t.Helper()
	return n.do("POST", path, strings.ReplaceAll(body, "'", `"`), asJSON, apiv1.TypeJSON)
}

func (n *node) session(name string) string {
	n.t.Helper()
	return into[apiv1.SessionCreated](n.t,
		n.post("/v1/sessions", fmt.Sprintf("{'name':%q,'ttl_ms':60000}", name))).SessionID
}

func (n *node) campaign(role, session string, waitMS int) reply {
	n.t.Helper()
	return n.post("/v1/roles/"+role+"/campaign", fmt.Sprintf("{'session_id':%q,'value':'v','wait_ms':%d}", session,
		waitMS))
}

// into reads a successful answer.
func into[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if r.status != 200 {
		t.Fatalf("%d: %s", r.status, r.body)
	}
	dec := json.NewDecoder(strings.NewReader(r.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return v
}

func TestSessions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			made := into[apiv1.SessionCreated](t, n.post("/v1/sessions", "{'name':'a','meta':{'x':'y'}}"))
			if made.SessionID == "" || made.TTLMS != 10000 {
				t.Fatalf("%+v", made)
			}
			id := made.SessionID
			if r := n.do("POST", "/v1/sessions/"+id+"/renew", ""); r.body != "{\"ttl_ms\":10000}\n" {
				t.Fatalf("%+v", r)
			}
			many := into[apiv1.RenewedMany](t,
				n.post("/v1/sessions/renew", fmt.Sprintf("{'session_ids':[%q,'gone']}", id)))
			if len(many.Renewed) != 1 || many.Renewed[0] != id || len(many.Ended) != 1 || many.Ended[0] != "gone" {
				t.Fatalf("%+v", many)
			}
			s := into[apiv1.Session](t, n.do("GET", "/v1/sessions/"+id, ""))
			if s.Name != "a" || s.Meta["x"] != "y" || s.RemainingMS <= 0 || s.RemainingMS > 10000 || s.Roles == nil {
				t.Fatalf("%+v", s)
			}
			if list := into[apiv1.Sessions](t, n.do("GET", "/v1/sessions?limit=1", "")); len(list.Items) != 1 ||
				list.Items[0].SessionID != id {
				t.Fatalf("%+v", list)
			}
			if r := n.do("PUT", "/v1/kv/k?ttl_session="+id, "v"); r.status != 200 {
				t.Fatalf("%+v", r)
			}
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+id, ""))
			n.do("GET", "/v1/kv/k", "").is(t, 404, cluster.CodeNotFound)
			n.do("DELETE", "/v1/sessions/"+id, "").is(t, 404, cluster.CodeSessionEnded)
			n.do("POST", "/v1/sessions/"+id+"/renew", "").is(t, 404, cluster.CodeSessionEnded)
			n.do("GET", "/v1/sessions/"+id, "").is(t, 404, cluster.CodeSessionEnded)
			n.do("PUT", "/v1/kv/k?ttl_session="+id, "v").is(t, 404, cluster.CodeSessionEnded)
		}
	})
}

func TestSessionRequestsAreChecked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for body, field := range map[string]string{
			"{'ttl_ms':499}":                     "ttl_ms",
			"{'ttl_ms':9223372036854775807}":     "ttl_ms",
			"{'ttl_ms':-1}":                      "ttl_ms",
			"{'ttl_ms':'1s'}":                    "ttl_ms",
			"{'ttl':1000}":                       "ttl",
			"{'meta':{'a':1}}":                   "meta",
			"{'meta':[]}":                        "meta: must be an object",
			"{'name':'" + long(257) + "'}":       "name",
			"{'meta':{'a':'" + long(5000) + "'}": "body",
		} {
			if p := n.post("/v1/sessions", body).is(t, 400, cluster.CodeBadRequest); !strings.HasPrefix(p.Detail,
				field) {
				t.Errorf("%.40s: %s", body, p.Detail)
			}
		}
		if p := n.post("/v1/sessions", "{'ttl_ms':-1}").is(t, 400, cluster.CodeBadRequest); !strings.HasSuffix(p.Detail,
			"(got -1)") {
			t.Errorf("the value is not named: %s", p.Detail)
		}
		n.post("/v1/sessions/renew", "{'session_ids':[]}").is(t, 400, cluster.CodeBadRequest)
		n.post("/v1/sessions/renew", "{'session_ids':["+strings.Repeat("'s',", 1000)+"'s']}").is(t, 400,
			cluster.CodeBadRequest)
		id := n.session("s")
		for body, field := range map[string]string{
			"{}":                                   "session_id",
			"{'session_id':'ID','wait_ms':300001}": "wait_ms",
			"{'session_id':'ID','wait_ms':-1}":     "wait_ms",
			"{'session_id':'ID','wait':1}":         "wait",
			"{'session_id':'ID','takeover_delay_ms':9223372036854775807}": "takeover_delay_ms",
			"{'session_id':'ID','value':'" + long(4097) + "'}":            "value",
		} {
			if p := n.post("/v1/roles/r/campaign", strings.ReplaceAll(body, "ID", id)).is(t, 400,
				cluster.CodeBadRequest); !strings.HasPrefix(p.Detail, field) {
				t.Errorf("%.60s: %s", body, p.Detail)
			}
		}
		n.campaign("a%20b", id, 0).is(t, 400, cluster.CodeBadRequest)
		n.campaign("r", "nobody", 0).is(t, 404, cluster.CodeSessionEnded)
		n.do("DELETE", "/v1/roles/r", "").is(t, 400, cluster.CodeBadRequest)
		if n.fake.View().Roles() != 0 || n.fake.View().Sessions() != 1 {
			t.Fatal("a bad request has changed something")
		}
	})
}

func long(n int) string { return strings.Repeat("x", n) }

func TestRoles(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			n.do("GET", "/v1/roles/r", "").is(t, 404, cluster.CodeNotFound)
			won := into[apiv1.Role](t, n.campaign("r", a, 0))
			if won.Role != "r" || won.Holder != "a" || won.SessionID != a || won.Token == 0 || won.Value != "v" ||
				won.AcquiredAt == nil || time.Until(*won.LeaseUntil) < 55*time.Second {
				t.Fatalf("%+v", won)
			}
			if again := into[apiv1.Role](t, n.campaign("r", a, 0)); again.Token != won.Token {
				t.Fatalf("%+v", again)
			}
			refused := n.campaign("r", b, 0)
			refused.is(t, 409, cluster.CodeRoleHeld)
			var held apiv1.Role
			if err := json.Unmarshal([]byte(refused.body), &held); err != nil || held.Holder != "a" ||
				held.SessionID != a || held.Token != won.Token {
				t.Fatalf("%v: %s", err, refused.body)
			}
			shown := n.do("GET", "/v1/roles/r", "")
			if r := into[apiv1.Role](t, shown); r.Token != won.Token || shown.header.Get("X-Northstar-Revision") == "" {
				t.Fatalf("%+v", shown)
			}
			if list := into[apiv1.Roles](t, n.do("GET", "/v1/roles", "")); len(list.Items) != 1 ||
				list.Items[0].Holder != "a" {
				t.Fatalf("%+v", list)
			}
			r := n.do("DELETE", "/v1/roles/r?session_id="+b, "")
			r.is(t, 409, cluster.CodeRoleHeld)
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
			n.do("DELETE", "/v1/roles/r?session_id="+a, "").is(t, 404, cluster.CodeNotFound)
			gone := n.do("GET", "/v1/roles/r", "")
			gone.is(t, 404, cluster.CodeNotFound)
			if gone.header.Get("X-Northstar-Revision") == "" {
				t.Fatal("nothing to watch from")
			}
			if list := into[apiv1.Roles](t, n.do("GET", "/v1/roles", "")); len(list.Items) != 0 {
				t.Fatalf("%+v", list)
			}
			if list := into[apiv1.Roles](t, n.do("GET", "/v1/roles?all", "")); len(list.Items) != 1 ||
				list.Items[0].AcquiredAt != nil {
				t.Fatalf("%+v", list)
			}
			next := into[apiv1.Role](t, n.campaign("r", b, 0))
			if next.Token <= won.Token {
				t.Fatalf("token %d after %d", next.Token, won.Token)
			}
			history := into[apiv1.RoleHistory](t, n.do("GET", "/v1/roles/r/history", ""))
			if len(history.Items) < 2 || history.Items[0].SessionID != b || history.Items[0].EndedAt != nil ||
				history.Items[1].Cause != "resigned" {
				t.Fatalf("%+v", history)
			}
			// A write with an old token is refused, and one with the current is not.
			n.do("PUT", "/v1/kv/k", "v", "X-Northstar-Fence", fmt.Sprintf("r=%d", won.Token)).is(t, 409,
				cluster.CodeFenced)
			if r := n.do("PUT", "/v1/kv/k", "v", "X-Northstar-Fence",
				fmt.Sprintf("r=%d", next.Token)); r.status != 200 {
				t.Fatalf("%+v", r)
			}
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+b, ""))
			n.do("GET", "/v1/roles/none/history", "").is(t, 404, cluster.CodeNotFound)
		}
	})
}

// waitsFor returns a condition: the session is in the queue of role r.
func (n *node) waitsFor(session string) func() bool {
	return func() bool {
		r, ok := n.fake.View().Role("r")
		return ok && r.Waits(session)
	}
}

func TestCampaign_WaitsInQueue(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			into[apiv1.Role](t, n.campaign("r", a, 0))
			answer := make(chan reply, 1)
			go func() { answer <- n.campaign("r", b, 60_000) }()
			eventually(t, leader.waitsFor(b))
			if r := into[apiv1.Role](t, leader.do("GET", "/v1/roles/r", "")); len(r.Candidates) != 1 ||
				r.Candidates[0].SessionID != b || !r.Candidates[0].Eligible {
				t.Fatalf("%+v", r)
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
			if won := into[apiv1.Role](t, <-answer); won.SessionID != b {
				t.Fatalf("%+v", won)
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+b, ""))
		}
	})
}

func TestCampaignTimesOut(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			into[apiv1.Role](t, n.campaign("r", a, 0))
			for _, wait := range []time.Duration{200 * time.Millisecond, 50 * time.Millisecond} {
				start := time.Now()
				n.campaign("r", b, int(wait.Milliseconds())).is(t, 409, cluster.CodeRoleHeld)
				if took := time.Since(start); took < wait || took > wait+10*time.Millisecond {
					t.Fatalf("%s answered after %v, want %v", n.fake.st.NodeID, took, wait)
				}
			}
			if leader.waitsFor(b)() {
				t.Fatal("still in the queue")
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
		}
	})
}

// A client that disconnects leaves the queue, also if a follower forwarded its campaign.
func TestCampaign_ClientDisconnects(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			into[apiv1.Role](t, n.campaign("r", a, 0))
			ctx, hangUp := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				body := fmt.Sprintf(`{"session_id":%q,"wait_ms":60000}`, b)
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+n.addr+"/v1/roles/r/campaign",
					strings.NewReader(body))
				req.Header.Set("Content-Type", apiv1.TypeJSON)
				if resp, err := n.http.Do(req); err == nil {
					resp.Body.Close()
				}
			})
			eventually(t, leader.waitsFor(b))
			hangUp()
			wg.Wait()
			eventually(t, func() bool { return !leader.waitsFor(b)() })
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
		}
	})
}

func TestSessionEndsWhileItWaits(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		answer := make(chan reply, 1)
		go func() { answer <- n.campaign("r", b, 60_000) }()
		eventually(t, n.waitsFor(b))
		into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+b, ""))
		r := <-answer
		r.is(t, 404, cluster.CodeSessionEnded)
	})
}

// A change of the leader neither ends a wait nor costs the place.
func TestCampaignSurvivesALeaderChange(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		a, b, c := leader.session("a"), leader.session("b"), leader.session("c")
		into[apiv1.Role](t, leader.campaign("r", a, 0))
		first, second := make(chan reply, 1), make(chan reply, 1)
		go func() { first <- follower.campaign("r", b, 60_000) }()
		eventually(t, leader.waitsFor(b))
		go func() { second <- follower.campaign("r", c, 60_000) }()
		eventually(t, leader.waitsFor(c))

		f3 := newFakeCluster("n3", true)
		f3.state = leader.fake.state
		n3 := startServer(t, f3)
		n3.lead()
		follower.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: n3.addr, Lifecycle: cluster.Active})
		leader.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: n3.addr, Lifecycle: cluster.Active})
		leader.fake.lead("n3", 3)
		follower.fake.lead("n3", 3)
		eventually(t, func() bool { return n3.waitingCampaigns.Load() == 2 })
		into[apiv1.RoleResult](t, n3.do("DELETE", "/v1/roles/r?session_id="+a, ""))
		if won := into[apiv1.Role](t, <-first); won.SessionID != b {
			t.Fatalf("%+v", won)
		}
		into[apiv1.RoleResult](t, n3.do("DELETE", "/v1/roles/r?session_id="+b, ""))
		if won := into[apiv1.Role](t, <-second); won.SessionID != c {
			t.Fatalf("%+v", won)
		}
	})
}

// A node that stops sends its candidates elsewhere; they keep their place.
func TestDrainSendsCandidatesAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		answer := make(chan reply, 1)
		go func() { answer <- n.campaign("r", b, 60_000) }()
		eventually(t, n.waitsFor(b))
		n.Drain()
		r := <-answer
		r.is(t, 504, cluster.CodeOutcomeUnknown)
		if !n.waitsFor(b)() {
			t.Fatal("the place in the queue is lost")
		}
		n.campaign("r", b, 0).is(t, 503, cluster.CodeNoLeader)
	})
}

// A candidate whose wait is over while the leader takes no writes stays in the queue, and may be elected.
func TestCampaign_NotWithdrawn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		answer := make(chan reply, 1)
		go func() { answer <- n.campaign("r", b, 1000) }()
		eventually(t, n.waitsFor(b))
		n.fake.set(func() {
			n.fake.propose = func(context.Context, state.Command) (state.Result, error) {
				return state.Result{}, cluster.Errorf(cluster.CodeReadOnly, "the disk is stalled")
			}
		})
		r := <-answer
		r.is(t, 504, cluster.CodeOutcomeUnknown)
		if !n.waitsFor(b)() {
			t.Error("it has left the queue")
		}
	})
}

// A campaign may be applied after its client has the answer that its outcome is unknown. The candidate is withdrawn.
func TestCampaign_AppliedLate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		a, b := n.sessionOf(600_000), n.sessionOf(600_000)
		into[apiv1.Role](t, n.campaign("r", a, 0))
		var late state.Command
		n.fake.set(func() {
			n.fake.propose = func(_ context.Context, c state.Command) (state.Result, error) {
				late = c
				return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "it is on its way")
			}
		})
		r := n.campaign("r", b, 1000)
		r.is(t, 504, cluster.CodeOutcomeUnknown)
		time.Sleep(time.Second) // the session manager looks at its candidates
		n.fake.set(func() { n.fake.propose = nil })
		n.fake.apply(late)
		if !n.waitsFor(b)() {
			t.Fatal("not in the queue")
		}
		eventually(t, func() bool { return !n.waitsFor(b)() })
	})
}

// A node that stops does not wait for its candidates, which may wait for minutes: neither at the next leader, nor as a
// follower that has forwarded them.
func TestDrain_WaitsForNoCandidate(t *testing.T) {
	for _, stops := range []string{"leader", "follower"} {
		virtually(t, stops, func(t *testing.T) {
			n1, n2, n3 := trio(t)
			stopping := n1
			if stops == "follower" {
				stopping = n2
			}
			a, b := n1.session("a"), n1.session("b")
			into[apiv1.Role](t, n1.campaign("r", a, 0))
			answer := make(chan reply, 1)
			go func() { answer <- stopping.campaign("r", b, 60_000) }()
			eventually(t, n1.waitsFor(b))
			began := time.Now()
			stopping.Drain()
			if stopping == n1 {
				leads(n3, n1, n2, n3)
			}
			r := <-answer
			if took := time.Since(began); took > time.Second || r.status != 503 && r.status != 504 {
				t.Errorf("answered after %v: %+v", took, r)
			}
		})
	}
}

func TestRoleWatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		s := n.stream("/v1/roles/r/watch")
		won := into[apiv1.Role](t, n.campaign("r", a, 0))
		into[apiv1.Role](t, n.campaign("rr", b, 0)) // another role, whose name begins alike
		into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
		m, _ := s.next()
		var ev apiv1.RoleEvent
		if err := json.Unmarshal([]byte(m.data), &ev); err != nil || m.event != "elected" ||
			m.id != fmt.Sprint(won.Token) || ev.Holder != "a" || ev.Token != won.Token || ev.Value != "v" {
			t.Fatalf("%v: %+v", err, m)
		}
		first := m.id
		if m, _ = s.next(); m.event != "vacated" || !strings.Contains(m.data, `"cause":"resigned"`) {
			t.Fatalf("%+v", m)
		}
		again := n.stream("/v1/roles/r/watch", "Last-Event-ID", first)
		if same, _ := again.next(); same != m {
			t.Fatalf("%+v, want %+v", same, m)
		}
		n.do("GET", "/v1/roles/r%20r/watch", "").is(t, 400, cluster.CodeBadRequest)
	})
}

func TestRoleTransferAndEviction(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			won := into[apiv1.Role](t, n.campaign("r", a, 0))
			n.post("/admin/roles/r/transfer", fmt.Sprintf("{'to_session_id':%q}", b)).is(t, 404, cluster.CodeNotFound)
			n.post("/admin/roles/r/transfer", "{}").is(t, 400, cluster.CodeBadRequest)
			answer := make(chan reply, 1)
			go func() { answer <- n.campaign("r", b, 60_000) }()
			eventually(t, leader.waitsFor(b))
			plan := into[apiv1.Plan](t,
				n.post("/admin/roles/r/transfer", fmt.Sprintf("{'to_session_id':%q,'dry_run':true}", b)))
			if !plan.DryRun || plan.PlanID == "" || plan.Summary != `role r goes from "a" to "b"` || !plan.Possible || plan.Affected.Roles != 1 || !leader.waitsFor(b)() {
				t.Fatalf("%+v", plan)
			}
			n.post("/admin/roles/r/transfer", fmt.Sprintf("{'to_session_id':%q,'plan_id':%q}", a, plan.PlanID)).is(t,
				409, cluster.CodeTermStale)
			if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0], "1m0s after its last renewal") {
				t.Fatalf("%q", plan.Warnings)
			}
			changed := make(chan reply, 1)
			go func() {
				changed <- n.post("/admin/roles/r/transfer",
					fmt.Sprintf("{'to_session_id':%q,'plan_id':%q,'reason':'x'}", b, plan.PlanID))
			}()
			eventually(t, func() bool { return leader.revokedFrom("r") == a })
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
			done := into[apiv1.RoleChange](t, <-changed)
			if done.NewSessionID != b || done.Token <= won.Token || done.OldSessionID != a {
				t.Fatalf("%+v", done)
			}
			if r := into[apiv1.Role](t, <-answer); r.Token != done.Token {
				t.Fatalf("%+v", r)
			}
			n.post("/admin/roles/r/transfer", fmt.Sprintf("{'to_session_id':%q,'plan_id':%q}", b, plan.PlanID)).is(t,
				409, cluster.CodeTermStale)
			plan = into[apiv1.Plan](t, n.do("DELETE", "/admin/roles/r", `{"dry_run":true}`, asJSON, apiv1.TypeJSON))
			if plan.Summary != `role r goes from "b" to no session` {
				t.Fatalf("%+v", plan)
			}
			out := into[apiv1.RoleChange](t, n.do("DELETE", "/admin/roles/r", ""))
			if out.OldHolder != "b" || out.NewHolder != "" || out.Message == "" {
				t.Fatalf("%+v", out)
			}
			n.do("DELETE", "/admin/roles/r", "").is(t, 404, cluster.CodeNotFound)
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+b, ""))
		}
	})
}

// A plan names the next holder. It is refused when another candidate would get the role.
func TestRoleEviction_PlanOfAnotherCandidate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		answer := make(chan reply, 1)
		go func() { answer <- n.campaign("r", b, 1000) }()
		eventually(t, n.waitsFor(b))
		const evict = "/admin/roles/r"
		plan := into[apiv1.Plan](t, n.do("DELETE", evict, `{"dry_run":true}`, asJSON, apiv1.TypeJSON))
		if plan.Summary != `role r goes from "a" to "b"` {
			t.Fatalf("%+v", plan)
		}
		into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+b, ""))
		<-answer
		n.do("DELETE", evict, fmt.Sprintf(`{"plan_id":%q}`, plan.PlanID), asJSON, apiv1.TypeJSON).is(t, 409,
			cluster.CodeTermStale)
	})
}

// revokedFrom is who a role was taken from and is waited for.
func (n *node) revokedFrom(role string) string {
	r, _ := n.fake.View().Role(role)
	return r.RevokedFrom
}

// A session that a role was taken from is refused what it would take for an
// assurance that it still holds it, until it has resigned.
func TestRevocation_IsReported(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			a := n.session("a")
			won := into[apiv1.Role](t, n.campaign("r", a, 0))
			if out := into[apiv1.RoleChange](t, n.do("DELETE", "/admin/roles/r", "")); out.OldSessionID != a ||
				out.NewHolder != "" {
				t.Fatalf("%+v", out)
			}
			n.do("PUT", "/v1/kv/k", "v", "X-Northstar-Fence", fmt.Sprintf("r=%d", won.Token)).is(t, 409,
				cluster.CodeFenced)
			if p := n.do("POST", "/v1/sessions/"+a+"/renew", "").is(t, 409, cluster.CodeFenced); p.Retryable ||
				!strings.Contains(p.Detail, "DELETE /v1/roles/r?session_id="+a) {
				t.Fatalf("%+v", p)
			}
			if many := into[apiv1.RenewedMany](t, n.post("/v1/sessions/renew", fmt.Sprintf("{'session_ids':[%q]}",
				a))); len(many.Renewed)+len(many.Ended) != 0 || len(many.Revoked) != 1 {
				t.Fatalf("%+v", many)
			}
			if s := into[apiv1.Session](t, n.do("GET", "/v1/sessions/"+a, "")); len(s.Roles) != 0 ||
				len(s.RevokedRoles) != 1 {
				t.Fatalf("%+v", s)
			}
			n.do("GET", "/v1/sessions/"+a+"/attach", "").is(t, 409, cluster.CodeFenced)
			n.stream("/v1/sessions/" + a + "/attach?hold=false") // renews nothing
			b := n.session("b")
			for _, p := range []apiv1.Problem{
				n.campaign("r", b, 0).is(t, 409, cluster.CodeRoleHeld),
				n.do("GET", "/v1/roles/r", "").is(t, 404, cluster.CodeNotFound),
			} {
				if !strings.Contains(p.Detail, a) {
					t.Errorf("it is not said who is waited for: %s", p.Detail)
				}
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+a, ""))
			if r := n.do("POST", "/v1/sessions/"+a+"/renew", ""); r.status != 200 {
				t.Fatalf("%+v", r)
			}
			next := into[apiv1.Role](t, n.campaign("r", b, 0))
			if next.Token <= won.Token {
				t.Fatalf("%+v", next)
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+b, ""))
		}
	})
}

// An eviction is answered also when the next candidate has to wait for longer than
// the answer may.
func TestEviction_OfUnresponsiveHolder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		ctx, hangUp := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		defer func() { hangUp(); waiting.Wait() }()
		waiting.Go(func() {
			body := fmt.Sprintf(`{"session_id":%q,"wait_ms":60000}`, b)
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+n.addr+"/v1/roles/r/campaign",
				strings.NewReader(body))
			req.Header.Set("Content-Type", apiv1.TypeJSON)
			if resp, err := n.http.Do(req); err == nil {
				resp.Body.Close()
			}
		})
		eventually(t, n.waitsFor(b))
		changed := make(chan reply, 1)
		go func() { changed <- n.do("DELETE", "/admin/roles/r", "") }()
		eventually(t, func() bool { return n.revokedFrom("r") == a })
		n.do("GET", "/v1/roles/r", "").is(t, 404, cluster.CodeNotFound)
		if r := into[apiv1.Role](t, n.do("GET", "/v1/roles/r?all", "")); r.Holder != "" || len(r.Candidates) != 1 ||
			r.Candidates[0].SessionID != b || !strings.Contains(r.Vacant, "an operator revoked it from session") {
			t.Errorf("the queue of a vacant role: %+v", r)
		}
		n.do("GET", "/v1/roles/unheard?all", "").is(t, 404, cluster.CodeNotFound)
		n.Drain() // it waits no longer then
		if out := into[apiv1.RoleChange](t, <-changed); out.NewHolder != "" || !strings.Contains(out.Message, `"b" is elected when`) {
			t.Fatalf("%+v", out)
		}
	})
}

// Without a leader nothing is renewed, and stale reads still show the roles.
func TestSessionsWithoutALeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		id := n.session("a")
		into[apiv1.Role](t, n.campaign("r", id, 0))
		f.lead("", 3)
		n.do("POST", "/v1/sessions/"+id+"/renew", "").is(t, 503, cluster.CodeNoLeader)
		n.post("/v1/sessions/renew", fmt.Sprintf("{'session_ids':[%q]}", id)).is(t, 503, cluster.CodeNoLeader)
		n.do("GET", "/v1/roles/r", "").is(t, 503, cluster.CodeNoLeader)
		if r := into[apiv1.Role](t, n.do("GET", "/v1/roles/r?consistency=stale", "")); r.Holder != "a" ||
			r.LeaseUntil != nil {
			t.Fatalf("%+v", r)
		}
	})
}

// Expiry shows at the API: the role goes to the next candidate.
func TestExpiryElectsTheNext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		a := into[apiv1.SessionCreated](t, n.post("/v1/sessions", "{'name':'a','ttl_ms':500}")).SessionID
		b := n.session("b")
		into[apiv1.Role](t, n.campaign("r", a, 0))
		won := into[apiv1.Role](t, n.campaign("r", b, 60_000))
		if won.SessionID != b {
			t.Fatalf("%+v", won)
		}
		r, _ := n.fake.View().Role("r")
		if last := r.History[len(r.History)-1]; last.Cause != state.CauseExpired {
			t.Fatalf("%+v", last)
		}
	})
}

// After a recovery, the lock delay is reported to clients that read the role, campaign for it or transfer it.
func TestRole_ReportsLockDelay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, _ := pair(t)
		leader.lead()
		next := leader.fake.View().Generation().Number + 1
		leader.fake.apply(state.Command{Kind: state.KindClusterInit, ClusterInit: &state.ClusterInit{
			ClusterID:  "c",
			Generation: cluster.Generation{Number: 1},
		}})
		leader.fake.apply(state.Command{
			Kind: state.KindRecovery,
			Recovery: &state.Recovery{
				Generation: cluster.Generation{Number: next + 1, RecoveryID: "r"},
				LockDelay:  true,
			},
		})
		since, d := leader.fake.View().ClusterLockDelay()
		if d == 0 {
			t.Fatal("not recovered")
		}
		a := leader.session("a")
		for _, p := range []apiv1.Problem{
			leader.campaign("r", a, 0).is(t, 409, cluster.CodeRoleHeld),
			leader.do("GET", "/v1/roles/r", "").is(t, 404, cluster.CodeNotFound),
		} {
			if !strings.Contains(p.Detail, "lock delay of 10s") {
				t.Errorf("it is not said that somebody is waited for: %s", p.Detail)
			}
		}
		answer, changed := make(chan reply, 1), make(chan reply, 1)
		go func() { answer <- leader.campaign("r", a, 60_000) }()
		eventually(t, leader.waitsFor(a))
		before := leader.fake.View()
		go func() { changed <- leader.post("/admin/roles/r/transfer", fmt.Sprintf("{'to_session_id':%q}", a)) }()
		eventually(t, func() bool { return leader.fake.View() != before })
		select {
		case early := <-changed:
			t.Fatalf("the transfer was answered before anybody was elected: %+v", early)
		case <-time.After(20 * time.Millisecond): // long enough for an answer that waits for nothing
		}
		leader.fake.apply(state.Command{
			Kind:      state.KindRoleElect,
			RoleElect: &state.RoleElect{Roles: []state.ElectableRole{{StateRevision: since}}},
		})
		won := into[apiv1.Role](t, <-answer)
		if done := into[apiv1.RoleChange](t, <-changed); done.NewSessionID != a || done.Token != won.Token {
			t.Fatalf("%+v, and %+v was elected", done, won)
		}
	})
}
