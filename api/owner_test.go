package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// identities is a token file with two clients, an observer and an operator, and the headers of each.
func identities() (data []byte, as map[string][]string) {
	as = map[string][]string{}
	var b strings.Builder
	for name, role := range map[string]token.Role{
		"alice": token.Client, "bob": token.Client, "watcher": token.Observer, "boss": token.Operator,
	} {
		tok, hash := token.New()
		as[name] = []string{"Authorization", "Bearer " + tok, asJSON, apiv1.TypeJSON}
		fmt.Fprintf(&b, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", name, role, hash)
	}
	return []byte(b.String()), as
}

// TestSessionsBelongToTheirMakers: no other client renews, attaches, uses or ends a session, through any node.
func TestSessionsBelongToTheirMakers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		leader, follower := attachedPair(t, withTokens(data))
		for _, n := range []*node{leader, follower} {
			made := func() string {
				return into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{"ttl_ms":60000}`,
					as["alice"]...)).SessionID
			}
			id := made()
			bobs := into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{}`, as["bob"]...)).SessionID
			// Her role is one that he wants, and her node a name that he may not take.
			into[apiv1.Role](t, n.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+id+`"}`, as["alice"]...))
			uses := []struct{ method, path, body string }{
				{"POST", "/v1/sessions/" + id + "/renew", ""},
				{"POST", apiv1.PathRenew, `{"session_ids":["` + bobs + `","` + id + `"]}`},
				{"GET", "/v1/sessions/" + id + "/attach", ""},
				{"GET", "/v1/sessions/" + id + "/attach?hold=false&grace_ms=1000", ""},
				{"POST", "/v1/roles/r/campaign", `{"session_id":"` + id + `"}`},
				{"POST", "/v1/roles/other/campaign", `{"session_id":"` + id + `","wait_ms":1000}`},
				{"DELETE", "/v1/roles/r?session_id=" + id, ""},
				{"PUT", "/v1/nodes/x", `{"session_id":"` + id + `"}`},
				{"DELETE", "/v1/sessions/" + id, ""},
			}
			for _, u := range uses {
				n.do(u.method, u.path, u.body, as["bob"]...).is(t, 403, cluster.CodeForbidden)
			}
			n.do("PUT", "/v1/kv/k?ttl_session="+id, "v", as["bob"][:2]...).is(t, 403, cluster.CodeForbidden)
			if r, _ := leader.fake.View().Role("r"); !leader.lives(id) || r.Current.Session != id {
				t.Fatalf("lives: %v, role %+v", leader.lives(id), r)
			}
			if r := n.do("PUT", "/v1/kv/k?ttl_session="+id, "v", as["alice"][:2]...); r.status != 200 {
				t.Errorf("her own key: %+v", r)
			}
			for _, u := range []int{0, 4, 7, 8} { // what she may do herself, and an operator
				if r := n.do(uses[u].method, uses[u].path, uses[u].body, as["alice"]...); r.status != 200 {
					t.Errorf("alice %s %s: %d %s", uses[u].method, uses[u].path, r.status, r.body)
				}
			}
			id = made()
			if r := n.do("DELETE", "/v1/sessions/"+id, "", as["boss"]...); r.status != 200 || leader.lives(id) {
				t.Errorf("an operator ends it: %+v", r)
			}
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+bobs, "", as["bob"]...))
		}
	})
}

