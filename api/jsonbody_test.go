package api

import (
	"net/http/httptest"
	"strings"
	"testing"

	"northstar/cluster"
)

// A key that is given twice is refused wherever it is, and nothing has changed then.
func TestJSONBody_RepeatedKeys(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for body, want := range map[string]string{
			`{"name":"s","name":"s"}`:                        "name: given twice",
			`{"name":"s","meta":{"a":"1","b":"2","a":"3"}}`:  "meta.a: given twice",
			`{"meta":{"a":"1","\u0061":"1"}}`:                "meta.a: given twice",
			`{"meta":{"a":{"x":1,"x":2}}}`:                   "meta: must be a string (got a JSON object)",
			`{"meta":["a","a"]}`:                             "meta: must be an object (got a JSON array)",
			`{"meta":{"a":"1"`:                               "body: unexpected EOF",
			`{"meta":{"a":"1","A":"2"},"meta":{"a":"1"}}`:    "meta: given twice",
			`{"name":"s","meta":{"a":"1"},"Meta":{"a":"1"}}`: "Meta: unknown field",
		} {
			p := n.do("POST", "/v1/sessions", body).is(t, 400, cluster.CodeBadRequest)
			if !strings.Contains(p.Detail, want) {
				t.Errorf("%s: %s, want %s", body, p.Detail, want)
			}
		}
		for _, body := range []string{`{"meta":{"a":"1","A":"2"}}`, `{"meta":{}}`, `{"meta":null}`} {
			if r := n.do("POST", "/v1/sessions", body); r.status != 200 {
				t.Errorf("%s: %+v", body, r)
			}
		}
		if got := n.fake.View().Sessions(); got != 3 {
			t.Errorf("%d sessions", got)
		}
	})
}

// An empty body counts as {}, also one of which the client did not say the length.
func TestJSONBody_Empty(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.lead()
		id := n.sessionOf(60_000)
		for _, length := range []int64{0, -1} {
			r := httptest.NewRequest("POST", "http://127.0.0.1/v1/sessions/"+id+"/renew", strings.NewReader(""))
			r.RemoteAddr, r.ContentLength = "127.0.0.1:1", length
			w := httptest.NewRecorder()
			n.ServeHTTP(w, r)
			if w.Code != 200 {
				t.Errorf("a length of %d: %d %s", length, w.Code, w.Body)
			}
		}
	})
}
