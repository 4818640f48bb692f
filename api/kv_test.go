package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/quick"

	"northstar/api/apiv1"
	"northstar/cluster"
)

func TestKey_IsReadVerbatimFromPath(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for path, key := range map[string]string{
			"a":                "a",
			"a//b/../c%2Fd":    "a//b/../c/d",
			"/":                "/",
			"..":               "..",
			"./x/./":           "./x/./",
			"%2e%2e":           "..",
			"a%20b+c":          "a b+c",
			"%C3%A9":           "é",
			"%00":              "\x00",
			"%3Fq=1":           "?q=1",
			"a%25b":            "a%b",
			"a%252Fb":          "a%2Fb",
			"a;b=c:d@e,f&g=!$": "a;b=c:d@e,f&g=!$",
		} {
			r := n.do("PUT", "/v1/kv/"+path, "v of "+path)
			var out apiv1.PutResult
			if err := json.Unmarshal([]byte(r.body), &out); r.status != 200 || err != nil || out.Key != key {
				t.Errorf("PUT %s: %d %s, want key %q", path, r.status, r.body, key)
			}
			if it, ok := n.fake.View().Get(key); !ok || string(it.Value) != "v of "+path {
				t.Errorf("PUT %s did not write key %q", path, key)
			}
			if r := n.do("GET", "/v1/kv/"+path, ""); r.status != 200 || r.body != "v of "+path {
				t.Errorf("GET %s: %d %q", path, r.status, r.body)
			}
		}
	})
}

func TestBadKeys(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, path := range []string{"", "%ff", "%C3", strings.Repeat("k", apiv1.MaxKeyBytes+1)} {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				r := n.do(method, "/v1/kv/"+path, "")
				if p := r.is(t, 400, cluster.CodeBadRequest); !strings.Contains(p.Detail, "key") {
					t.Errorf("%s %q: %s", method, path, p.Detail)
				}
			}
		}
		if rev := n.fake.View().Revision(); rev != 0 {
			t.Errorf("revision %d after refused writes", rev)
		}
	})
}

func TestPutGetDelete(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		r := n.do("PUT", "/v1/kv/k", "one")
		rev := n.fake.View().Revision()
		if want := fmt.Sprintf("{\"key\":\"k\",\"revision\":%d,\"created\":true}\n", rev); r.body != want ||
			r.status != 200 {
			t.Fatalf("PUT: %d %q, want %q", r.status, r.body, want)
		}
		if r = n.do("PUT", "/v1/kv/k", ""); !strings.Contains(r.body, `"created":false`) {
			t.Errorf("second PUT: %s", r.body)
		}
		rev = n.fake.View().Revision()
		r = n.do("GET", "/v1/kv/k", "")
		want := fmt.Sprint(rev)
		if r.status != 200 || r.body != "" || r.header.Get("ETag") != `"`+want+`"` || r.header.Get("X-Northstar-Revision") != want {
			t.Errorf("GET: %+v", r)
		}
		if r = n.do("HEAD", "/v1/kv/k", ""); r.status != 200 || r.header.Get("ETag") != `"`+want+`"` {
			t.Errorf("HEAD: %+v", r)
		}
		if r = n.do("GET", "/v1/kv/k", "", "If-None-Match", `"`+want+`"`); r.status != 304 {
			t.Errorf("GET If-None-Match: %+v", r)
		}
		r = n.do("DELETE", "/v1/kv/k", "")
		if want := fmt.Sprintf("{\"key\":\"k\",\"revision\":%d}\n", n.fake.View().Revision()); r.body != want {
			t.Errorf("DELETE: %q, want %q", r.body, want)
		}
		if p := n.do("GET", "/v1/kv/k", "").is(t, 404, cluster.CodeNotFound); p.Retryable {
			t.Error("404 says retryable")
		}
		n.do("DELETE", "/v1/kv/k", "").is(t, 404, cluster.CodeNotFound)
	})
}