// TestMayUse: an identity is a role and a name. A session without an owner is any client's. A lease of an earlier build
// for a certificate without a usable common name is any such client's.
func TestMayUse(t *testing.T) {
	t.Parallel()
	const digest = "client cert.00112233445566778899aabbccddeeff"
	for _, tc := range []struct {
		owner, caller string
		lease         int64
		want          bool
	}{
		{"client alice", "client alice", 0, true},
		{"client alice", "client bob", 0, false},
		{"client alice", "operator bob", 0, true},
		{"operator alice", "client alice", 0, false},
		{"", "client bob", 0, true},
		{"client cert", digest, 7, true},
		{"client cert-", digest, 7, true},
		{"client cert", digest, 0, false},
		{"operator cert", digest, 7, false},
		{"client cert-app", digest, 7, false},
		{"client cert.00112233445566778899aabbccddee00", digest, 7, false},
		{"client cert", "client alice", 7, false},
		{"client cert", "client cert-app", 7, false},
	} {
		caller, ok := makeIdentity(strings.Cut(tc.caller, " "))
		if got := caller.mayUse(&state.Session{Owner: tc.owner, Lease: tc.lease}); !ok || got != tc.want {
			t.Errorf("%q uses a session of %q, lease %d: %v, want %v", tc.caller, tc.owner, tc.lease, got, tc.want)
		}
	}
}

// TestNewLeaderKnowsTheOwner: a new leader that has not applied a session's creation does so before it decides.
func TestNewLeaderKnowsTheOwner(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		n := startServer(t, newFakeCluster("n1", true), withTokens(data))
		n.lead()
		nonce := strings.Repeat("0", 16)
		id := fmt.Sprintf("%0*x%s", state.SessionRevisionDigits, n.fake.View().Revision()+1, nonce)
		n.fake.set(func() {
			n.fake.barrier = func(context.Context) error {
				n.fake.apply(state.Command{Kind: state.KindSessionCreate, Now: 1, SessionCreate: &state.SessionCreate{
					Nonce: nonce, TTL: time.Minute, Owner: "client alice",
				}})
				return nil
			}
		})
		n.do("POST", "/v1/sessions/"+id+"/renew", "", as["bob"]...).is(t, 403, cluster.CodeForbidden)
	})
}

// TestForeignUseOfSessionsIsRecorded: what another identity does to a session, or tries to, is in the audit log.
func TestForeignUseOfSessionsIsRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		aud := &fakeAuditor{}
		n, _ := attachedPair(t, withTokens(data), withAudit(aud))
		id := into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{}`, as["alice"]...)).SessionID
		attach := "/v1/sessions/" + id + "/attach"
		n.do("POST", "/v1/sessions/"+id+"/renew", "", as["bob"]...)
		n.do("GET", attach, "", as["bob"]...)
		hers := n.stream(attach, as["alice"]...)
		hers.alive()
		bosss := n.stream(attach, as["boss"]...)
		bosss.alive()
		want := fmt.Sprintf("record bob POST /v1/sessions/%s/renew: 403 4403; record bob GET %s: 403 4403; record boss GET %s: 200 0",
			id, attach, attach)
		if got := aud.take(); got != want {
			t.Errorf("recorded %s\nwant %s", got, want)
		}
		hers.resp.Body.Close()
		bosss.resp.Body.Close()
		eventually(t, func() bool { return !n.lives(id) })
	})
}

// TestReportsUnderAToken: nodes without TLS report attached connections under the client's token, so with it a client
// could report, too. It ends only what is its own.
func TestReportsUnderAToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		n, _ := attachedPair(t, withTokens(data))
		id := into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{}`, as["alice"]...)).SessionID
		report := func(who string) reply {
			return n.do("POST", apiv1.PathAttached, attachReport(id, "invented"),
				append(forwardedBy("n2"), as[who]...)...)
		}
		report("bob").is(t, 403, cluster.CodeForbidden)
		if !n.lives(id) {
			t.Fatal("another client has ended it")
		}
	})
}

