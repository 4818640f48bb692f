package api

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// A stale read with a bound is served from a follower's own state only while that was known to be current within the
// bound. Otherwise it is linearizable.
func TestStaleReadWithABound(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.fake.put("k", "new")
		follower.fake.put("k", "old")
		for _, c := range []struct {
			contact time.Duration
			query   string
			want    string
		}{
			{20 * time.Millisecond, "", "old"},
			{20 * time.Millisecond, "&max_stale_ms=20", "old"},
			{20*time.Millisecond + 1, "&max_stale_ms=20", "new"},
			{20 * time.Millisecond, "&max_stale_ms=0", "new"},
			{time.Hour, "", "old"},
			{time.Hour, "&max_stale_ms=1000", "new"},
			{-1, "", "old"}, // it never heard from a leader
			{-1, "&max_stale_ms=1000", "new"},
		} {
			follower.fake.set(func() { follower.fake.st.StateAge = c.contact })
			r := follower.do("GET", "/v1/kv/k?consistency=stale"+c.query, "")
			stale := r.header.Get("X-Northstar-Last-Contact-Ms") != ""
			if r.status != 200 || r.body != c.want || stale != (c.want == "old") {
				t.Errorf("contact %v ago, %q: %+v, want %q", c.contact, c.query, r, c.want)
			}
		}
		// A node that has just started may lack what is committed, however recently it was in contact.
		follower.fake.set(func() {
			follower.fake.st.StateAge, follower.fake.st.CaughtUp, follower.fake.st.StartLogIndex = 0, false, 9
		})
		if r := follower.do("GET", "/v1/kv/k?consistency=stale&max_stale_ms=1000", ""); r.body != "new" {
			t.Errorf("a node that has not caught up: %+v", r)
		}
		for _, query := range []string{
			"max_stale_ms=5", "consistency=lease&max_stale_ms=5", "consistency=stale&max_stale_ms=-1",
			"consistency=stale&max_stale_ms=x", "consistency=stale&max_stale_ms=86400001",
		} {
			r := follower.do("GET", "/v1/kv/k?"+query, "").is(t, 400, cluster.CodeBadRequest)
			if !strings.HasPrefix(r.Detail, "max_stale_ms: ") {
				t.Errorf("%s: %s", query, r.Detail)
			}
		}
	})
}

// A leader may be cut off without knowing it yet: it answers after a read barrier.
func TestStaleReadWithABound_Leader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.put("k", "v")
		n := startServer(t, f)
		f.set(func() {
			f.barrier = func(context.Context) error { return cluster.Errorf(cluster.CodeNoLeader, "no quorum") }
		})
		if r := n.do("GET", "/v1/kv/k?consistency=stale", ""); r.status != 200 {
			t.Errorf("%+v", r)
		}
		r := n.do("GET", "/v1/kv/k?consistency=stale&max_stale_ms=60000", "").is(t, 503, cluster.CodeNoLeader)
		if !strings.HasPrefix(r.Detail, "max_stale_ms: ") || !strings.Contains(r.Detail, "no quorum") {
			t.Error(r.Detail)
		}
	})
}

// A deposed leader has just been in contact, by its step-down or a vote that it grants. Its state may be old.
func TestStaleReadWithABound_Deposed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		f.put("k", "v")
		n := startServer(t, f)
		f.lead("", 3)
		f.set(func() { f.st.LeaderContactAge, f.st.StateAge = 0, 5*time.Second })
		n.do("GET", "/v1/kv/k?consistency=stale&max_stale_ms=1000", "").is(t, 503, cluster.CodeNoLeader)
		if r := n.do("GET", "/v1/kv/k?consistency=stale", ""); r.header.Get("X-Northstar-Last-Contact-Ms") != "5000" {
			t.Errorf("%+v", r)
		}
	})
}

// Without a leader, such a read is held and then refused, with the reason.
func TestStaleReadWithABound_NoLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", false)
		f.put("k", "v")
		n := startServer(t, f)
		f.set(func() { f.st.StateAge = time.Second })
		if r := n.do("GET", "/v1/kv/k?consistency=stale&max_stale_ms=1000", ""); r.status != 200 || r.body != "v" {
			t.Errorf("%+v", r)
		}
		r := n.do("GET", "/v1/kv?consistency=stale&max_stale_ms=999", "").is(t, 503, cluster.CodeNoLeader)
		if !strings.HasPrefix(r.Detail, "max_stale_ms: this node's state may be older than 999 ms") || !r.Retryable {
			t.Errorf("%+v", r)
		}
	})
}

func TestQueue_Hold(t *testing.T) {
	hold := func(d *Deps) { d.Hold = 2 * time.Second }
	inBubble(t, newFakeCluster("n1", false), hold, func(_ *Server, ask func(string, string) *httptest.ResponseRecorder) {
		for path, want := range map[string]time.Duration{
			"/v1/kv/k": 2 * time.Second, "/v1/kv/k?timeout_ms=100": 100 * time.Millisecond,
		} {
			start := time.Now()
			if w := ask("PUT", path); w.Code != 503 || time.Since(start) != want {
				t.Errorf("%s: %d after %v, want %v", path, w.Code, time.Since(start), want)
			}
		}
	})
}
