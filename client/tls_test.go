package client

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/testenv"
)

// testCA is a certificate authority.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newTestCA(t *testing.T, name string) *testCA {
	t.Helper()
	a := &testCA{}
	cert, key := a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key, a.pem = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey), cert
	return a
}

// issue returns a certificate and its key in PEM. An authority without a certificate issues its own.
func (a *testCA) issue(t *testing.T, template *x509.Certificate) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// rotatingServer serves one session over TLS, one request for each connection, and asks for client certificates.
type rotatingServer struct {
	*httptest.Server
	renewals chan renewal

	mu    sync.Mutex
	cfg   *tls.Config
	dials map[string]time.Time // by the client's address: when it began to connect
}

// renewal is a request of a client.
type renewal struct {
	authority string    // of the client's certificate
	dialled   time.Time // when the client began to connect: it read its files after that
}

// dial connects a client, and notes when that began.
func (s *rotatingServer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	began := time.Now()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dials[conn.LocalAddr().String()] = began
	}
	return conn, err
}

func (s *rotatingServer) dialled(client string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials[client]
}

// use changes the server's authority, that of the client certificates it accepts, and its address.
func (s *rotatingServer) use(t *testing.T, server, clients *testCA, address string) {
	t.Helper()
	cert, key := server.issue(t, &x509.Certificate{IPAddresses: []net.IP{net.ParseIP(address)}})
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(),
	}
	cfg.ClientCAs.AddCert(clients.cert)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg = cfg
}

func (s *rotatingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	switch r.URL.Path {
	case apiv1.PathSessions:
		reply(w, apiv1.SessionCreated{SessionID: "s", TTLMS: minSessionTTL.Milliseconds()})
	case apiv1.PathSessions + "/s/renew":
		select {
		case s.renewals <- renewal{r.TLS.PeerCertificates[0].Issuer.CommonName, s.dialled(r.RemoteAddr)}:
		default:
		}
		reply(w, apiv1.Renewal{})
	case apiv1.PathLeader:
		reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 1, ObservedBy: "n1"})
	default:
		w.Header().Set(apiv1.HeaderRevision, "3")
	}
}

func startRotating(t *testing.T) *rotatingServer {
	t.Helper()
	s := &rotatingServer{renewals: make(chan renewal), dials: map[string]time.Time{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.cfg, nil
	}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// A session goes on while its cluster changes the authority of all certificates, step by step.
func TestLoadTLS_FollowsItsFiles(t *testing.T) {
	t.Parallel()
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	dir := t.TempDir()
	write := func(name string, data ...[]byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", bytes.Join(data, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	writePair := func(a *testCA) (string, string) {
		cert, key := a.issue(t, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return write("tls.crt", cert), write("tls.key", key)
	}
	s := startRotating(t)
	s.use(t, before, before, "127.0.0.1")
	cert, key := writePair(before)
	cfg, err := LoadTLS(write("ca.crt", before.pem), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Endpoints: []string{strings.TrimPrefix(s.URL, "https://")}, TLS: cfg, Dial: s.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	session, err := c.NewSession(t.Context(), SessionConfig{TTL: minSessionTTL})
	if err != nil {
		t.Fatal(err)
	}
	// A connection that the client began to make before its files changed may be ready after that.
	renewedWith := func(step, authority string) {
		t.Helper()
		changed, late := time.Now(), time.After(testenv.Slowdown()*20*time.Second)
		for got := (renewal{}); got.authority != authority || got.dialled.Before(changed); {
			select {
			case got = <-s.renewals:
			case <-late:
				t.Fatalf("%s: no renewal", step)
			}
		}
	}
	renewedWith("at first", "before")
	write("ca.crt", before.pem, after.pem)
	writePair(after)
	s.use(t, after, after, "127.0.0.1")
	renewedWith("all certificates are new", "after")
	write("ca.crt", after.pem)
	renewedWith("the old authority is gone", "after")
	write("ca.crt", []byte("no certificate"))
	write("tls.key", []byte("no key"))
	renewedWith("files that cannot be used", "after")
	if err := session.Err(); err != nil {
		t.Error(err)
	}

	// A connection that a renewal began to make before the server changed may be ready after that, and serve one Get.
	refuses := func(why string) {
		t.Helper()
		var err error
		for began := time.Now(); time.Since(began) < testenv.Slowdown()*20*time.Second; {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = c.Get(ctx, "k", "")
			cancel()
			if err != nil && strings.Contains(err.Error(), "x509") {
				return
			}
		}
		t.Errorf("%s: %v", why, err)
	}
	s.use(t, after, after, "127.0.0.2")
	refuses("the certificate of another host")
	s.use(t, before, after, "127.0.0.1")
	refuses("the authority that was withdrawn")
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		got.Store(&token)
		w.Header().Set(apiv1.HeaderRevision, "3")
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	c, err := New(Config{Endpoints: []string{server.URL}, TokenFile: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := func(want string) {
		t.Helper()
		for began := time.Now(); ; <-time.After(10 * time.Millisecond) {
			if _, err := c.Get(t.Context(), "k", ""); err != nil {
				t.Fatal(err)
			}
			if *got.Load() == "Bearer "+want {
				return
			}
			if time.Since(began) > testenv.Slowdown()*20*time.Second {
				t.Fatalf("%q is sent, want %q", *got.Load(), want)
			}
		}
	}
	sent("first")
	write("second")
	sent("second")
	write("")
	c.token.mu.Lock()
	c.token.readAt = time.Time{} // the file is due
	c.token.mu.Unlock()
	sent("second")
	if _, err := New(Config{Endpoints: []string{server.URL}, TokenFile: path + ".not"}); err == nil {
		t.Error("a file that does not exist is accepted")
	}
}