// TestAttachWaitsForTheSession: a follower that has not applied a session's creation cannot know whose it is. It has to
// wait, because the leader believes its report.
func TestAttachWaitsForTheSession(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.lead()
		id := leader.sessionAs(append(forwardedAs("client alice"), asJSON, apiv1.TypeJSON))
		s, _ := leader.fake.View().Session(id)
		status := make(chan int, 1)
		go func() {
			req, err := http.NewRequest("GET", "http://"+follower.addr+"/v1/sessions/"+id+"/attach", nil)
			if err != nil {
				t.Error(err)
			}
			for as := forwardedAs("client bob"); len(as) > 0; as = as[2:] {
				req.Header.Set(as[0], as[1])
			}
			resp, err := follower.http.Do(req)
			if err != nil {
				t.Error(err)
			}
			status <- resp.StatusCode
			resp.Body.Close()
		}()
		synctest.Wait()
		nonce := id[state.SessionRevisionDigits:]
		for follower.fake.View().Revision() < leader.fake.View().Revision() { // it catches up
			again := state.SessionCreate{Nonce: nonce, TTL: s.TTL, Owner: s.Owner}
			follower.fake.apply(state.Command{Kind: state.KindSessionCreate, Now: 1, SessionCreate: &again})
		}
		if got := <-status; got != 403 {
			t.Errorf("the attachment of another client: %d", got)
		}
		if !leader.lives(id) {
			t.Error("it has ended")
		}
	})
}

