package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/token"
	"northstar/cluster"
)

// tokenFile is a token file with one token of each role, and the tokens.
func tokenFile() (data []byte, tokens map[token.Role]string) {
	tokens = make(map[token.Role]string)
	var b strings.Builder
	for _, role := range []token.Role{token.Observer, token.Client, token.Operator} {
		tok, hash := token.New()
		tokens[role] = tok
		fmt.Fprintf(&b, "[[token]]\nname = \"the-%s\"\nrole = %q\nhash = %q\n", role, role, hash)
	}
	return []byte(b.String()), tokens
}

func withTokens(data []byte) func(*Deps) {
	return func(d *Deps) { d.Tokens = func() ([]byte, error) { return data, nil } }
}

// concrete is a path that a pattern matches.
func concrete(pattern string) string {
	values := strings.NewReplacer("{key}", "k", "{id}", "n2", "{file}", "app.js", "{role}", "r")
	return values.Replace(pattern)
}

// bareServer is a server without a listener, of a node that leads.
func bareServer(t *testing.T, change ...func(*Deps)) *Server {
	t.Helper()
	return bareServerOf(t, newFakeCluster("n1", true), change...)
}

// bareServerOf is bareServer for a cluster, in which it sets the key k.
func bareServerOf(t *testing.T, f *fakeCluster, change ...func(*Deps)) *Server {
	t.Helper()
	f.put("k", "v")
	d := testDeps(f)
	for _, c := range change {
		c(&d)
	}
	s, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serveBriefly serves a request for at most a second of virtual time, so that a stream ends, too. This clock
// advances only while all wait: a busy machine ends no request.
func serveBriefly(s *Server, r *http.Request) *httptest.ResponseRecorder {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(ctx))
	return w
}