func TestConditions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		rev := n.fake.put("k", "v").Revision
		tag, old := fmt.Sprintf(`"%d"`, rev), fmt.Sprintf(`"%d"`, rev-1)
		for _, tc := range []struct {
			method, path, header, value string
			status                      int
		}{
			{"PUT", "k", "If-Match", old, 412},
			{"PUT", "k", "If-None-Match", "*", 412},
			{"DELETE", "k", "If-Match", old, 412},
			{"PUT", "absent", "If-Match", tag, 412},
			{"PUT", "k", "If-Match", "17", 400},
			{"PUT", "k", "If-Match", `"x"`, 400},
			{"PUT", "k", "If-Match", `"+1"`, 400},
			{"PUT", "k", "If-Match", `""`, 400},
			{"PUT", "k", "If-Match", `W/"1"`, 400},
			{"PUT", "k", "If-Match", `"1", "2"`, 400},
			{"PUT", "absent", "If-Match", "*", 412},
			{"DELETE", "absent", "If-Match", "*", 412},
			{"PUT", "k", "If-None-Match", `"1"`, 400},
			{"DELETE", "k", "If-None-Match", "*", 400},
		} {
			r := n.do(tc.method, "/v1/kv/"+tc.path, "new", tc.header, tc.value)
			if r.status != tc.status {
				t.Errorf("%s %s with %s %s: %d %s", tc.method, tc.path, tc.header, tc.value, r.status, r.body)
				continue
			}
			p := r.problem(t)
			switch {
			case tc.status == 400 && !strings.Contains(p.Detail, tc.header):
				t.Errorf("%s %s: detail %q names no field", tc.header, tc.value, p.Detail)
			case tc.status == 412 && tc.path == "k" && (r.header.Get("ETag") != tag || p.Revision != rev):
				t.Errorf("412 with ETag %s and revision %d, want %d", r.header.Get("ETag"), p.Revision, rev)
			case tc.status == 412 && tc.path == "absent" && !strings.Contains(r.body, `"revision":0`):
				t.Errorf("412 on an absent key: %s", r.body)
			}
		}
		if n.fake.View().Revision() != rev {
			t.Fatal("a refused write changed something")
		}
		if r := n.do("PUT", "/v1/kv/k", "new", "If-Match", tag); r.status != 200 {
			t.Errorf("true If-Match: %+v", r)
		}
		if r := n.do("PUT", "/v1/kv/other", "new", "If-None-Match", "*"); r.status != 200 {
			t.Errorf("true If-None-Match: %+v", r)
		}
		if r := n.do("PUT", "/v1/kv/k", "newer", "If-Match", "*"); r.status != 200 {
			t.Errorf("If-Match: * on a key that exists: %+v", r)
		}
		if r := n.do("DELETE", "/v1/kv/k", "", "If-Match", "*"); r.status != 200 {
			t.Errorf("DELETE with If-Match: * on a key that exists: %+v", r)
		}
	})
}

func TestReadOnlyWhenChanged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		tag := etag(n.fake.put("k", "v").Revision)
		for match, status := range map[string]int{
			tag: 304, "*": 304, "W/" + tag: 304, `"77", ` + tag: 304, `W/"77",W/` + tag: 304,
			`"77"`: 200, "": 200, tag[1:]: 200,
		} {
			if r := n.do("GET", "/v1/kv/k", "", "If-None-Match", match); r.status != status {
				t.Errorf("If-None-Match: %s: %d, want %d", match, r.status, status)
			}
		}
	})
}

func TestIdempotencyKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		first := n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "a")
		again := n.do("PUT", "/v1/kv/k?timeout_ms=100", "v", "Idempotency-Key", "a")
		if first.status != 200 || first.body != again.body {
			t.Errorf("first %+v, again %+v", first, again)
		}
		rev := n.fake.View().Revision()
		for _, other := range []reply{
			n.do("PUT", "/v1/kv/k", "w", "Idempotency-Key", "a"),
			n.do("PUT", "/v1/kv/j", "v", "Idempotency-Key", "a"),
			n.do("DELETE", "/v1/kv/k", "", "Idempotency-Key", "a"),
			n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "a", "If-None-Match", "*"),
			n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "a", "If-Match", `"1"`),
			n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "a", "X-Northstar-Fence", "r=1"),
			n.do("PUT", "/v1/kv/k?ttl_session=s", "v", "Idempotency-Key", "a"),
		} {
			other.is(t, 422, cluster.CodeBadRequest)
		}
		for _, bad := range []string{"", strings.Repeat("x", 129)} {
			n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", bad).is(t, 400, cluster.CodeBadRequest)
		}
		if n.fake.View().Revision() != rev {
			t.Error("a repeated or refused write changed something")
		}
	})
}

