package api

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"northstar/api/problem"
	"northstar/api/token"
	"northstar/cluster"
)

// One caller, by identity and by address, takes no more than a share of the watches and of the bytes of their keys.
// Then others find room, and so do operators when clients hold all that they may.
func TestWatchesHaveShares(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		n := startServer(t, newFakeCluster("n1", true), withTokens(file))
		share := func(who, address string) *Share {
			t.Helper()
			r := httptest.NewRequestWithContext(context.Background(), "POST", "http://127.0.0.1/x", nil)
			r.RemoteAddr = address
			r.Header.Set("Authorization", tokens[who])
			call, err := n.Begin(r.Context(), r, nil, CallSpec{Name: "x", Role: token.Observer})
			if err != nil {
				t.Fatal(err)
			}
			call.Leave(nil)
			return call.Watches()
		}
		all := func(s *Share, places, bytes int) (taken int) {
			for s.Take(places, bytes) == nil {
				taken++
			}
			return taken
		}
		alice, bob := share("alice", "10.0.0.1:1"), share("bob", "10.0.0.2:1")
		if got := all(alice, 1, 0); got != maxCallWatches/2 {
			t.Errorf("one caller has taken %d watches", got)
		}
		for name, s := range map[string]*Share{
			"the same identity": share("alice", "10.0.0.3:1"), "the same address": share("bob", "10.0.0.1:1"),
		} {
			if err := s.Take(1, 0); !cluster.IsCode(err, cluster.CodeBusy) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := all(bob, 1, 0); got != maxCallWatches/2 {
			t.Errorf("another caller has taken %d watches", got)
		}
		if err := share("root", "10.0.0.1:1").Take(1, 1); err != nil {
			t.Errorf("an operator: %v", err)
		}
		alice.Give(maxCallWatches/2, 0)
		if got := all(alice, 1, maxWatchKeys/64); got != 32 {
			t.Errorf("one caller has taken %d keys of a 64th of the bytes", got)
		}
		if alice.places.Load() != maxCallWatches/2+32+1 {
			t.Errorf("%d watches are taken", alice.places.Load())
		}
	})
}

// One caller's requests that wait for a leader leave places to others.
func TestQueue_OneCallersShare(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"reads":             "/v1/kv/k?timeout_ms=1000",
		"attached sessions": "/v1/sessions/0000000000000000abcdefgh/attach",
	} {
		virtually(t, name, func(t *testing.T) {
			file, tokens := limitedTokens(t)
			n := startServer(t, newFakeCluster("n1", false), withTokens(file), func(d *Deps) {
				d.Limits.QueuedForLeader, d.TimeoutMax = 8, 5*time.Second
			})
			codes := make(chan string, 10)
			ask := func(who, address, method, path string) {
				r := httptest.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader(""))
				r.RemoteAddr = address
				r.Header.Set("Authorization", tokens[who])
				w := httptest.NewRecorder()
				n.ServeHTTP(w, r)
				p, _ := problem.Decode(w.Code, w.Header(), w.Body.Bytes())
				codes <- fmt.Sprintf("%s %s %d", who, method, p.Code)
			}
			for range 8 {
				go ask("alice", "10.0.0.1:1", "GET", path)
			}
			eventually(t, func() bool { return n.queued.Load() == 6 && len(codes) == 2 })
			go ask("root", "10.0.0.1:1", "GET", "/v1/kv/k?timeout_ms=1000")
			go ask("bob", "10.0.0.2:1", "PUT", "/v1/kv/k?timeout_ms=1000")
			eventually(t, func() bool { return n.queued.Load() == 8 })
			counts := map[string]int{}
			for range 10 {
				counts[<-codes]++
			}
			want := map[string]int{"alice GET 4017": 2, "alice GET 4002": 6, "root GET 4002": 1, "bob PUT 4002": 1}
			if !maps.Equal(counts, want) {
				t.Errorf("%v, want %v", counts, want)
			}
			if n.queued.Load() != 0 {
				t.Errorf("%d places are taken", n.queued.Load())
			}
		})
	}
}
