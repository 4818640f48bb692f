package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

func setLimits(f *fakeCluster, bytes, sessions uint64) {
	f.apply(state.Command{Kind: state.KindLimits, Limits: &state.LimitsChange{
		StateBytes: bytes, SessionsPerIdentity: sessions,
	}})
}

// A full state refuses what grows it with 4020, which is not to be repeated, and takes a deletion.
func TestQuotaExceeded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		n := startServer(t, newFakeCluster("n1", true), withTokens(data))
		setLimits(n.fake, state.MinStateBytes, 2)
		auth := []string{"Authorization", "Bearer " + tokens["client"], "Content-Type", apiv1.TypeJSON}
		value := strings.Repeat("v", 300_000)
		for _, key := range []string{"a", "b", "c"} {
			into[apiv1.PutResult](t, n.do("PUT", "/v1/kv/"+key, value, auth...))
		}
		p := n.do("PUT", "/v1/kv/d", value, auth...).is(t, 507, cluster.CodeQuotaExceeded)
		if p.Retryable || !strings.Contains(p.Detail, "the state is full") {
			t.Errorf("%+v", p)
		}
		into[apiv1.DeleteResult](t, n.do("DELETE", "/v1/kv/a", "", auth...))
		into[apiv1.PutResult](t, n.do("PUT", "/v1/kv/d", value, auth...))

		for range 2 {
			into[apiv1.SessionCreated](t, n.do("POST", "/v1/sessions", `{"name":"s"}`, auth...))
		}
		p = n.do("POST", "/v1/sessions", `{"name":"s"}`, auth...).is(t, 507, cluster.CodeQuotaExceeded)
		if !strings.Contains(p.Detail, `"client the-client" has 2 sessions`) {
			t.Errorf("%+v", p)
		}
		operator := []string{"Authorization", "Bearer " + tokens["operator"], "Content-Type", apiv1.TypeJSON}
		into[apiv1.SessionCreated](t, n.do("POST", "/v1/sessions", `{"name":"s"}`, operator...))

		got := into[apiv1.Cluster](t, n.do("GET", "/v1/cluster", "")).State
		if got.Keys != 3 || got.Sessions != 3 || got.Bytes < 900_000 || got.BytesLimit != state.MinStateBytes ||
			got.SessionsPerIdentity != 2 {
			t.Errorf("%+v", got)
		}
	})
}

