package api

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// fakeAuditor keeps records in memory.
type fakeAuditor struct {
	mu      sync.Mutex
	records []string
	last    state.AuditRecord
}

func (f *fakeAuditor) add(how string, r state.AuditRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = r
	f.records = append(f.records, fmt.Sprintf("%s %s %s: %d %d", how, r.Who, r.What, r.Status, r.Code))
}

func (f *fakeAuditor) Record(r state.AuditRecord)                           { f.add("record", r) }
func (f *fakeAuditor) RecordDurable(_ context.Context, r state.AuditRecord) { f.add("secure", r) }

// take returns the records since the last call.
func (f *fakeAuditor) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := strings.Join(f.records, "; ")
	f.records = nil
	return all
}

func withAudit(f *fakeAuditor) func(*Deps) { return func(d *Deps) { d.Audit = f } }

// inState are the records that commands have brought to a node's state.
func inState(n *node) string {
	var all []string
	for r := range n.fake.View().AuditAfter(0) {
		all = append(all, fmt.Sprintf("%s %s %s: %d %d", r.Node, r.Who, r.What, r.Status, r.Code))
	}
	return strings.Join(all, "; ")
}

func TestAuditOfOneNode(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		aud := &fakeAuditor{}
		n := startServer(t, newFakeCluster("n1", true), withTokens(data), withAudit(aud))
		as := func(role token.Role) []string { return []string{"Authorization", "Bearer " + tokens[role]} }
		json := func(role token.Role) []string { return append(as(role), "Content-Type", "application/json") }

		// Writes are recorded with the command, if they succeed or fail.
		n.do("PUT", "/v1/kv/a%2Fb", "v", as(token.Client)...)
		n.do("PUT", "/v1/kv/a%2Fb", "v", append(as(token.Client), "If-None-Match", "*")...)
		n.do("POST", "/admin/auto-failover", `{"enabled":false,"reason":"upgrade"}`, json(token.Operator)...)
		if got, want := inState(n),
			"n1 the-client PUT /v1/kv/a%2Fb: 200 0; n1 the-client PUT /v1/kv/a%2Fb: 412 4014; n1 the-operator POST /admin/auto-failover: 200 0"; got != want {
			t.Errorf("commands: %s", got)
		}
		if got := aud.take(); got != "" {
			t.Errorf("recorded twice: %s", got)
		}

		// All others are recorded as they are answered; operators' first.
		for _, tc := range []struct {
			method, path, body string
			headers            []string
			want               string
		}{
			{"GET", "/v1/kv/a%2Fb", "", as(token.Client), ""},
			{"PUT", "/v1/kv/x", "v", nil, ""}, // 401: only counted
			{"PUT", "/v1/kv/x", "v", []string{"Authorization", "Bearer no"}, ""},
			{"PUT", "/v1/kv/x?nothing=1", "v", as(token.Client), "record the-client PUT /v1/kv/x: 400 4400"},
			{"PUT", "/v1/kv/x", "v", as(token.Observer), "record the-observer PUT /v1/kv/x: 403 4403"},
			{"GET", "/admin/audit", "", as(token.Client), "record the-client GET /admin/audit: 403 4403"},
			{"GET", "/admin/audit", "", as(token.Operator), ""},
			{"POST", "/admin/transfer", `{"target_leader_id":"n2","dry_run":true,"reason":"why"}`, json(token.Operator), "secure the-operator POST /admin/transfer: 200 0"},
			{
				"DELETE", "/admin/members/n3", "", as(token.Operator),
				"secure the-operator DELETE /admin/members/n3: 200 0",
			},
			{"POST", "/admin/transfer", `{"target_leader_id":"n7"}`, json(token.Operator), "secure the-operator POST /admin/transfer: 404 4404"},
			{"POST", "/v1/sessions/s/renew", "", as(token.Client), ""}, // a keep-alive
		} {
			n.do(tc.method, tc.path, tc.body, tc.headers...)
			if got := aud.take(); got != tc.want {
				t.Errorf("%s %s: %q, want %q", tc.method, tc.path, got, tc.want)
			}
		}
		n.do("POST", "/admin/transfer", `{"target_leader_id":"n2","dry_run":true,"reason":"why"}`, json(token.Operator)...)
		r := aud.last
		if !r.DryRun || r.Reason != "why" || r.Class != state.AuditOperators || !strings.Contains(r.Request, `"n2"`) || !strings.HasPrefix(r.From, "127.0.0.1:") || r.At == 0 || r.Role != "operator" {
			t.Errorf("record %+v", r)
		}
		n.do("PUT", "/v1/kv/x", "v", append(as(token.Operator), "Sec-Fetch-Site", "cross-site")...)
		if aud.last.Status != 403 || aud.last.Class != state.AuditClients {
			t.Errorf("of another origin: %+v", aud.last)
		}
	})
}

