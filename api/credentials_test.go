package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
)

// TestStreamsEndWithTheirToken: each kind of stream of a removed token ends within 5 s and says why; those of other
// tokens go on.
func TestStreamsEndWithTheirToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		var content atomic.Pointer[[]byte]
		content.Store(&data)
		leader, follower := attachedPair(t, func(d *Deps) {
			d.Tokens = func() ([]byte, error) { return *content.Load(), nil }
		})
		for _, n := range []*node{leader, follower} {
			content.Store(&data)
			time.Sleep(5 * time.Second)
			id := into[apiv1.SessionCreated](t, n.do("POST", apiv1.PathSessions, `{"ttl_ms":60000}`,
				as["alice"]...)).SessionID
			held := n.sessionAs(as["bob"])
			into[apiv1.Role](t, n.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+held+`"}`, as["bob"]...))
			var all []*eventStream
			for _, path := range []string{apiv1.PathWatch, apiv1.PathEvents, "/v1/roles/r/watch", "/v1/nodes/watch"} {
				all = append(all, n.stream(path, append(as["alice"], "Accept", apiv1.TypeEventStream)...))
			}
			attached := n.stream("/v1/sessions/"+id+"/attach", as["alice"]...)
			others := n.stream("/v1/sessions/"+held+"/attach", as["bob"]...)
			waits := make(chan reply, 1)
			go func() {
				waits <- n.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+id+`","wait_ms":60000}`, as["alice"]...)
			}()
			time.Sleep(time.Second)
			without := []byte(withoutToken(string(data), "alice"))
			content.Store(&without)
			began := time.Now()
			for _, s := range append(all, attached) {
				m, ok := s.next()
				for ok && m.event != apiv1.EventError {
					m, ok = s.next()
				}
				if !ok || !strings.Contains(m.data, "4401") {
					t.Errorf("%s ended with %+v", s.resp.Request.URL, m)
				}
			}
			r := <-waits
			r.is(t, 401, cluster.CodeUnauthenticated)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("they ended after %v", took)
			}
			if !leader.lives(id) {
				t.Error("the session ended although its client is there: it may still act as holder")
			}
			eventually(t, func() bool { return !leader.waitsFor(id)() }) // it does not ask again
			others.alive()
			others.resp.Body.Close()
			eventually(t, func() bool { return !leader.lives(held) })
			eventually(t, func() bool { // no stream is remembered
				n.auth.open.mu.Lock()
				defer n.auth.open.mu.Unlock()
				return len(n.auth.open.all) == 0
			})
		}
	})
}

// TestCampaign_CredentialsEnd: a candidate whose token is removed at the node that it asks is told so. It keeps its
// place at the leader for a while, so that it can ask again with another token.
func TestCampaign_CredentialsEnd(t *testing.T) {
	for _, asked := range []cluster.NodeID{"n1", "n2"} {
		virtually(t, string(asked), func(t *testing.T) {
			data, as := identities()
			without := []byte(withoutToken(string(data), "alice"))
			var removed atomic.Bool
			leader, follower := attachedPair(t, func(d *Deps) {
				id := d.Node.ID
				d.Tokens = func() ([]byte, error) {
					if removed.Load() && id == asked {
						return without, nil
					}
					return data, nil
				}
			})
			n := map[cluster.NodeID]*node{"n1": leader, "n2": follower}[asked]
			held, id := leader.sessionAs(as["bob"]), leader.sessionAs(as["alice"])
			into[apiv1.Role](t, leader.do("POST", "/v1/roles/r/campaign", `{"session_id":"`+held+`"}`, as["bob"]...))
			answer := make(chan reply, 1)
			go func() {
				body := `{"session_id":"` + id + `","wait_ms":60000}`
				answer <- n.do("POST", "/v1/roles/r/campaign", body, as["alice"]...)
			}()
			eventually(t, leader.waitsFor(id))
			removed.Store(true)
			r := <-answer
			r.is(t, 401, cluster.CodeUnauthenticated)
			if asked == "n1" && !leader.waitsFor(id)() {
				t.Error("its place is lost")
			}
			eventually(t, func() bool { return !leader.waitsFor(id)() })
		})
	}
}

func (n *node) sessionAs(headers []string) string {
	n.t.Helper()
	return into[apiv1.SessionCreated](n.t, n.do("POST", apiv1.PathSessions, `{}`, headers...)).SessionID
}

