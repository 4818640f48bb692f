package api

import (
	"net/http/httptest"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// TestMemberOrigin: the page of a member may call this node, also to change something. A page of any other origin may
// not, and learns nothing.
func TestMemberOrigin(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n2", HTTPAddress: "192.0.2.2:7701"})
		f.addRecord(cluster.Member{ID: "n4", HTTPAddress: "192.0.2.4:80"})
		f.addRecord(cluster.Member{ID: "n9", HTTPAddress: "192.0.2.9:7701", Removed: true})
		s := bareServerOf(t, f)
		call := func(method, path, origin string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, "http://127.0.0.1:7701"+path, strings.NewReader("{}"))
			r.RemoteAddr = loopback
			r.Header.Set("Origin", origin)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			if method == "OPTIONS" {
				r.Header.Set("Access-Control-Request-Method", "POST")
			}
			return serveBriefly(s, r)
		}
		for origin, allowed := range map[string]bool{
			"http://192.0.2.2:7701": true, "http://192.0.2.4": true,
			"https://192.0.2.2:7701": false, "http://192.0.2.2:7702": false, "http://192.0.2.9:7701": false,
			"http://192.0.2.4:80": false, "http://evil.example": false, "null": false,
		} {
			for call, w := range map[string]*httptest.ResponseRecorder{
				"preflight": call("OPTIONS", "/admin/transfer", origin),
				"read":      call("GET", "/v1/kv/k", origin),
				"change":    call("PUT", "/v1/kv/k2", origin),
			} {
				named := w.Header().Get("Access-Control-Allow-Origin")
				if (named == origin) != allowed || !allowed && named != "" {
					t.Errorf("%s from %s: the response names %q", call, origin, named)
				}
				want := map[string]int{"preflight": 405, "read": 200, "change": 403}[call]
				if allowed {
					want = map[string]int{"preflight": 204, "read": 200, "change": 200}[call]
				}
				if w.Code != want {
					t.Errorf("%s from %s: %d, want %d: %s", call, origin, w.Code, want, w.Body)
				}
			}
		}
	})
}

// TestMemberOrigin_TLS: the scheme of an origin is that of the request, and a browser leaves out its default port.
func TestMemberOrigin_TLS(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n2", HTTPAddress: "192.0.2.2:443"})
		s := bareServerOf(t, f)
		for origin, allowed := range map[string]bool{"https://192.0.2.2": true, "http://192.0.2.2:443": false} {
			r := httptest.NewRequest("GET", "https://192.0.2.1"+apiv1.PathLeader, nil)
			r.Header.Set("Origin", origin)
			named := serveBriefly(s, r).Header().Get("Access-Control-Allow-Origin")
			if (named == origin) != allowed {
				t.Errorf("%s: the response names %q", origin, named)
			}
		}
	})
}

// TestMemberOrigin_Localhost: a page of a member on this machine may have been opened as localhost.
func TestMemberOrigin_Localhost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n2", HTTPAddress: "127.0.0.1:7703"})
		f.addRecord(cluster.Member{ID: "n3", HTTPAddress: "192.0.2.3:7705"})
		f.addRecord(cluster.Member{ID: "n4", HTTPAddress: "localhost:7707"})
		s := bareServerOf(t, f)
		for origin, allowed := range map[string]bool{
			"http://localhost:7703": true, "http://127.0.0.1:7703": true, "http://127.0.0.1:7707": true,
			"http://localhost:7705": false, "http://localhost:7709": false, "https://localhost:7703": false,
		} {
			r := httptest.NewRequest("GET", "http://127.0.0.1:7701"+apiv1.PathLeader, nil)
			r.Header.Set("Origin", origin)
			named := serveBriefly(s, r).Header().Get("Access-Control-Allow-Origin")
			if (named == origin) != allowed {
				t.Errorf("%s: the response names %q", origin, named)
			}
		}
	})
}

// TestMemberOrigin_Policy: the page may connect to members, and an address cannot change the policy.
func TestMemberOrigin_Policy(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n2", HTTPAddress: "[2001:db8::2]:7701"})
		f.addRecord(cluster.Member{ID: "n4", HTTPAddress: "x; script-src *:1"})
		w := serveBriefly(bareServerOf(t, f), local("/"))
		policy := w.Header().Get("Content-Security-Policy")
		if !strings.Contains(policy, "connect-src 'self'") || !strings.Contains(policy, " http://[2001:db8::2]:7701") ||
			strings.Contains(policy, "script-src *") {
			t.Errorf("policy: %s", policy)
		}
	})
}
