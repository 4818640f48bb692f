package openapi_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"northstar/api/openapi"
)

// documentedRoutes returns the router over the paths of the committed document.
func documentedRoutes(f *testing.F) *openapi.Router[struct{}] {
	f.Helper()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		f.Fatal(err)
	}
	var document struct {
		Paths map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &document); err != nil || len(document.Paths) == 0 {
		f.Fatalf("%d paths: %v", len(document.Paths), err)
	}
	var rows []openapi.Route[struct{}]
	for path := range document.Paths {
		rows = append(rows, openapi.Route[struct{}]{
			Pattern: path, Method: http.MethodGet, CatchAll: path == "/v1/kv/{key}",
		})
	}
	return openapi.NewRouter(rows)
}

func FuzzKeyPath(f *testing.F) {
	for _, s := range []string{
		"/v1/kv/a", "/v1/kv/a//b/../c%2Fd", "/v1/kv/", "/v1/kv", "/v1%2fkv/a", "/v1/kv/%zz",
		"/v1/kv/%ff", "//v1/kv/a", "/v1/kv/é", "/admin/members/a%2Fb",
	} {
		f.Add(s)
	}
	rt := documentedRoutes(f)
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") {
			return
		}
		res, value := rt.Find(u.EscapedPath(), u.Path)
		rest, isKey := strings.CutPrefix(u.EscapedPath(), "/v1/kv/")
		if isKey != (res != nil && res.Pattern == "/v1/kv/{key}") {
			t.Fatalf("%q was routed to %+v", path, res)
		}
		if !isKey {
			return
		}
		want, err := url.PathUnescape(rest)
		if err != nil || value != want {
			t.Fatalf("%q: key %q, want %q (%v)", path, value, want, err)
		}
	})
}