// withoutToken is a token file without one of its tokens.
func withoutToken(file, name string) string {
	var rest []string
	for part := range strings.SplitSeq(file, "[[token]]") {
		if part != "" && !strings.Contains(part, `"`+name+`"`) {
			rest = append(rest, "[[token]]"+part)
		}
	}
	return strings.Join(rest, "")
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = a.issue(t, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore = big.NewInt(1), time.Now().Add(-time.Minute)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}

// certified returns the state of a TLS connection that a client has opened with its certificate.
func (a *authority) certified(t *testing.T, uri string, valid time.Duration) *tls.ConnectionState {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := a.issue(t, &x509.Certificate{
		URIs: []*url.URL{u}, NotAfter: time.Now().Add(valid),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{cert},
		VerifiedChains:   [][]*x509.Certificate{{cert, a.cert}},
	}
}

// connection returns requests on one connection, which a client has opened with its certificate.
func (a *authority) connection(t *testing.T, uri string, valid time.Duration) func(path string) *http.Request {
	t.Helper()
	state := a.certified(t, uri, valid)
	ctx := context.WithValue(t.Context(), trustKey{}, new(connTrust))
	return func(path string) *http.Request {
		r := httptest.NewRequest("GET", "https://127.0.0.1"+path, nil).WithContext(ctx)
		r.RemoteAddr, r.TLS = "192.0.2.1:5", state
		return r
	}
}

// TestConnectionsEndWithTheirCertificate: on a connection that stays open, requests are refused and streams end when
// the certificate has expired, or its authority is no longer trusted.
func TestConnectionsEndWithTheirCertificate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		valid  time.Duration
		revoke bool
	}{
		"expired":           {valid: 30 * time.Second},
		"no longer trusted": {valid: time.Hour, revoke: true},
	} {
		virtually(t, name, func(t *testing.T) {
			old, next := newAuthority(t), newAuthority(t)
			both := x509.NewCertPool()
			both.AddCert(old.cert)
			both.AddCert(next.cert)
			var roots atomic.Pointer[x509.CertPool]
			roots.Store(both)
			n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.ClientRoots = roots.Load })
			request := old.connection(t, "northstar://test/client/alice", tc.valid)
			kept := next.connection(t, "northstar://test/client/bob", time.Hour)
			ask := func(r *http.Request) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				n.ServeHTTP(w, r)
				return w
			}
			if a, b := ask(request("/v1/kv")), ask(kept("/v1/kv")); a.Code != 200 || b.Code != 200 {
				t.Fatalf("before: %d %d", a.Code, b.Code)
			}
			over, goesOn := make(chan struct{}), make(chan struct{})
			go func() { defer close(over); ask(request(apiv1.PathWatch)) }()
			rest, hangUp := context.WithCancel(t.Context())
			go func() { defer close(goesOn); ask(kept(apiv1.PathWatch).WithContext(rest)) }()
			time.Sleep(tc.valid % time.Hour)
			if tc.revoke {
				roots.Store(next.pool)
			}
			began := time.Now()
			<-over
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the stream ended after %v", took)
			}
			if w := ask(request("/v1/kv")); w.Code != 401 || w.Header().Get("Connection") != "close" ||
				!strings.Contains(w.Body.String(), cluster.CodeUnauthenticated.Name()) {
				t.Errorf("after: %d %v %s", w.Code, w.Header(), w.Body)
			}
			if w := ask(kept("/v1/kv")); w.Code != 200 {
				t.Errorf("another certificate: %d %s", w.Code, w.Body)
			}
			select {
			case <-goesOn:
				t.Error("the stream of another certificate ended, too")
			default:
			}
			hangUp()
			<-goesOn
		})
	}
}

// TestForwardedStreamsEndWithTheirNode: a node that is removed reads and holds nothing more under the identities that
// it has asserted.
func TestForwardedStreamsEndWithTheirNode(t *testing.T) {
	virtual(t, func(t *testing.T) {
		trusted := newAuthority(t)
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) {
			d.ClientRoots = func() *x509.CertPool { return trusted.pool }
		})
		ended := map[string]chan struct{}{}
		rest, hangUp := context.WithCancel(t.Context())
		for _, id := range []string{"n2", "n3"} {
			r := trusted.connection(t, "northstar://test/node/"+id, time.Hour)(apiv1.PathWatch)
			r.Header.Set("X-Northstar-Forwarded-By", id)
			r.Header.Set("X-Northstar-Identity", "observer ann")
			over := make(chan struct{})
			ended[id] = over
			ctx, cancel := context.WithCancel(r.Context())
			defer context.AfterFunc(rest, cancel)()
			go func() { defer close(over); n.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx)) }()
		}
		time.Sleep(time.Minute)
		n.fake.removeRecord("n2")
		n.fake.set(func() { n.fake.st.Servers = slices.Delete(slices.Clone(n.fake.st.Servers), 1, 2) })
		time.Sleep(5 * time.Second)
		select {
		case <-ended["n2"]:
		default:
			t.Error("a removed node goes on reading")
		}
		select {
		case <-ended["n3"]:
			t.Error("the stream of a member has ended")
		default:
		}
		hangUp()
		<-ended["n2"]
		<-ended["n3"]
	})
}

