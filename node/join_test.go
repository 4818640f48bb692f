package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
)

// fakeResolver answers look-ups in the order of its script; the last one stays.
type fakeResolver struct {
	mu        sync.Mutex
	responses []func() ([]string, []*net.SRV, error)
	asked     []string
}

func (r *fakeResolver) next(name string) ([]string, []*net.SRV, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, name)
	answer := r.responses[0]
	if len(r.responses) > 1 {
		r.responses = r.responses[1:]
	}
	return answer()
}

func (r *fakeResolver) LookupHost(_ context.Context, host string) ([]string, error) {
	hosts, _, err := r.next(host)
	return hosts, err
}

func (r *fakeResolver) LookupSRV(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	if service != "" || proto != "" {
		return "", nil, errors.New("want the name as it is")
	}
	_, srv, err := r.next(name)
	return name, srv, err
}

// member is a running cluster as a joiner sees it.
type member struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int // of the answers; the last one stays
	asked    []apiv1.MemberAdd
	tokens   []string
	seen     chan struct{} // one for each request
	accepted atomic.Bool
}

func newMember(t *testing.T, statuses ...int) *member {
	m := prepareMember(t, statuses...)
	m.Start()
	return m
}

// newTLSMember is a member that accepts, with this certificate.
func newTLSMember(t *testing.T, files TLSConfig) *member {
	t.Helper()
	m := prepareMember(t, http.StatusOK)
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	m.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	m.Config.ErrorLog = log.New(io.Discard, "", 0)
	m.StartTLS()
	return m
}

func prepareMember(t *testing.T, statuses ...int) *member {
	m := &member{statuses: statuses, seen: make(chan struct{}, 1000)}
	m.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/admin/members" ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("unexpected request: %s %s %v", r.Method, r.URL, r.Header)
		}
		var add apiv1.MemberAdd
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&add); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen <- struct{}{}
		m.asked, m.tokens = append(m.asked, add), append(m.tokens, r.Header.Get("Authorization"))
		status := m.statuses[0]
		if len(m.statuses) > 1 {
			m.statuses = m.statuses[1:]
		}
		if status != http.StatusOK {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(apiv1.Problem{Detail: "not now"})
			return
		}
		m.accepted.Store(true)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *member) addr() string { return m.Listener.Addr().String() }

func newJoiner(m *member, addresses ...string) *joiner {
	return &joiner{
		self:      apiv1.MemberAdd{ID: "n4", RaftAddress: "127.0.0.1:1", HTTPAddress: "127.0.0.1:2"},
		addresses: addresses, client: &http.Client{}, scheme: "http", joined: m.accepted.Load,
		log: hclog.NewNullLogger(),
	}
}

func run(t *testing.T, j *joiner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := j.run(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("not joined: %v, %v", err, ctx.Err())
	}
}

func TestJoin_RetriesUntilAccepted(t *testing.T) {
	t.Parallel()
	m := newMember(t, 503, 409, 200)
	dead := freeAddresses(t, 1)[0]
	j := newJoiner(m, dead, m.addr())
	j.token = "secret"
	run(t, j)
	if len(m.asked) != 3 || m.asked[2].ID != "n4" || m.asked[2].RaftAddress != "127.0.0.1:1" ||
		m.asked[2].HTTPAddress != "127.0.0.1:2" {
		t.Errorf("asked %+v", m.asked)
	}
	if m.tokens[0] != "Bearer secret" {
		t.Errorf("Authorization: %q", m.tokens[0])
	}
}

func TestJoin_LogsReasonOnce(t *testing.T) {
	t.Parallel()
	m := newMember(t, 403)
	var log strings.Builder
	j := newJoiner(m, m.addr())
	j.log = hclog.New(&hclog.LoggerOptions{Output: &log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- j.run(ctx) }()
	for range 3 {
		<-m.seen
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log.String(), "403 Forbidden: not now"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, log.String())
	}
}