// An operator ends the sessions of an identity, or by name, 1000 at a time. A client ends only its own.
func TestEndSessions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		n := startServer(t, newFakeCluster("n1", true), withTokens(data))
		for i := range 1003 {
			n.fake.apply(state.Command{Kind: state.KindSessionCreate, Now: 1, SessionCreate: &state.SessionCreate{
				Nonce: "abcdefgh", Name: fmt.Sprintf("job-%d", i%2), TTL: state.MaxSessionTTL, Owner: "client eve",
			}})
		}
		client := []string{"Authorization", "Bearer " + tokens["client"], "Content-Type", apiv1.TypeJSON}
		operator := []string{"Authorization", "Bearer " + tokens["operator"], "Content-Type", apiv1.TypeJSON}
		own := into[apiv1.SessionCreated](t, n.do("POST", "/v1/sessions", `{"name":"job-own"}`, client...)).SessionID
		s := into[apiv1.Session](t, n.do("GET", "/v1/sessions/"+own, "", client...))
		if s.Identity != "client the-client" {
			t.Errorf("%+v", s)
		}
		end := func(query string, who []string) apiv1.SessionsEnded {
			t.Helper()
			return into[apiv1.SessionsEnded](t, n.do("DELETE", "/v1/sessions"+query, "", who...))
		}
		for _, query := range []string{"", "?identity=&prefix=job-", "?identity=client+eve&prefix="} {
			n.do("DELETE", "/v1/sessions"+query, "", operator...).is(t, 400, cluster.CodeBadRequest)
		}
		for _, other := range []string{"client%20eve", "client%20without-sessions"} {
			n.do("DELETE", "/v1/sessions?identity="+other, "", client...).is(t, 403, cluster.CodeForbidden)
		}
		into[apiv1.Role](t, n.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+own+`","required":true}`, client...))
		if r := into[apiv1.Role](t, n.do("GET", "/v1/roles/r", "", client...)); !r.Required {
			t.Errorf("%+v", r)
		}
		into[apiv1.PutResult](t, n.do("PUT", "/v1/kv/a?ttl_session="+own, "x", "Authorization", client[1]))
		dry := `{"dry_run":true,"reason":"drill"}`
		plan := into[apiv1.SessionsEnded](t, n.do("DELETE", "/v1/sessions?prefix=job-", dry, client...))
		if !plan.DryRun || !slices.Equal(plan.SessionIDs, []string{own}) || !slices.Equal(plan.Roles, []string{"r"}) ||
			plan.Keys != 1 {
			t.Errorf("%+v", plan)
		}
		one := into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+own, dry, operator...))
		if !one.DryRun || one.SessionID != own || !slices.Equal(one.Roles, []string{"r"}) || one.Keys != 1 {
			t.Errorf("%+v", one)
		}
		foreign := slices.Collect(n.fake.View().SessionsAfter(""))[0].ID
		n.do("DELETE", "/v1/sessions/"+foreign, dry, client...).is(t, 403, cluster.CodeForbidden)
		n.do("DELETE", "/v1/sessions/"+foreign+"x", dry, operator...).is(t, 404, cluster.CodeSessionEnded)
		long := `{"reason":"` + strings.Repeat("a", maxReason+1) + `"}`
		n.do("DELETE", "/v1/sessions/"+own, long, client...).is(t, 400, cluster.CodeBadRequest)
		if got := end("?prefix=job-", client); got.More || !slices.Equal(got.SessionIDs, []string{own}) {
			t.Fatalf("%d ended for a client, more: %v", len(got.SessionIDs), got.More)
		}
		if got := end("?identity=client+eve&prefix=job-1", operator); len(got.SessionIDs) != 501 || got.More {
			t.Fatalf("%d ended by identity and name, more: %v", len(got.SessionIDs), got.More)
		}
		for i := range 600 {
			n.fake.apply(state.Command{Kind: state.KindSessionCreate, Now: 1, SessionCreate: &state.SessionCreate{
				Nonce: "abcdefgh", Name: fmt.Sprintf("other-%d", i), TTL: state.MaxSessionTTL, Owner: "client eve",
			}})
		}
		because := into[apiv1.SessionsEnded](t, n.do("DELETE", "/v1/sessions?prefix=other-59", `{"reason":"drill"}`,
			operator...))
		for r := range n.fake.View().AuditBackward {
			if len(because.SessionIDs) != 11 || r.Reason != "drill" || r.DryRun {
				t.Errorf("%+v, %d ended", r, len(because.SessionIDs))
			}
			break
		}
		if got := end("?identity=client+eve", operator); len(got.SessionIDs) != 1000 || !got.More {
			t.Fatalf("%d ended of 1091, more: %v", len(got.SessionIDs), got.More)
		}
		if got := end("?identity=client+eve", operator); len(got.SessionIDs) != 91 || got.More {
			t.Fatalf("%d ended of 91, more: %v", len(got.SessionIDs), got.More)
		}
		if got := end("?prefix=job", operator); len(got.SessionIDs) != 0 || got.More || n.fake.View().Sessions() != 0 {
			t.Fatalf("%+v", got)
		}
		for r := range n.fake.View().AuditBackward {
			if r.What != "DELETE /v1/sessions" || r.Who != "the-operator" ||
				!strings.Contains(r.Request, "client eve") {
				t.Errorf("%+v", r)
			}
			break
		}
	})
}

// One request ends as many sessions as have the keys that one transaction may change, and at least one.
func TestEndSessions_Keys(t *testing.T) {
	t.Parallel()
	st := state.New(state.Options{})
	apply := func(cmds ...state.Command) state.Result {
		return st.Apply(st.View().AppliedIndex()+1, 1, cmds)[len(cmds)-1]
	}
	var ids []string
	for i, keys := range []int{15_000, state.MaxTxnChanges - 15_000, 0, state.MaxTxnChanges + 1, 0, 1} {
		ids = append(ids, apply(state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
			Nonce: "abcdefgh", Name: "s", TTL: state.MaxSessionTTL,
		}}).Session.ID)
		puts := make([]state.Command, max(1, keys))
		puts[0] = state.Command{Kind: state.KindPut, Put: &state.Put{Key: "unbound"}}
		for n := range keys {
			puts[n] = state.Command{Kind: state.KindPut, Put: &state.Put{Key: fmt.Sprint(i, "/", n), Session: ids[i]}}
		}
		apply(puts...)
	}
	for _, want := range [][]string{ids[:3], ids[3:4], ids[4:]} {
		got := matchingSessions(st.View(), "", "s")
		if more := want[len(want)-1] != ids[5]; !slices.Equal(got.SessionIDs, want) || got.More != more {
			t.Fatalf("%v, more: %v, want %v", got.SessionIDs, got.More, want)
		}
		apply(state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{
			IDs: got.SessionIDs, Cause: state.CauseSessionEnded,
		}})
	}
}