// A record has room for a request of 2 KiB. A longer one is recorded without it, and does what it asks for.
func TestAuditOfLongRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		n.campaign("r", n.session("a"), 0)
		quotes := strings.Repeat(`\"`, maxReason) // each of two bytes in JSON
		for path, body := range map[string]string{
			"POST /admin/auto-failover": `{"enabled":false,"reason":"` + quotes + `"}`,
			"DELETE /admin/roles/r":     `{"reason":"` + quotes + `"}`,
		} {
			method, path, _ := strings.Cut(path, " ")
			if r := n.do(method, path, body); r.status != 200 {
				t.Errorf("%s %s: %d %s", method, path, r.status, r.body)
			}
			for r := range n.fake.View().AuditBackward {
				if r.What != method+" "+path || len(r.Reason) != maxReason || r.Request != "" || r.Status != 200 {
					t.Errorf("%s %s: record %+v", method, path, r)
				}
				break
			}
		}
	})
}

// A call that is sent on is recorded once, by the node that answers it, with
// where it came from.
func TestAuditOfForwardedCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		atLeader, atFollower := &fakeAuditor{}, &fakeAuditor{}
		turn := 0
		leader, follower := pair(t, func(d *Deps) {
			d.Audit = []*fakeAuditor{atLeader, atFollower}[turn]
			turn++
		})
		follower.do("PUT", "/v1/kv/a", "v")
		follower.do("DELETE", "/admin/members/n3", "")
		if got := inState(leader); got != "n1 loopback PUT /v1/kv/a: 200 0" {
			t.Errorf("command: %s", got)
		}
		if got := atLeader.take(); got != "secure loopback DELETE /admin/members/n3: 200 0" {
			t.Errorf("leader: %s", got)
		}
		if from := atLeader.last.From; from == "" || strings.HasPrefix(from, follower.addr) {
			t.Errorf("from %q", from)
		}
		var put *state.AuditRecord
		for r := range leader.fake.View().AuditAfter(0) {
			put = r
		}
		if put == nil || put.From != atLeader.last.From { // one connection of the test's client
			t.Errorf("the write came from %+v, the removal from %q", put, atLeader.last.From)
		}
		if got := atFollower.take(); got != "" {
			t.Errorf("follower: %s", got)
		}
		// Refused before it is sent on, and where there is no leader.
		follower.do("PUT", "/v1/kv/a?x=1", "v")
		if got := atFollower.take(); got != "record loopback PUT /v1/kv/a: 400 4400" {
			t.Errorf("follower refused: %s", got)
		}
		follower.fake.lead("", 3)
		follower.waitForLeaderView()
		follower.do("DELETE", "/admin/members/n3", "")
		if got := atFollower.take(); got != "secure loopback DELETE /admin/members/n3: 503 4002" {
			t.Errorf("no leader: %s", got)
		}
		// A forwarded request is not recorded by a node that knows no leader: the sender tries another node.
		leader.fake.lead("", 3)
		leader.waitForLeaderView()
		leader.do("DELETE", "/admin/members/n3", "", forwardedAs("operator loopback")...)
		if got := atLeader.take(); got != "" {
			t.Errorf("at a node that was taken for the leader: %s", got)
		}
	})
}

// A call that says that a node has forwarded it is recorded as any other, unless a node has: that one retries it.
func TestClaimedForwardingIsRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		trusted := newAuthority(t)
		f := newFakeCluster("n1", false)
		aud := &fakeAuditor{}
		s := bareServerOf(t, f, withAudit(aud), func(d *Deps) {
			d.ClientRoots = func() *x509.CertPool { return trusted.pool }
		})
		for uri, headers := range map[string][]string{
			"operator/ann": forwardedBy("n2"), "node/n2": forwardedAs("operator ann"),
		} {
			r := httptest.NewRequest("POST", "http://127.0.0.1/admin/members", strings.NewReader(
				`{"id":"n9","raft_address":"h:1","http_address":"h:2","reason":"x"}`))
			r.RemoteAddr, r.TLS = someAddress, trusted.certified(t, "northstar://test/"+uri, time.Hour)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			w := serveBriefly(s, r)
			got := aud.take()
			if recorded := got != ""; w.Code != http.StatusServiceUnavailable || recorded != (uri == "operator/ann") {
				t.Errorf("%s: %d, recorded: %q", uri, w.Code, got)
			}
		}
	})
}