func clientCertificate(r *http.Request, uri string, verified bool) {
	u, err := url.Parse(uri)
	if err != nil {
		panic(err)
	}
	cert := &x509.Certificate{URIs: []*url.URL{u}, NotAfter: time.Now().Add(time.Hour)}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	if verified {
		r.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	data, tokens := tokenFile()
	good := "Bearer " + tokens[token.Operator]
	for name, tc := range map[string]struct {
		tokens   bool
		insecure bool
		remote   string
		host     string
		noHost   bool
		cert     string
		noVerify bool
		tls      bool
		headers  []string
		want     int // of GET /admin/snapshot
	}{
		"loopback without tokens":           {remote: "127.0.0.1:5", want: 200},
		"loopback, IPv6":                    {remote: "[::1]:5", want: 200},
		"loopback, mapped":                  {remote: "[::ffff:127.0.0.1]:5", want: 200},
		"loopback by name localhost":        {remote: "127.0.0.1:5", host: "localhost:7701", want: 200},
		"loopback by the advertised name":   {remote: "127.0.0.1:5", host: "node1.example:7701", want: 200},
		"loopback, HTTP/1.0 without a host": {remote: "127.0.0.1:5", noHost: true, want: 200},
		"loopback by somebody else's name":  {remote: "127.0.0.1:5", host: "evil.example:7701", want: 401},
		"elsewhere without tokens":          {remote: "192.0.2.1:5", want: 401},
		"elsewhere, insecure":               {remote: "192.0.2.1:5", insecure: true, want: 200},
		"loopback with tokens, none sent":   {tokens: true, remote: "127.0.0.1:5", want: 401},
		"token": {
			tokens: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", good}, want: 200,
		},
		"token, scheme in lower case": {
			tokens: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", "bearer " + tokens[token.Operator]}, want: 200,
		},
		"wrong scheme": {
			tokens: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", "Basic " + tokens[token.Operator]}, want: 401,
		},
		"bad token": {
			tokens: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", good + "x"}, want: 401,
		},
		"bad token, insecure": {
			tokens: true, insecure: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", good + "x"}, want: 200,
		},
		"weak token": {
			tokens: true, remote: "192.0.2.1:5",
			headers: []string{"Authorization", "Bearer " + tokens[token.Client]}, want: 403,
		},
		"certificate": {
			remote: "192.0.2.1:5", cert: "northstar://test/operator/ann",
			want: 200,
		},
		"certificate beside tokens": {
			tokens: true, remote: "192.0.2.1:5",
			cert: "northstar://test/operator/ann", want: 200,
		},
		"certificate of a weaker role": {
			remote: "192.0.2.1:5", cert: "northstar://test/observer/ann",
			want: 403,
		},
		"certificate of another cluster": {
			remote: "192.0.2.1:5", cert: "northstar://other/operator/ann",
			want: 401,
		},
		"certificate not verified": {
			remote: "192.0.2.1:5", cert: "northstar://test/operator/ann",
			noVerify: true, want: 401,
		},
		"certificate of a node": {remote: "192.0.2.1:5", cert: "northstar://test/node/n2", want: 403},
		"certificate with another scheme": {
			remote: "192.0.2.1:5", cert: "https://test/operator/ann",
			want: 401,
		},
		"identity from a node": {
			tokens: true, remote: "192.0.2.1:5",
			cert: "northstar://test/node/n2", headers: forwardedAs("operator ann"), want: 200,
		},
		"identity from a node, weaker": {
			tokens: true, remote: "192.0.2.1:5",
			cert: "northstar://test/node/n2", headers: forwardedAs("client ann"), want: 403,
		},
		"identity from a node, garbage": {
			tokens: true, remote: "192.0.2.1:5",
			cert: "northstar://test/node/n2", headers: forwardedAs("god"), want: 401,
		},
		"identity from loopback": {
			remote: "127.0.0.1:5", headers: forwardedAs("operator ann"),
			want: 200,
		},
		"identity from loopback, weaker": {
			remote: "127.0.0.1:5", headers: forwardedAs("client ann"),
			want: 403,
		},
		"identity from loopback with tokens": {
			tokens: true, remote: "127.0.0.1:5",
			headers: forwardedAs("operator ann"), want: 401,
		},
		"identity from a page that rebinds": {
			remote: "127.0.0.1:5", host: "evil.example:7701",
			headers: forwardedAs("operator ann"), want: 401,
		},
		"identity and a weak token": {
			tokens: true, remote: "127.0.0.1:5",
			headers: append(forwardedAs("operator ann"), "Authorization", "Bearer "+tokens[token.Observer]), want: 403,
		},
		"identity from loopback over TLS": {
			tokens: true, remote: "127.0.0.1:5", tls: true,
			headers: forwardedAs("operator ann"), want: 401,
		},
		"identity from elsewhere": {
			tokens: true, remote: "192.0.2.1:5",
			headers: forwardedAs("operator ann"), want: 401,
		},
		"identity from elsewhere, with a token": {
			tokens: true, remote: "192.0.2.1:5",
			headers: append(forwardedAs("operator ann"), "Authorization", "Bearer "+tokens[token.Observer]), want: 403,
		},
		"identity from a client's certificate": {
			remote: "192.0.2.1:5", cert: "northstar://test/client/bob",
			headers: forwardedAs("operator ann"), want: 403,
		},
		"identity without having been forwarded": {
			tokens: true, remote: "127.0.0.1:5",
			headers: []string{"X-Northstar-Identity", "operator ann"}, want: 401,
		},
		"insecure keeps the passed identity weak": {
			insecure: true, remote: "192.0.2.1:5",
			headers: forwardedAs("client ann"), want: 403,
		},
	} {
		s := bareServer(t, func(d *Deps) {
			d.Insecure = tc.insecure
			d.Node.HTTPAddress = "node1.example:7701"
			if tc.tokens {
				withTokens(data)(d)
			}
		})
		r := httptest.NewRequest("GET", "http://127.0.0.1:7701/admin/snapshot", nil)
		r.RemoteAddr = tc.remote
		if tc.host != "" {
			r.Host = tc.host
		}
		if tc.noHost {
			r.Host = ""
		}
		if tc.cert != "" {
			clientCertificate(r, tc.cert, !tc.noVerify)
		}
		if tc.tls {
			r.TLS = &tls.ConnectionState{}
		}
		for i := 0; i < len(tc.headers); i += 2 {
			r.Header.Set(tc.headers[i], tc.headers[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, tc.want, w.Body)
		}
		if w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s: 401 without WWW-Authenticate", name)
		}
	}
}

func forwardedAs(identity string) []string {
	return []string{"X-Northstar-Forwarded-By", "n2", "X-Northstar-Identity", identity}
}

func TestNodeCertificateAddsItselfOnly(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]int{"n4": 200, "n5": 403} {
		s := bareServer(t)
		r := httptest.NewRequest("POST", "https://127.0.0.1/admin/members", strings.NewReader(`{"id":"`+id+`","raft_address":"h:1","http_address":"h:2"}`))
		r.Header.Set("Content-Type", "application/json")
		r.RemoteAddr = "192.0.2.1:5"
		clientCertificate(r, "northstar://test/node/n4", true)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("n4 adds %s: %d %s", id, w.Code, w.Body)
		}
	}
}

func TestPageOfAnotherOriginChangesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		for _, h := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
			n.do("PUT", "/v1/kv/k", "v", h...).is(t, 403, cluster.CodeForbidden)
		}
		if r := n.do("PUT", "/v1/kv/k", "v", "Origin", "http://"+n.addr); r.status != 200 {
			t.Errorf("same origin: %+v", r)
		}
	})
}

func TestTooManyBadTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data, tokens := tokenFile()
		s := bareServer(t, withTokens(data))
		ask := func(from, tok string) int {
			r := httptest.NewRequest("GET", "http://127.0.0.1/v1/kv/k", nil)
			r.RemoteAddr = from
			r.Header.Set("Authorization", "Bearer "+tok)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w.Code
		}
		for i := range failureBurst {
			if got := ask("192.0.2.1:5", "wrong"); got != 401 {
				t.Fatalf("bad token %d: %d", i, got)
			}
		}
		if got := ask("192.0.2.1:6", "wrong"); got != 429 {
			t.Errorf("one more: %d", got)
		}
		if got := ask("192.0.2.1:6", tokens[token.Client]); got != 200 {
			t.Errorf("a valid one: %d", got)
		}
		if got := ask("192.0.2.2:6", "wrong"); got != 401 {
			t.Errorf("another address: %d", got)
		}
		time.Sleep(2 * failureRefill)
		if a, b, c := ask("192.0.2.1:5", "wrong"), ask("192.0.2.1:5", "wrong"), ask("192.0.2.1:5", "wrong"); a != 401 ||
			b != 401 || c != 429 {
			t.Errorf("after two refills: %d %d %d", a, b, c)
		}
	})
}

// TestUnauthenticatedIsCounted: they leave no audit record, so that this is all
// there is of them.
func TestUnauthenticatedIsCounted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		n := startServer(t, newFakeCluster("n1", true), withTokens(data))
		for i, authorization := range []string{"", "Bearer wrong", "Basic " + tokens[token.Operator], "Bearer " +
			tokens[token.Observer]} {
			n.do("GET", "/v1/kv", "", "Authorization", authorization)
			want := fmt.Sprintf("northstar_auth_failures_total %d\n", min(i+1, 3))
			if r := n.do("GET", "/metrics", ""); !strings.Contains(r.body, want) {
				t.Errorf("after %q there is no %s", authorization, want)
			}
		}
	})
}

func TestFailureTableIsBounded(t *testing.T) {
	t.Parallel()
	f := newKeyLimiter[netip.Prefix](failureBurst, failureRefill)
	now := time.Unix(1000, 0)
	for i := range maxLimited + 500 {
		f.allow(addressGroup(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)), now)
	}
	if len(f.seen) > maxLimited {
		t.Errorf("%d addresses are remembered", len(f.seen))
	}
	// Within one network of IPv6 all addresses are one.
	before := len(f.seen)
	f.allow(addressGroup("[2001:db8::1]:1"), now)
	f.allow(addressGroup("[2001:db8::ffff:1]:1"), now)
	if len(f.seen) > max(before, maxLimited) {
		t.Errorf("%d after two addresses of one network", len(f.seen))
	}
}

func TestTokenFile_Reload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, old := tokenFile()
		second, current := tokenFile()
		var mu sync.Mutex
		content, fails := first, error(nil)
		d := testDeps(newFakeCluster("n1", true))
		var log strings.Builder
		d.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
		d.Tokens = func() ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			return content, fails
		}
		s, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		change := func(c []byte, err error) {
			mu.Lock()
			content, fails = c, err
			mu.Unlock()
			time.Sleep(5 * time.Second)
		}
		known := func(tok string) bool { _, ok := s.auth.tokens.Load().Find(tok); return ok }

		for _, bad := range []string{"[[token]]\nname=3", "", "# none\n"} {
			change([]byte(bad), nil)
			if !known(old[token.Client]) {
				t.Errorf("a bad file drove out the good one: %q", bad)
			}
			if s.TokenProblem() == "" {
				t.Errorf("nothing is said of %q", bad)
			}
		}
		change(nil, errors.New("cannot be read"))
		time.Sleep(time.Minute)
		if !known(old[token.Client]) {
			t.Error("a missing file drove out the good one")
		}
		change(second, nil)
		if known(old[token.Client]) || !known(current[token.Client]) {
			t.Error("the new file does not count after 5 s")
		}
		if what := s.TokenProblem(); what != "" {
			t.Errorf("said of a good file: %s", what)
		}
		cancel()
		<-done
		// the two without tokens are the same
		if got := strings.Count(log.String(), "cannot load token file"); got != 3 {
			t.Errorf("%d errors for four bad files:\n%s", got, log.String())
		}
	})
}

func TestNewRefusesBadTokenFile(t *testing.T) {
	t.Parallel()
	d := testDeps(newFakeCluster("n1", true))
	withTokens([]byte("colour = 1"))(&d)
	if _, err := New(d); err == nil || !strings.Contains(err.Error(), "auth.tokens") {
		t.Errorf("error %v", err)
	}
}
