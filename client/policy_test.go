package client

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"northstar/api/apiv1"
)

func TestPickLeader(t *testing.T) {
	t.Parallel()
	at := time.Now()
	claim := func(endpoint, id, by string, term uint64) leaderReport {
		return leaderReport{endpoint: endpoint, leader: "http://" + id, info: apiv1.Leader{
			LeaderID: id, ObservedBy: by, Term: term,
		}, askedAt: at}
	}
	later := claim("http://n1", "n1", "n1", 4)
	later.askedAt = at.Add(2)
	for name, tc := range map[string]struct {
		reports  []leaderReport
		suspects map[string]time.Time
		want     string
	}{
		"no reports":        {nil, nil, ""},
		"one claims itself": {[]leaderReport{claim("http://n1", "n1", "n1", 4)}, nil, "http://n1"},
		"highest term wins": {
			[]leaderReport{claim("http://n1", "n1", "n1", 4), claim("http://n2", "n3", "n2", 5)}, nil, "http://n3",
		},
		"own claim by another name": {
			[]leaderReport{claim("http://n2", "n1", "n2", 4), claim("http://gateway:1", "n1", "n1", 4)},
			nil,
			"http://gateway:1",
		},
		"failed, still named": {
			[]leaderReport{claim("http://n2", "n1", "n2", 4)}, map[string]time.Time{"http://n1": at}, "",
		},
		"failed, an older claim": {
			[]leaderReport{claim("http://n1", "n1", "n1", 4)}, map[string]time.Time{"http://n1": at.Add(1)}, "",
		},
		"failed, no lower term instead": {[]leaderReport{
			claim("http://n2", "n1", "n2", 4), claim("http://n3", "n3", "n3", 3),
		}, map[string]time.Time{"http://n1": at}, ""},
		"failed, and back": {[]leaderReport{later}, map[string]time.Time{"http://n1": at.Add(1)}, "http://n1"},
	} {
		if got := pickLeader(tc.reports, tc.suspects, ""); got.leader != tc.want {
			t.Errorf("%s: %q, want %q", name, got.leader, tc.want)
		}
	}
	// One node under two addresses is one leader. Another node is followed from either address.
	both := []leaderReport{claim("http://n1", "n1", "n1", 4), claim("http://gateway:1", "n1", "n1", 4)}
	next := append([]leaderReport{claim("http://n2", "n2", "n2", 5)}, both...)
	for _, current := range []string{"http://n1", "http://gateway:1"} {
		for range 2 {
			slices.Reverse(both)
			if got := pickLeader(both, nil, current); got.leader != current {
				t.Errorf("%q after %q, which reports itself still", got.leader, current)
			}
			slices.Reverse(next)
			if got := pickLeader(next, nil, current); got.leader != "http://n2" {
				t.Errorf("%q after %q, want the next leader", got.leader, current)
			}
		}
	}
}