// TestRenewLeases_OfAnother: the leases before one of another identity are renewed, and then the call is refused.
func TestRenewLeases_OfAnother(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		n, _ := attachedPair(t, withTokens(data))
		var leases []*state.Session
		for _, who := range []string{"alice", "alice", "bob", "alice"} {
			id := into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{}`, as[who]...)).SessionID
			s, _ := n.fake.View().Session(id)
			leases = append(leases, s)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/x", nil)
		r.Header.Set(as["alice"][0], as["alice"][1])
		call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "x", Role: token.Client})
		if err != nil {
			t.Fatal(err)
		}
		defer call.Leave(nil)
		left, err := call.RenewLeases(t.Context(), leases)
		ttls := []time.Duration{leases[0].TTL, leases[1].TTL}
		if !cluster.IsCode(err, cluster.CodeForbidden) || !slices.Equal(left, ttls) {
			t.Errorf("%v, %v", left, err)
		}
		left, err = call.RenewLeases(t.Context(), leases[2:])
		if !cluster.IsCode(err, cluster.CodeForbidden) || left != nil {
			t.Errorf("the first is of another: %v, %v", left, err)
		}
	})
}

// certifiedCalls is a leader whose clients have certificates without a common name, and a function that begins a call
// of the client with a URI.
func certifiedCalls(t *testing.T) (n *node, begin func(uri string) *Call) {
	t.Helper()
	trusted := newAuthority(t)
	n = startServer(t, newFakeCluster("n1", true), func(d *Deps) {
		d.ClientRoots, d.CertRole = func() *x509.CertPool { return trusted.pool }, token.Client
	})
	n.lead()
	return n, func(uri string) *Call {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/x", nil)
		r.RemoteAddr, r.TLS = someAddress, trusted.certified(t, uri, time.Hour)
		call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "x", Role: token.Client})
		if err != nil {
			t.Fatal(err)
		}
		return call
	}
}

// TestCall_CertificatesWithoutCommonNames: clients whose certificates have no identity of this cluster are told apart
// by the names that the certificates have. Only the client that made a lease may revoke it, also with a new key.
func TestCall_CertificatesWithoutCommonNames(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, begin := certifiedCalls(t)
		propose := func(uri string, cmd state.Command) error {
			call := begin(uri)
			_, err := call.Propose(t.Context(), cmd)
			call.Leave(err)
			return err
		}
		const owner, other = "spiffe://elsewhere/a", "spiffe://elsewhere/b"
		grant := state.LeaseGrant{ID: 7, TTL: 3600}
		if err := propose(owner, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &grant}); err != nil {
			t.Fatal(err)
		}
		revoke := func(by string) error {
			return propose(by, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 7}})
		}
		if err := revoke(other); !errors.Is(err, state.LeaseNotOwned) {
			t.Errorf("the end of another's lease: %v", err)
		}
		if err := revoke(owner); err != nil {
			t.Errorf("the end of the own lease: %v", err)
		}
	})
}

// TestCall_LeasesOfAnEarlierBuild: a client whose certificate has no common name keeps its lease through an upgrade
// from a build that did not tell such clients apart. It renews, uses and ends it.
func TestCall_LeasesOfAnEarlierBuild(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n, begin := certifiedCalls(t)
		for i, owner := range []string{"client cert", "client cert-", "client cert-app"} {
			id := int64(i + 7)
			lease := n.fake.apply(state.Command{
				Kind: state.KindLeaseGrant, Now: 1, LeaseGrant: &state.LeaseGrant{ID: id, TTL: 3600, Owner: owner},
			}).Session
			put := []state.Op{{Put: &state.TxnPut{Key: "k", Lease: id}}}
			call := begin("spiffe://elsewhere/a")
			left, renewed := call.RenewLeases(t.Context(), []*state.Session{lease})
			_, used := call.Propose(t.Context(), state.Command{Kind: state.KindTxn, Txn: &state.Txn{Success: put}})
			_, nested := call.Propose(t.Context(), state.Command{Kind: state.KindTxn, Txn: &state.Txn{
				Compare: []state.Compare{{Key: "none", Number: 1}},
				Failure: []state.Op{{Txn: &state.Txn{Success: put}}},
			}})
			_, ended := call.Propose(t.Context(), state.Command{
				Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: id},
			})
			call.Leave(nil)
			if owner == "client cert-app" {
				for _, err := range []error{used, nested, ended} {
					if !errors.Is(err, state.LeaseNotOwned) {
						t.Errorf("the lease of another: %v", err)
					}
				}
				continue
			}
			if err := errors.Join(renewed, used, nested, ended); err != nil || left[0] != time.Hour {
				t.Errorf("a lease of %q: %v left, %v", owner, left, err)
			}
		}
	})
}

// TestCall_EndsOfOthersAreRecorded: an operator's call of another protocol that ends another's lease, or whose
// connection may, has an audit record. One that ends the operator's own lease has none.
func TestCall_EndsOfOthersAreRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		aud := &fakeAuditor{}
		n := startServer(t, newFakeCluster("n1", true), withTokens(data), withAudit(aud))
		n.lead()
		call := func(name, who string) *Call {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/"+name, nil)
			r.RemoteAddr = "127.0.0.1:5"
			r.Header.Set(as[who][0], as[who][1])
			c, err := n.Begin(t.Context(), r, nil, CallSpec{Name: name, Role: token.Client, Write: true})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		propose := func(name, who string, cmd state.Command) state.Result {
			c := call(name, who)
			result, err := c.Propose(t.Context(), cmd)
			c.Leave(err)
			if err != nil && !cluster.IsCode(err, cluster.CodeForbidden) {
				t.Errorf("%s by %s: %v", name, who, err)
			}
			return result
		}
		for id, who := range map[int64]string{1: "alice", 2: "boss", 3: "alice", 4: "boss"} {
			lease := propose("grant", who, state.Command{
				Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id, TTL: 60},
			}).Session
			if id > 2 {
				c := call("hold", "boss")
				detach, err := c.HoldLease(t.Context(), lease.ID, time.Second)
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]string{"alice": "record boss POST /hold: 200 0"}[who]
				if got := aud.take(); got != want {
					t.Errorf("%s's lease is held: %q", who, got)
				}
				detach(false)
				c.Leave(nil)
			}
		}
		for id, who := range map[int64]string{1: "boss", 2: "boss", 3: "alice"} {
			propose("revoke", who, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: id}})
		}
		var recorded []string
		for r := range n.fake.View().AuditAfter(0) {
			recorded = append(recorded, r.Who+" "+r.What+" "+r.Request)
		}
		if !slices.Equal(recorded, []string{`boss POST /revoke {"ID":"1"}`}) || aud.take() != "" {
			t.Errorf("recorded %q", recorded)
		}
	})
}