func TestFence(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.do("PUT", "/v1/kv/k", "v", "X-Northstar-Fence", "primary=3").is(t, 409, cluster.CodeFenced)
		for _, bad := range []string{"primary", "=1", "primary=", "primary=x", "primary=-1", "a=1,b=2"} {
			if p := n.do("PUT", "/v1/kv/k", "v", "X-Northstar-Fence", bad).is(t, 400,
				cluster.CodeBadRequest); !strings.Contains(p.Detail, "X-Northstar-Fence") {
				t.Errorf("%q: %s", bad, p.Detail)
			}
		}
	})
}

func TestValueLimit(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		big := strings.Repeat("x", apiv1.MaxValueBytes)
		if r := n.do("PUT", "/v1/kv/k", big); r.status != 200 {
			t.Fatalf("1 MiB: %d %s", r.status, r.body)
		}
		n.do("PUT", "/v1/kv/k", big+"x").is(t, 413, cluster.CodeBadRequest)
		req, err := http.NewRequest("PUT", "http://"+n.addr+"/v1/kv/k",
			struct{ *strings.Reader }{strings.NewReader(big + "x")})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = -1 // in chunks
		resp, err := n.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("in chunks: %d", resp.StatusCode)
		}
		if left := n.bodyBytes.Load(); left != 0 {
			t.Errorf("%d bytes of bodies are still counted", left)
		}
	})
}

func TestBadParameters(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, tc := range []struct{ method, path, field string }{
			{"PUT", "/v1/kv/k?timeout=1", "timeout"},
			{"PUT", "/v1/kv/k?timeout_ms=0", "timeout_ms"},
			{"PUT", "/v1/kv/k?timeout_ms=60001", "timeout_ms"},
			{"PUT", "/v1/kv/k?timeout_ms=1s", "timeout_ms"},
			{"PUT", "/v1/kv/k?timeout_ms=1&timeout_ms=2", "timeout_ms"},
			{"PUT", "/v1/kv/k?consistency=stale", "consistency"},
			{"PUT", "/v1/kv/k?ttl_session=", "ttl_session"},
			{"PUT", "/v1/kv/k?a=%zz", "query"},
			{"PUT", "/v1/kv/k?redirect=maybe", "redirect"},
			{"GET", "/v1/kv/k?consistency=eventual", "consistency"},
			{"GET", "/v1/kv/k?consistency=", "consistency"},
			{"GET", "/v1/kv?limit=0", "limit"},
			{"GET", "/v1/kv?limit=9223372036854775808", "limit"},
			{"GET", "/v1/kv?prefix=%ff", "prefix"},
			{"GET", "/v1/kv?after=" + strings.Repeat("x", apiv1.MaxKeyBytes+1), "after"},
			{"GET", "/v1/watch?since=-1", "since"},
			{"GET", "/v1/watch?since=", "since"},
			{"GET", "/v1/watch?since=9007199254740993", "since"},
			{"GET", "/v1/elections?limit=x", "limit"},
			{"GET", "/v1/elections?limit=0", "an integer of at least 1 (got"},
			{"GET", "/v1/events?since=garbage", "since"},
			{"GET", "/v1/events?type=elections", "must be one of election,"},
			{"GET", "/readyz?verbose=2", "verbose"},
			{"GET", "/health/follower?max_lag=-1", "max_lag"},
			{"GET", "/leader?x", "x"},
		} {
			if p := n.do(tc.method, tc.path, "").is(t, 400, cluster.CodeBadRequest); !strings.Contains(p.Detail,
				tc.field) {
				t.Errorf("%s: detail %q does not name %s", tc.path, p.Detail, tc.field)
			}
		}
		if n.fake.View().Revision() != 0 {
			t.Error("a refused write changed something")
		}
		n.do("PUT", "/v1/kv/k", "x", "Content-Encoding", "gzip").is(t, 415, cluster.CodeBadRequest)
	})
}