func TestSelectNode(t *testing.T) {
	t.Parallel()
	now := time.Now()
	all := []*node{{url: "a"}, {url: "b"}, {url: "c", down: now.Add(time.Second)}}
	for name, tc := range map[string]struct {
		leader string
		tried  map[string]int
		busy   string
		want   string
	}{
		"any that is up":         {"", nil, "", "b"},
		"the leader":             {"a", nil, "", "a"},
		"the leader though down": {"c", nil, "", "c"},
		"not the leader twice":   {"a", map[string]int{"a": 1}, "", "b"},
		"not a busy one":         {"b", nil, "b", "a"},
		"up, a second time":      {"", map[string]int{"a": 1, "b": 1}, "", "b"},
		"down, before a third":   {"", map[string]int{"a": 2, "b": 2}, "", "c"},
	} {
		got := selectNode(all, now, tc.leader, tc.tried, func(u string) bool { return u == tc.busy }, []int{1, 0, 2})
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := selectNode(all, now, "a", nil, func(string) bool { return true }, []int{0, 1, 2}); got != "" {
		t.Errorf("all busy: %q, want none", got)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	body := func(code string) []byte { return []byte(`{"code":` + code + `,"status":503,"retryable":true}`) }
	type facts struct{ ok, again, maybe bool }
	for name, tc := range map[string]struct {
		kind retryClass
		a    response
		want facts
	}{
		"success":               {nonIdempotentWrite, response{status: 200, body: []byte("{}")}, facts{ok: true}},
		"login page":            {idempotentWrite, response{status: 200, body: []byte("<html>")}, facts{maybe: true}},
		"read broken":           {leaderRead, response{err: broken}, facts{again: true}},
		"bare write not sent":   {nonIdempotentWrite, response{err: broken}, facts{again: true}},
		"bare write sent":       {nonIdempotentWrite, response{err: broken, sent: true}, facts{maybe: true}},
		"keyed write sent":      {idempotentWrite, response{err: broken, sent: true}, facts{again: true, maybe: true}},
		"bare write, gateway":   {nonIdempotentWrite, response{status: 502}, facts{maybe: true}},
		"keyed write, gateway":  {idempotentWrite, response{status: 502}, facts{again: true, maybe: true}},
		"bare write, retryable": {nonIdempotentWrite, response{status: 503, body: body("4002")}, facts{again: true}},
		"bare write, unknown":   {nonIdempotentWrite, response{status: 504, body: body("4010")}, facts{maybe: true}},
		"held role is no retry": {nonIdempotentWrite, response{status: 409, body: body("4013")}, facts{}},
		"write, internal error": {
			idempotentWrite, response{status: 500, body: []byte(`{"code":4500,"status":500}`)}, facts{maybe: true},
		},
		"not found": {leaderRead, response{status: 404}, facts{}},
		"redirect": {nonIdempotentWrite, response{
			status: 307, header: http.Header{"Location": {"http://n2:1/v1/kv/a"}},
		}, facts{again: true}},
		"redirect to no node": {nonIdempotentWrite, response{
			status: 307, header: http.Header{"Location": {"http://login:1/v1/kv/a"}},
		}, facts{}},
		"redirect to nowhere": {nonIdempotentWrite, response{status: 307}, facts{}},
		"response too large":  {leaderRead, response{err: errTooLarge}, facts{maybe: true}},
	} {
		if tc.a.header == nil {
			tc.a.header = http.Header{}
		}
		if tc.a.body != nil {
			tc.a.header.Set("Content-Type", apiv1.TypeProblem)
		}
		v := classify(&call{op: "test", retryClass: tc.kind}, &tc.a, func(at string) bool { return at == "n2:1" })
		if got := (facts{v.err == nil, v.retryable, v.mayHaveApplied}); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestBackoffIsBounded(t *testing.T) {
	t.Parallel()
	for n := range 50 {
		if d := backoff(n, 0); d < minBackoff/2 || d > maxBackoff {
			t.Errorf("pause %d is %v", n, d)
		}
		if d := backoff(n, time.Hour); d < maxRetryAfter || d > maxRetryAfter+maxBackoff {
			t.Errorf("pause %d with a Retry-After of an hour is %v", n, d)
		}
	}
}

func TestNodes_RefreshAndMarkDown(t *testing.T) {
	t.Parallel()
	n, err := newNodes([]string{"seed:1", "http://seed:1/"}, "http")
	if err != nil {
		t.Fatal(err)
	}
	n.refresh([]string{"a:1", "b:1"})
	n.refresh([]string{"b:1", "c:1"})
	if got := n.urls(); len(got) != 3 || got[0] != "http://seed:1" || got[1] != "http://b:1" || got[2] != "http://c:1" {
		t.Errorf("nodes %v, want the given one and the newest members", got)
	}
	now := time.Now()
	for i := range 100 {
		n.markDown("http://b:1", now)
		down := n.find("http://b:1").down.Sub(now)
		if down < minDownTime || down > maxDownTime {
			t.Fatalf("failure %d: passed over for %v", i, down)
		}
		now = now.Add(down)
	}
	for i := range 2 * maxNodes {
		n.add(fmt.Sprintf("host%d:1", i))
	}
	if got := len(n.urls()); got > maxNodes {
		t.Errorf("%d nodes, at most %d", got, maxNodes)
	}
}
