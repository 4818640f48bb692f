package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/dashboard"
	"northstar/api/problem"
	"northstar/cluster"
)

func TestRequestsAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f, func(d *Deps) { d.Limits.Requests = 2 })
		hold := make(chan struct{})
		f.set(func() { f.barrier = func(context.Context) error { <-hold; return nil } })
		answers := make(chan reply, 2)
		for range 2 {
			go func() { answers <- n.do("GET", "/v1/kv/k", "") }()
		}
		eventually(t, func() bool { return n.requests.Load() == 2 })
		r := n.do("GET", "/v1/kv/k", "")
		if p := r.is(t, 503, cluster.CodeBusy); !p.Retryable || r.header.Get("Retry-After") == "" {
			t.Errorf("%+v", r)
		}
		for _, path := range []string{"/livez", "/readyz", "/leader", "/status", "/v1/cluster", "/metrics", "/"} {
			if r := n.do("GET", path, ""); r.status != 200 {
				t.Errorf("%s on a busy node: %d", path, r.status)
			}
		}
		close(hold)
		for range 2 {
			if r := <-answers; r.status != 404 {
				t.Errorf("%+v", r)
			}
		}
		eventually(t, func() bool { return n.requests.Load() == 0 })
	})
}

func TestBodiesTogetherAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.RequestBytes = 100 })
		n.do("PUT", "/v1/kv/k", strings.Repeat("x", 126)).is(t, 503, cluster.CodeBusy)
		for range 3 { // what was taken is given back
			if r := n.do("PUT", "/v1/kv/k", strings.Repeat("x", 100)); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// TestSlowBodyEndsWithTheTimeout: a body that never comes holds its place for
// no longer than the request may take.
func TestSlowBodyEndsWithTheTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		c, err := dialMemory(t.Context(), n.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := time.Now()
		if _, err := io.WriteString(c,
			"PUT /v1/kv/k?timeout_ms=50 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 400 {
			t.Fatalf("%v %v", resp, err)
		}
		var p apiv1.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || !strings.Contains(p.Detail, "timeout_ms") {
			t.Errorf("%v %+v", err, p)
		}
		if took := time.Since(start); took > problem.DrainTimeout/2 {
			t.Errorf("answered after %v: the rest of the body was waited for", took)
		}
		eventually(t, func() bool { return n.bodyBytes.Load() == 0 && n.requests.Load() == 0 })
		if n.fake.View().Revision() != 0 {
			t.Error("half a value was written")
		}
	})
}

// TestUnreadableRequests: also what net/http answers by itself is a problem, with TLS as without.
func TestUnreadableRequests(t *testing.T) {
	t.Parallel()
	n := startServer(t, newFakeCluster("n1", true))
	t.Run("plain", func(t *testing.T) {
		testUnreadableRequests(t, func() (net.Conn, error) { return net.Dial("tcp", n.addr) })
	})
	l, _ := serveTLS(t, n.Server)
	t.Run("TLS", func(t *testing.T) {
		testUnreadableRequests(t, func() (net.Conn, error) {
			return tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		})
	})
}

func testUnreadableRequests(t *testing.T, dial func() (net.Conn, error)) {
	t.Helper()
	for name, tc := range map[string]struct {
		request string
		status  int
	}{
		"bad escape":     {"GET /v1/kv/%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"no host":        {"GET /leader HTTP/1.1\r\n\r\n", 400},
		"garbage":        {"\x16\x03\x01\x02garbage\r\n\r\n", 400},
		"huge header":    {"GET /leader HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431},
		"bad length":     {"PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
		"two lengths":    {"PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400},
		"expectation":    {"PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: luck\r\n\r\nx", 417},
		"encoding":       {"PUT /v1/kv/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n", 501},
		"other version":  {"GET /leader HTTP/7.9\r\nHost: x\r\n\r\n", 505},
		"bad header key": {"GET /leader HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n", 400},
	} {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, tc.request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := io.ReadAll(resp.Body)
		c.Close()
		var p apiv1.Problem
		if err != nil || json.Unmarshal(body, &p) != nil || resp.StatusCode != tc.status || p.Status != tc.status ||
			p.Code != 4400 || resp.Header.Get("Content-Type") != apiv1.TypeProblem {
			t.Errorf("%s: %s %s (%v)", name, resp.Status, body, err)
		}
	}
}

// TestValue_LooksLikeProblem passes through the listener as it is.
func TestValue_LooksLikeProblem(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		value := "HTTP/1.1 400 Bad Request" + string(plainHeaders) + "400 Bad Request"
		n.fake.put("k", value)
		if r := n.do("GET", "/v1/kv/k", ""); r.status != 200 || r.body != value {
			t.Errorf("%+v", r)
		}
		// The same where the value is so long that its end is written by itself.
		for pad := range 4096 {
			long := strings.Repeat(".", pad) + value
			n.fake.put("k", long)
			if r := n.do("GET", "/v1/kv/k", ""); r.status != 200 || r.body != long {
				t.Fatalf("with %d bytes before it: %d, %d bytes, want %d", pad, r.status, len(r.body), len(long))
			}
		}
	})
}

func TestDashboard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		paths := []string{"/"}
		for _, name := range dashboard.Names() {
			paths = append(paths, "/dashboard/"+name)
		}
		for _, path := range paths {
			r := n.do("GET", path, "")
			if r.status != 200 || len(r.body) < 150 {
				t.Errorf("%s: %d, %d bytes", path, r.status, len(r.body))
			}
			if !strings.Contains(r.header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s has no policy", path)
			}
			// Nothing comes from anywhere else, and nothing stands in the page that
			// the policy would block.
			banned := []string{"https://", "http://", "innerHTML", "eval("}
			if media := r.header.Get("Content-Type"); strings.HasPrefix(media, "text/html") {
				banned = append(banned, "<script>", " style=", "<style", " onclick")
			}
			for _, bad := range banned {
				body := strings.ReplaceAll(r.body, "http://www.w3.org/", "")
				if strings.Contains(body, bad) {
					t.Errorf("%s holds %q", path, bad)
				}
			}
		}
	})
}
