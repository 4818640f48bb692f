package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// authority makes certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(t, tmpl, tmpl, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(t *testing.T, tmpl, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// issue writes cert, key and CA files for a certificate with these names.
func (a *authority) issue(t *testing.T, dir string, serial int64, uris ...string) TLSFiles {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth,
		},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	cert := a.sign(t, tmpl, a.cert, key)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := TLSFiles{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt"),
	}
	for name, block := range map[string]*pem.Block{
		f.Cert: {Type: "CERTIFICATE", Bytes: cert.Raw},
		f.Key:  {Type: "PRIVATE KEY", Bytes: keyDER},
		f.CA:   {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (a *authority) load(t *testing.T, uris ...string) *TLS {
	t.Helper()
	m, err := LoadTLS(a.issue(t, t.TempDir(), 2, uris...), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func withTLS(m *TLS) option { return func(c *Config, _ *end) { c.TLS = m } }

func TestPeersOverTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	n1 := newEnd(t, "n1", withTLS(ca.load(t, "northstar://test/node/n1")))
	n2 := newEnd(t, "n2", withTLS(ca.load(t, "northstar://test/node/n2", "https://else.where/")))
	got := n2.bind()
	if _, err := n1.append(n2, nil); err != nil {
		t.Fatal(err)
	}
	if v, err := n1.vote(n2, 6); err != nil || !v.Granted {
		t.Errorf("%+v, %v", v, err)
	}
	if r, err := n1.install(n2, 200, make([]byte, 5<<20)); err != nil || !r.Success {
		t.Errorf("%+v, %v", r, err)
	}
	if n := reached(got); n != 3 {
		t.Errorf("%d messages reached raft", n)
	}
}

// A node without a certificate of this cluster for the ID that it claims connects to no node, neither as client nor as
// server.
func TestTLSIdentity(t *testing.T) {
	t.Parallel()
	ca, otherCA := newAuthority(t), newAuthority(t)
	n1 := newEnd(t, "n1", withTLS(ca.load(t, "northstar://test/node/n1")))
	got := n1.bind()
	mixed := otherCA.issue(t, t.TempDir(), 2, "northstar://test/node/n2")
	mixed.CA = ca.issue(t, t.TempDir(), 3).CA
	half, err := LoadTLS(mixed, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*TLS{
		"another node's":    ca.load(t, "northstar://test/node/n3"),
		"another cluster's": ca.load(t, "northstar://prod/node/n2"),
		"a client's":        ca.load(t, "northstar://test/operator/n2"),
		"nobody's":          ca.load(t),
		"two nodes'":        ca.load(t, "northstar://test/node/n2", "northstar://test/node/n3"),
		"another CA's":      otherCA.load(t, "northstar://test/node/n2"),
		"trusts us only":    half,
		"no TLS":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			n2 := newEnd(t, "n2", withTLS(m))
			n2.bind()
			if _, err := n2.append(n1, nil); err == nil {
				t.Error("as the dialling side: accepted")
			}
			if _, err := n1.heartbeat(n2); err == nil {
				t.Error("as the accepting side: accepted")
			}
		})
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
}

func TestTLSIsNotOlderThan13(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	n1 := newEnd(t, "n1", withTLS(ca.load(t, "northstar://test/node/n1")))
	cfg := ca.load(t, "northstar://test/node/n2").ClientConfig()
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	cfg.ServerName = "127.0.0.1"
	conn, err := tls.Dial("tcp", n1.addr, cfg)
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
}

// New connections use changed files within 10 s, also if a symbolic link changes, as in Kubernetes. An open connection
// continues.
func TestTLSFilesAreReread(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	root := t.TempDir()
	for i, d := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
		ca.issue(t, filepath.Join(root, d), int64(100+i), "northstar://test/node/n1")
	}
	link := func(to string) {
		tmp := filepath.Join(root, "tmp")
		if err := errors.Join(os.Symlink(to, tmp), os.Rename(tmp, filepath.Join(root, "now"))); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	in := func(f string) string { return filepath.Join(root, "now", f) }
	m, err := LoadTLS(TLSFiles{Cert: in("tls.crt"), Key: in("tls.key"), CA: in("ca.crt")}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hi "+r.TLS.PeerCertificates[0].URIs[0].String())
	}))
	srv.TLS = m.ServerConfig(true)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	client := ca.load(t, "northstar://test/operator/ann")
	serial := func() int64 {
		conn, err := client.Dial(t.Context(), dialTCP, srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	old, err := client.Dial(t.Context(), dialTCP, srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if n := serial(); n != 100 {
		t.Fatalf("serial %d", n)
	}
	link("v2")
	eventually(t, "the new certificate is served", func() bool { return serial() == 101 })
	if _, err := io.WriteString(old, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(old); err != nil || len(b) == 0 {
		t.Errorf("the open connection: %q, %v", b, err)
	}
	// After a change to invalid files the old ones stay in use.
	if err := os.WriteFile(in("tls.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.checkedAt = time.Time{}
	m.mu.Unlock()
	if n := serial(); n != 101 {
		t.Errorf("serial %d", n)
	}
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

func TestTLSExpiry(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	files := ca.issue(t, t.TempDir(), 2, "northstar://test/node/n1")
	m, err := LoadTLS(files, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(m.current().cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	node, authority := m.Expiry()
	if !node.Equal(leaf.NotAfter) || !authority.Equal(ca.cert.NotAfter) {
		t.Errorf("node %v, want %v; authority %v, want %v", node, leaf.NotAfter, authority, ca.cert.NotAfter)
	}
	// A chain is valid as long as its first certificate to expire.
	chain := slices.Concat(m.now.raw[2], m.now.raw[0])
	if got, want := firstExpiry(chain), leaf.NotAfter; !got.Equal(want) {
		t.Errorf("chain: %v, want %v", got, want)
	}
}

func TestServerConfigClientCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	m := ca.load(t, "northstar://test/node/n1")
	for _, require := range []bool{true, false} {
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.TLS = m.ServerConfig(require)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		get := func(cfg *tls.Config) error {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
			resp, err := c.Get(srv.URL)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		good, none, foreign := m.ClientConfig(), m.ClientConfig(), m.ClientConfig()
		none.Certificates = nil
		foreign.Certificates = newAuthority(t).load(t).ClientConfig().Certificates
		if err := get(good); err != nil {
			t.Errorf("require %v, good certificate: %v", require, err)
		}
		if err := get(none); (err != nil) != require {
			t.Errorf("require %v, no certificate: %v", require, err)
		}
		if err := get(foreign); err == nil && require {
			t.Errorf("require %v: a foreign certificate was accepted", require)
		}
		srv.Close()
	}
}

func TestLoadTLSErrors(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	a, b := ca.issue(t, t.TempDir(), 1), ca.issue(t, t.TempDir(), 2)
	for name, f := range map[string]TLSFiles{
		"missing":     {Cert: "nowhere", Key: a.Key, CA: a.CA},
		"another key": {Cert: a.Cert, Key: b.Key, CA: a.CA},
		"no CA":       {Cert: a.Cert, Key: a.Key, CA: a.Key},
	} {
		if _, err := LoadTLS(f, hclog.NewNullLogger()); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestParseIdentity(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][3]string{
		"northstar://prod/node/n1":       {"prod", "node", "n1"},
		"northstar://prod/operator/ann":  {"prod", "operator", "ann"},
		"northstar://prod/node/":         {},
		"northstar://prod/node/a/b":      {},
		"northstar://prod//n1":           {},
		"northstar:///node/n1":           {},
		"spiffe://prod/node/n1":          {},
		"northstar://prod/node/n1?x=1":   {},
		"northstar://u@prod/node/n1":     {},
		"northstar://prod/node/n1#there": {},
		"northstar:prod/node/n1":         {},
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		c, role, name, err := ParseIdentity(u)
		if (err == nil) != (want[0] != "") || [3]string{c, role, name} != want {
			t.Errorf("%s: %q %q %q, %v", s, c, role, name, err)
		}
	}
}

func TestNodeIdentityNeedsAValidID(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse("northstar://test/node/N%201")
	if id, err := NodeIdentity(&x509.Certificate{URIs: []*url.URL{u}}, "test"); err == nil {
		t.Errorf("took %q", id)
	}
}