// TestStreamBeginsDuringAChange: a token that is removed between the check of a stream's caller and the beginning of
// the stream ends it as well.
func TestStreamBeginsDuringAChange(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, as := identities()
		now := &data
		s := bareServer(t, func(d *Deps) { d.Tokens = func() ([]byte, error) { return *now, nil } })
		r := httptest.NewRequest("GET", "http://127.0.0.1"+apiv1.PathWatch, nil)
		r.RemoteAddr = someAddress
		r.Header.Set(as["alice"][0], as["alice"][1])
		c := &request{ResponseWriter: httptest.NewRecorder(), s: s, r: r, ctx: r.Context()}
		res, _ := s.routes.Find(apiv1.PathWatch, apiv1.PathWatch)
		c.route = res.Methods["GET"]
		if err := c.authorize(); err != nil {
			t.Fatal(err)
		}
		without := []byte(withoutToken(string(data), "alice"))
		now = &without
		s.auth.reload()
		s.auth.endRevoked(time.Now())
		defer s.auth.follow(c)()
		s.auth.endRevoked(time.Now())
		if c.ctx.Err() == nil {
			t.Error("the stream goes on")
		}
	})
}

// TestCertificateName: a certificate without an identity of this cluster has a name of its own, which stays when it is
// renewed.
func TestCertificateName(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	spiffe, _ := url.Parse("spiffe://elsewhere/a")
	also, _ := url.Parse("spiffe://elsewhere/b")
	seen := map[string]string{}
	for _, tc := range []struct {
		what  string
		cert  x509.Certificate
		want  string // "": a digest
		rekey bool   // another key is another name
	}{
		{what: "common name", cert: x509.Certificate{Subject: pkix.Name{CommonName: "app"}}, want: "cert-app"},
		{
			what: "common name and URI", want: "cert-api",
			cert: x509.Certificate{Subject: pkix.Name{CommonName: "api"}, URIs: []*url.URL{spiffe}},
		},
		{what: "URI", cert: x509.Certificate{URIs: []*url.URL{spiffe, also}, DNSNames: []string{"a.example"}}},
		{
			what: "another URI, and a common name that is no name",
			cert: x509.Certificate{Subject: pkix.Name{CommonName: "a b"}, URIs: []*url.URL{also}},
		},
		{what: "DNS name", cert: x509.Certificate{DNSNames: []string{"a.example"}}},
		{what: "the URI as a DNS name", cert: x509.Certificate{DNSNames: []string{"spiffe://elsewhere/a"}}},
		{what: "no name", cert: x509.Certificate{Subject: pkix.Name{CommonName: "Anne O'Hara"}}},
		{what: "a long name", cert: x509.Certificate{Subject: pkix.Name{CommonName: strings.Repeat("a", 64)}}},
		{what: "organization", cert: x509.Certificate{Subject: pkix.Name{Organization: []string{"o"}}}, rekey: true},
		{what: "nothing", rekey: true},
	} {
		name := func() string {
			c := tc.cert
			c.NotAfter = time.Now().Add(time.Hour)
			made, _ := a.issue(t, &c)
			return certificateName(made)
		}
		first, again := name(), name()
		if err := token.CheckName(first); err != nil || tc.want != "" && first != tc.want {
			t.Errorf("%s: %q, %v", tc.what, first, err)
		}
		if (first != again) != tc.rekey {
			t.Errorf("%s: %q, and with another key %q", tc.what, first, again)
		}
		for _, n := range []string{first, again} {
			if before, ok := seen[n]; ok && before != tc.what {
				t.Errorf("%s and %s: both are %q", before, tc.what, n)
			}
			seen[n] = tc.what
		}
	}
}