func TestJoinNotWhenInACluster(t *testing.T) {
	t.Parallel()
	m := newMember(t, 200)
	m.accepted.Store(true)
	run(t, newJoiner(m, m.addr()))
	if len(m.asked) != 0 {
		t.Errorf("asked %v", m.asked)
	}
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	m := newMember(t, 200)
	host, port, _ := net.SplitHostPort(m.addr())
	number := m.Listener.Addr().(*net.TCPAddr).Port
	none := func() ([]string, []*net.SRV, error) { return nil, nil, nil }
	fail := func() ([]string, []*net.SRV, error) { return nil, nil, errors.New("no such host") }
	for url, found := range map[string]func() ([]string, []*net.SRV, error){
		"dns://peers.local:" + port: func() ([]string, []*net.SRV, error) { return []string{host}, nil, nil },
		"dns+srv://peers.local": func() ([]string, []*net.SRV, error) {
			return nil, []*net.SRV{{Target: "localhost.", Port: uint16(number)}}, nil
		},
	} {
		t.Run(url, func(t *testing.T) {
			m.accepted.Store(false)
			r := &fakeResolver{responses: []func() ([]string, []*net.SRV, error){fail, none, found}}
			d, err := parseDiscover(url, "127.0.0.1:7701")
			if err != nil {
				t.Fatal(err)
			}
			j := newJoiner(m)
			j.discovery, j.resolver = &d, r
			run(t, j)
			if !slices.Equal(r.asked, []string{"peers.local", "peers.local", "peers.local"}) {
				t.Errorf("looked up %v", r.asked)
			}
		})
	}
}

func TestDiscoverTakesTheOwnPort(t *testing.T) {
	d, err := parseDiscover("dns://peers", "10.0.0.1:8001")
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.lookUp(t.Context(), &fakeResolver{responses: []func() ([]string, []*net.SRV, error){
		func() ([]string, []*net.SRV, error) { return []string{"10.0.0.2", "fd00::1"}, nil, nil },
	}})
	if want := []string{"10.0.0.2:8001", "[fd00::1]:8001"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestDiscoverLeavesOutThisNode(t *testing.T) {
	m := newMember(t, 200)
	d, _ := parseDiscover("dns://peers:2", "")
	j := newJoiner(m)
	j.discovery = &d
	j.resolver = &fakeResolver{responses: []func() ([]string, []*net.SRV, error){
		func() ([]string, []*net.SRV, error) { return []string{"127.0.0.1"}, nil, nil },
	}}
	if got, err := j.find(t.Context()); len(got) != 0 || err == nil ||
		!strings.Contains(err.Error(), "resolves only to this node") {
		t.Errorf("got %v, %v", got, err)
	}
}

// DNS can be forged. So a discovered address gets the join token if it shows a node's certificate, whose hosts do not
// matter. Any other certificate of the authority does not do, also one for that address.
func TestDiscoverOverTLS(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	const uri = "northstar://northstar/node/n1"
	noAddress := func(c *x509.Certificate) { c.IPAddresses = nil }
	n := &Node{
		cfg: Config{
			ID: "n4", ClusterName: "northstar", TLS: ca.issue("n4", "northstar://northstar/node/n4", nil),
			HTTPAddr: "127.0.0.1:2", JoinToken: "secret",
		},
		env: Env{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}},
		log: hclog.NewNullLogger(),
	}
	if err := n.loadTLS(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		shown TLSConfig
		join  bool // the address is configured
		taken bool
	}{
		"a node's":                 {shown: ca.issue("a", uri, noAddress), taken: true},
		"another cluster's node's": {shown: ca.issue("b", "northstar://prod/node/n1", nil)},
		"a client's":               {shown: ca.issue("c", "northstar://northstar/operator/ann", nil)},
		"a web server's":           {shown: ca.issue("d", "https://127.0.0.1/", nil)},
		"another authority's":      {shown: other.issue("e", uri, nil)},
		"not for servers": {shown: ca.issue("f", uri, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		})},
		"a node's at a configured address":       {shown: ca.issue("g", uri, nil), join: true, taken: true},
		"another host's at a configured address": {shown: ca.issue("h", uri, noAddress), join: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTLSMember(t, c.shown)
			on := &Node{cfg: n.cfg, env: n.env, log: n.log, tls: n.tls}
			if on.cfg.Join = []string{m.addr()}; !c.join {
				host, port, _ := net.SplitHostPort(m.addr())
				on.cfg.Join, on.cfg.Discover = nil, "dns://peers.local:"+port
				on.env.Resolver = &fakeResolver{responses: []func() ([]string, []*net.SRV, error){
					func() ([]string, []*net.SRV, error) { return []string{host}, nil, nil },
				}}
			}
			j, err := on.newJoiner()
			if err != nil {
				t.Fatal(err)
			}
			if taken := j.ask(t.Context()); taken != c.taken || len(m.tokens) > 0 != c.taken {
				t.Errorf("taken %v, its tokens %q; want %v: %s", taken, m.tokens, c.taken, j.lastError)
			}
		})
	}
}
