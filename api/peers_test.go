package api

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// attachReport is a report that ends the session of a connection.
func attachReport(session, stream string) string {
	return `{"drop":[{"session_id":"` + session + `","stream_id":"` + stream + `","grace_ms":0}]}`
}

// post serves one POST with a JSON body. from is the address, headers come as pairs.
func post(s *Server, path, body, from, cert string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "http://127.0.0.1"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", apiv1.TypeJSON)
	r.RemoteAddr = from
	if cert != "" {
		clientCertificate(r, "northstar://test/"+cert, true)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// removeRecord leaves the record of a removed member.
func (f *fakeCluster) removeRecord(id cluster.NodeID) {
	f.addRecord(cluster.Member{ID: id, Lifecycle: cluster.Active})
	f.apply(state.Command{Kind: state.KindMemberRemove, Now: 1, MemberRemove: &state.MemberRemove{ID: id}})
}

// TestAttachReportsAreFromNodesOnly: a client that may report connections could end any session and free its role.
func TestAttachReportsAreFromNodesOnly(t *testing.T) {
	t.Parallel()
	data, tokens := tokenFile()
	const remote, here = "192.0.2.7:1234", "127.0.0.1:1234"
	for name, tc := range map[string]struct {
		tokens, insecure bool
		from, cert       string
		bearer           token.Role
		headers          []string
		want             int
	}{
		"a member":                         {from: remote, cert: "node/n2", want: 503}, // this test's sessions do not lead
		"a node that is no member":         {from: remote, cert: "node/n9", want: 403},
		"a removed node":                   {from: remote, cert: "node/n4", want: 403},
		"a client's certificate":           {from: remote, cert: "client/c", want: 403},
		"an operator's certificate":        {from: remote, cert: "operator/o", want: 403},
		"a client's token":                 {tokens: true, from: remote, bearer: token.Client, want: 403},
		"an operator's token":              {tokens: true, from: remote, bearer: token.Operator, want: 403},
		"a client's token that says peer":  {tokens: true, from: remote, bearer: token.Client, headers: forwardedBy("n2"), want: 403},
		"nobody":                           {tokens: true, from: remote, headers: forwardedBy("n2"), want: 401},
		"a local peer without tokens":      {from: here, headers: forwardedBy("n2"), want: 503},
		"a local caller without tokens":    {from: here, want: 403},
		"a local peer with tokens":         {tokens: true, from: here, bearer: token.Client, headers: forwardedBy("n2"), want: 503},
		"a local peer with a weak token":   {tokens: true, from: here, bearer: token.Observer, headers: forwardedBy("n2"), want: 403},
		"a local peer with tokens, unsaid": {tokens: true, from: here, headers: forwardedBy("n2"), want: 401},
		"insecure":                         {insecure: true, from: remote, headers: forwardedBy("n2"), want: 503},
	} {
		s := bareServer(t, func(d *Deps) {
			d.Insecure = tc.insecure
			if tc.tokens {
				withTokens(data)(d)
			}
			d.Reads.(*fakeCluster).removeRecord("n4")
		})
		headers := tc.headers
		if tc.bearer != "" {
			headers = append(headers, "Authorization", "Bearer "+tokens[tc.bearer])
		}
		if w := post(s, apiv1.PathAttached, attachReport("s", "x"), tc.from, tc.cert, headers...); w.Code != tc.want {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, tc.want, w.Body)
		}
	}
}

func forwardedBy(node string) []string { return []string{apiv1.HeaderForwardedBy, node} }

// TestForwardingNeedsAMember: the certificate of a node that is not, or no longer, a member asserts no identity.
func TestForwardingNeedsAMember(t *testing.T) {
	t.Parallel()
	for node, want := range map[string]int{
		"n2": 200, // in the configuration, without a record
		"n5": 200, // has a record: it is joining
		"n4": 403, // removed
		"n9": 403, // never a member
	} {
		aud := &fakeAuditor{}
		s := bareServer(t, withAudit(aud), func(d *Deps) {
			f := d.Reads.(*fakeCluster)
			f.removeRecord("n4")
			f.addRecord(cluster.Member{ID: "n5", Lifecycle: cluster.Joining})
		})
		w := post(s, "/admin/nodes/n2/drain", "{}", "192.0.2.1:5", "node/"+node, forwardedAs("operator ann")...)
		if w.Code != want {
			t.Errorf("%s forwards: %d, want %d: %s", node, w.Code, want, w.Body)
		}
		who := map[int]string{200: "ann", 403: node}[want]
		if !strings.Contains(aud.take(), " "+who+" POST") {
			t.Errorf("%s: recorded as of %q, want %q", node, aud.last.Who, who)
		}
		// The header names n2: the certificate decides.
		if rec := wireAudit(&aud.last); want == 200 && (rec.ForwardedBy != node || rec.From != "192.0.2.1:5") {
			t.Errorf("%s: recorded from %q, forwarded by %q", node, rec.From, rec.ForwardedBy)
		} else if want == 403 && rec.ForwardedBy != "" {
			t.Errorf("%s: recorded as forwarded by %q", node, rec.ForwardedBy)
		}
	}
}

// TestRemovedNodeDoesNotAddItself: an operator removed it, and only an operator takes it back.
func TestRemovedNodeDoesNotAddItself(t *testing.T) {
	t.Parallel()
	for cert, want := range map[string]int{"node/n4": 403, "operator/ann": 200} {
		s := bareServer(t, func(d *Deps) {
			d.Reads.(*fakeCluster).removeRecord("n4")
		})
		body := `{"id":"n4","raft_address":"h:1","http_address":"h:2"}`
		if w := post(s, apiv1.PathMembers, body, "192.0.2.1:5", cert); w.Code != want {
			t.Errorf("%s adds n4: %d, want %d: %s", cert, w.Code, want, w.Body)
		}
	}
}

// TestRefusedRenewIsRecorded: keep-alives are not recorded, but who tries one without the right to is.
func TestRefusedRenewIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, tokens := tokenFile()
		aud := &fakeAuditor{}
		s := bareServer(t, withTokens(data), withAudit(aud))
		for _, path := range []string{"/v1/sessions/s/renew", apiv1.PathRenew, apiv1.PathAttached} {
			w := post(s, path, "{}", "192.0.2.1:5", "", "Authorization", "Bearer "+tokens[token.Observer])
			want := "record the-observer POST " + path + ": 403 4403"
			if got := aud.take(); w.Code != 403 || got != want || aud.last.Class != state.AuditClients {
				t.Errorf("%d, recorded %q, want %q", w.Code, got, want)
			}
		}
	})
}
