package api

import (
	"net/http/httptest"
	"testing"

	"northstar/api/token"
)

// TestProxiedRequestIsNotLocal: a proxy on the node's machine makes requests of others.
func TestProxiedRequestIsNotLocal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := bareServer(t)
		for name, want := range map[string]int{"": 200, "Forwarded": 401, "X-Forwarded-For": 401} {
			for _, identity := range [][]string{nil, forwardedAs("operator ann")} {
				r := httptest.NewRequest("GET", "http://127.0.0.1/admin/snapshot", nil)
				r.RemoteAddr = "127.0.0.1:5"
				if name != "" {
					r.Header.Set(name, "")
				}
				for i := 0; i < len(identity); i += 2 {
					r.Header.Set(identity[i], identity[i+1])
				}
				if w := serveBriefly(s, r); w.Code != want {
					t.Errorf("with %q and %v: %d, want %d", name, identity, w.Code, want)
				}
			}
		}
	})
}

// TestPrivateViews: with auth.public = false the views of the cluster need an observer or a node; health checks do not.
func TestPrivateViews(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		for _, private := range []bool{false, true} {
			s := bareServer(t, withTokens(data), func(d *Deps) { d.PrivateViews = private })
			for path, sensitive := range map[string]bool{
				"/status": true, "/v1/cluster": true, "/metrics": true,
				"/leader": false, "/livez": false, "/readyz": false, "/health/leader": false, "/openapi.json": false,
			} {
				for caller, want := range map[string]int{"nobody": 401, "bad": 401, "observer": 200, "node": 200} {
					r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
					r.RemoteAddr = "127.0.0.1:5"
					switch caller {
					case "bad":
						r.Header.Set("Authorization", "Bearer no")
					case "observer":
						r.Header.Set("Authorization", "Bearer "+tokens[token.Observer])
					case "node":
						clientCertificate(r, "northstar://test/node/n2", true)
					}
					if !private || !sensitive {
						want = 200
					}
					if w := serveBriefly(s, r); w.Code != want {
						t.Errorf("private %v: GET %s by %s: %d, want %d", private, path, caller, w.Code, want)
					}
				}
			}
		}
	})
}
