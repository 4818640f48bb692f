package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"northstar/state"
)

// What an answer about sessions takes does not grow with their keys: these are counted, and not collected.
func TestSessions_KeysAreNotCollected(t *testing.T) { //nolint:paralleltest // it measures the whole process
	f := newFakeCluster("n1", true)
	s, err := New(testDeps(f))
	if err != nil {
		t.Fatal(err)
	}
	id := f.apply(state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
		Nonce: "abcdefgh", Name: "s", TTL: time.Minute,
	}}).Session.ID
	const origin = "http://127.0.0.1"
	requests := map[string]func() *http.Request{
		"one":  func() *http.Request { return httptest.NewRequest("GET", origin+"/v1/sessions/"+id, nil) },
		"list": func() *http.Request { return httptest.NewRequest("GET", origin+"/v1/sessions", nil) },
		"dry run": func() *http.Request {
			return httptest.NewRequest("DELETE", origin+"/v1/sessions/"+id, strings.NewReader(`{"dry_run":true}`))
		},
		"dry run of many": func() *http.Request {
			return httptest.NewRequest("DELETE", origin+"/v1/sessions?prefix=s", strings.NewReader(`{"dry_run":true}`))
		},
	}
	const runs = 10
	took := func(request func() *http.Request, want string) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			w, r := httptest.NewRecorder(), request()
			r.RemoteAddr = "127.0.0.1:5"
			r.Header.Set("Content-Type", "application/json")
			if s.ServeHTTP(w, r); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
				t.Fatalf("%d %s, want %s", w.Code, w.Body, want)
			}
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / runs
	}
	without := map[string]uint64{}
	for name, request := range requests {
		without[name] = took(request, id)
	}
	const keys = 20_000
	puts := make([]state.Command, keys)
	for i := range puts {
		puts[i] = state.Command{Kind: state.KindPut, Put: &state.Put{Key: fmt.Sprint("k", i), Session: id}}
	}
	f.state.Apply(f.state.View().AppliedIndex()+1, 1, puts)
	for name, request := range requests {
		if got := took(request, fmt.Sprintf(`"keys":%d`, keys)); got > without[name]+keys {
			t.Errorf("%s: %d bytes with %d keys, %d without", name, got, keys, without[name])
		}
	}
}