func TestList(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, k := range []string{"a/1", "a/2", `a/"3"`, "b/1"} {
			n.fake.put(k, "v"+k)
		}
		var seen []string
		after := ""
		for pages := 0; ; pages++ {
			r := n.do("GET", "/v1/kv?prefix=a/&limit=2&after="+url.QueryEscape(after), "")
			var page apiv1.List
			if err := json.Unmarshal([]byte(r.body), &page); err != nil || r.status != 200 ||
				page.Revision != n.fake.View().Revision() {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			for _, it := range page.Items {
				seen = append(seen, it.Key)
				if string(it.Value) != "v"+it.Key || it.Version != 1 || it.CreateRevision != it.Revision {
					t.Errorf("item %+v", it)
				}
			}
			if after = page.Next; after == "" {
				break
			}
			if pages > 5 {
				t.Fatal("no end of pages")
			}
		}
		if got := fmt.Sprintf("%q", seen); got != `["a/\"3\"" "a/1" "a/2"]` {
			t.Errorf("keys %s", got)
		}
		if r := n.do("GET", "/v1/kv?prefix=none", ""); !strings.Contains(r.body, `"items":[]`) || !strings.Contains(r.body, `"next":""`) {
			t.Errorf("empty list: %s", r.body)
		}
	})
}

// The number of items of a list is bounded for every value of the limit parameter, and without it.
func TestListIsBoundedInItems(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for i := range apiv1.MaxListLimit + 1 {
			n.fake.put(fmt.Sprintf("%05d", i), "")
		}
		for _, query := range []string{"", "?prefix=&limit=&after=", "?limit=1001", "?limit=100000"} {
			var page apiv1.List
			r := n.do("GET", "/v1/kv"+query, "")
			if err := json.Unmarshal([]byte(r.body), &page); err != nil || len(page.Items) != apiv1.MaxListLimit ||
				page.Next != "00999" {
				t.Errorf("%q: %d, %d items, next %q (%v)", query, r.status, len(page.Items), page.Next, err)
			}
		}
	})
}

func TestListIsBoundedInBytes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		big := strings.Repeat("x", apiv1.MaxValueBytes)
		for i := range 6 {
			n.fake.put(fmt.Sprint(i), big)
		}
		var page apiv1.List
		if err := json.Unmarshal([]byte(n.do("GET", "/v1/kv", "").body), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Items) != 4 || page.Next != "3" {
			t.Errorf("%d items, next %q", len(page.Items), page.Next)
		}
		if err := json.Unmarshal([]byte(n.do("GET", "/v1/kv?after=3", "").body), &page); err != nil ||
			len(page.Items) != 2 || page.Next != "" {
			t.Errorf("second page: %d items, next %q, %v", len(page.Items), page.Next, err)
		}
	})
}

func TestAppendJSONString(t *testing.T) {
	t.Parallel()
	back := func(s string) bool {
		s = strings.ToValidUTF8(s, "")
		var got string
		err := json.Unmarshal(appendJSONString(nil, s), &got)
		return err == nil && got == s
	}
	if err := quick.Check(back, nil); err != nil {
		t.Error(err)
	}
	for _, s := range []string{"", "a/b", "\"", "\\", "\x00\x1f\x7f", "é", "\u2028", "<&>"} {
		if !back(s) {
			t.Errorf("%q comes back as something else", s)
		}
	}
}

// A call without a body refuses the keys of one: a dry run must not be taken for the real call.
func TestBodyOfADelete(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a := n.session("a")
		into[apiv1.Role](t, n.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+a+`"}`, asJSON, apiv1.TypeJSON))
		into[apiv1.PutResult](t, n.do("PUT", "/v1/kv/k", "v"))
		for _, path := range []string{"/v1/roles/r?session_id=" + a, "/v1/kv/k"} {
			p := n.do("DELETE", path, `{"dry_run":true}`, asJSON, apiv1.TypeJSON).is(t, 400, cluster.CodeBadRequest)
			if !strings.Contains(p.Detail, "dry_run") {
				t.Errorf("%s: %s", path, p.Detail)
			}
		}
		if v := n.fake.View(); v.Keys() != 1 {
			t.Error("the key is deleted")
		}
		if r := into[apiv1.Role](t, n.do("GET", "/v1/roles/r", "")); r.SessionID != a {
			t.Errorf("the role is released: %+v", r)
		}
		into[apiv1.DeleteResult](t, n.do("DELETE", "/v1/kv/k", "{}", asJSON, apiv1.TypeJSON))
		into[apiv1.PutResult](t, n.do("PUT", "/v1/kv/k", "v"))
		into[apiv1.DeleteResult](t, n.do("DELETE", "/v1/kv/k", "v"))
	})
}