func TestAuditPages(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), withAudit(&fakeAuditor{}))
		for i := range 5 {
			n.do("PUT", fmt.Sprintf("/v1/kv/k%d", i), "v")
		}
		n.fake.apply(state.Command{Kind: state.KindAudit, Now: 9, AuditBatch: &state.AuditBatch{
			Producer: "b", First: 1,
			Lost: 2, Records: []state.AuditRecord{{
				Class: state.AuditOperators, At: 8e9, Node: "n2", Who: "ann", Role: "operator", From: "h:1",
				What:    "POST /admin/transfer",
				Request: `{"reason":"x"}`, Reason: "x", Status: 409, Code: cluster.CodeTransferFailed, Detail: "no", DryRun: true, Delayed: true,
			}},
		}})
		page := func(query string) (out apiv1.Audit) {
			t.Helper()
			r := n.do("GET", "/admin/audit"+query, "")
			if r.status != 200 {
				t.Fatalf("%s: %d %s", query, r.status, r.body)
			}
			if err := json.Unmarshal([]byte(r.body), &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		whats := func(p apiv1.Audit) string {
			var all []string
			for _, it := range p.Items {
				all = append(all, it.Seq+strings.TrimPrefix(it.What, "PUT /v1/kv/"))
			}
			return strings.Join(all, " ") + " >" + p.Next
		}
		for query, want := range map[string]string{
			"":                          "1k0 2k1 3k2 4k3 5k4 6POST /admin/transfer >6",
			"?limit=2":                  "5k4 6POST /admin/transfer >6",
			"?since=1&limit=2":          "2k1 3k2 >3",
			"?since=0&class=operators":  "6POST /admin/transfer >6",
			"?class=clients&limit=1":    "5k4 >6",
			"?who=ann":                  "6POST /admin/transfer >6",
			"?since=6":                  " >6",
			"?since=99":                 " >99",
			"?consistency=stale&who=no": " >6",
		} {
			if got := whats(page(query)); got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		it := page("?who=ann").Items[0]
		if it.Result != "ERR_LEADER_TRANSFER_FAILED" || it.Request["reason"] != "x" || !it.Delayed || !it.DryRun ||
			it.Status != 409 || it.When.Unix() != 8 || it.Class != "operators" {
			t.Errorf("item %+v", it)
		}
		if p := page(""); p.Dropped.Lost != 2 || p.Items[0].Result != "ok" || p.Items[0].Class != "clients" {
			t.Errorf("page %+v", p)
		}
		n.do("GET", "/admin/audit?class=x", "").is(t, 400, cluster.CodeBadRequest)
		n.do("GET", "/admin/audit?since=x", "").is(t, 400, cluster.CodeBadRequest)
	})
}

// The audit log has the code and the name that the client got, also for what package state keeps with another code.
func TestAuditHasTheCodeOfTheAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), withAudit(&fakeAuditor{}))
		n.lead()
		for _, path := range []string{"/v1/kv/none", "/v1/nodes/none", "/v1/roles/none?session_id=" + n.session("s")} {
			n.do("DELETE", path, "").is(t, 404, cluster.CodeNotFound)
			var page apiv1.Audit
			if err := json.Unmarshal([]byte(n.do("GET", "/admin/audit?limit=1", "").body), &page); err != nil {
				t.Fatal(err)
			}
			if len(page.Items) != 1 {
				t.Fatalf("%s: %d items", path, len(page.Items))
			}
			it := page.Items[0]
			if !strings.HasPrefix(path, strings.TrimPrefix(it.What, "DELETE ")) || it.Status != 404 ||
				it.Code != int(cluster.CodeNotFound) || it.Result != "ERR_NOT_FOUND" {
				t.Errorf("%s: %+v", path, it)
			}
		}
	})
}
