package proc

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// authority issues certificates with northstarctl.
type authority struct {
	t   *testing.T
	dir string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	mustCtl(t, "tls", "ca", "--out", a.dir)
	return a
}

func (a *authority) pem() []byte {
	a.t.Helper()
	data, err := os.ReadFile(filepath.Join(a.dir, "ca.crt"))
	if err != nil {
		a.t.Fatal(err)
	}
	return data
}

// issue creates a certificate and returns the paths of it and its key. who is "--node ID" or "--client ROLE/NAME".
func (a *authority) issue(who ...string) (cert, key string) {
	a.t.Helper()
	dir := a.t.TempDir()
	mustCtl(a.t, append([]string{
		"tls", "cert", "--ca", a.dir, "--out", dir, "--cluster-name", "northstar", "--host",
		"127.0.0.1",
	}, who...)...)
	name := filepath.Base(who[1])
	return filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
}

func (a *authority) pair(who ...string) tls.Certificate {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.issue(who...))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

// replace replaces a file as operators should: by renaming.
func replace(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// secured is a cluster with TLS and tokens whose files the test replaces.
type secured struct {
	*Cluster
	t   *testing.T
	dir string
}

func (s *secured) file(name string) string { return filepath.Join(s.dir, name) }

// certify issues every node a new certificate of that authority.
func (s *secured) certify(by *authority) {
	s.t.Helper()
	for _, n := range s.Nodes {
		cert, key := by.issue("--node", n.ID)
		for from, to := range map[string]string{key: n.ID + ".key", cert: n.ID + ".crt"} {
			data, err := os.ReadFile(from)
			if err != nil {
				s.t.Fatal(err)
			}
			replace(s.t, s.file(to), data)
		}
	}
}

// reread waits until every node has read its files that many times in total.
func (s *secured) reread(line string, times int) {
	s.t.Helper()
	for _, n := range s.Nodes {
		eventually(s.t, soon, func() error {
			if got := strings.Count(s.Log(n), line); got < times {
				return fmt.Errorf("%s has said %q %d times of %d", n.ID, line, got, times)
			}
			return nil
		})
	}
}

// tally counts the results of a load's requests.
type tally struct {
	done   atomic.Int64
	renews atomic.Int64 // clients that keep their connections and have a new certificate
	mu     sync.Mutex
	failed []string
}

// drive sends reads and writes to all nodes in turn until ctx ends, on persistent connections and on new ones each
// time. With a new certificate it makes new connections.
func (y *tally) drive(ctx context.Context, s *secured, name string, fresh bool, config func() *tls.Config,
	bearer ...string,
) {
	tr := &http.Transport{TLSClientConfig: config(), DisableKeepAlives: fresh}
	defer tr.CloseIdleConnections()
	for i := 0; ctx.Err() == nil; i++ {
		if now := config(); fresh {
			tr.TLSClientConfig = now
		} else if !slices.EqualFunc(now.Certificates, tr.TLSClientConfig.Certificates, sameCertificate) {
			tr.CloseIdleConnections()
			tr.TLSClientConfig = now
			y.renews.Add(1)
		}
		n := s.Nodes[i%len(s.Nodes)]
		method, path := http.MethodPut, "/v1/kv/load-"+name+"?timeout_ms=20000"
		if i%2 == 0 {
			method, path = http.MethodGet, "/v1/kv?limit=1"
		}
		req, err := http.NewRequest(method, "https://"+n.HTTP+path, strings.NewReader("v"))
		if err != nil {
			panic(err) // the pattern is constant
		}
		if len(bearer) == 2 {
			req.Header.Set(bearer[0], bearer[1])
		}
		resp, err := tr.RoundTrip(req)
		what := ""
		if err == nil {
			body, err2 := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err = err2; resp.StatusCode != http.StatusOK {
				what = string(body)
			}
		}
		if err != nil {
			what = err.Error()
		}
		if what != "" {
			y.mu.Lock()
			y.failed = append(y.failed, fmt.Sprintf("%s, request %d: %s %s at %s: %s", name, i, method, path, n.ID,
				what))
			y.mu.Unlock()
		}
		y.done.Add(1)
		pause(5 * time.Millisecond) // as many requests as the steps need
	}
}

func sameCertificate(a, b tls.Certificate) bool {
	return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
}

// Certificates are renewed, the authority is replaced, and tokens are added and removed. Meanwhile clients write and
// read on old and new connections. No request fails and no election is held. In the end the old authority and the old
// token are rejected, among the nodes too.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t), newAuthority(t)
	file, bearer := tokenFile(t)
	s := &secured{Cluster: newCluster(t, 3, append(calm, "--auth-tokens", file)...), t: t, dir: t.TempDir()}
	replace(t, s.file("ca.crt"), first.pem())
	s.certify(first)
	for _, n := range s.Nodes {
		s.Extra[n.ID] = []string{
			"--tls-ca", s.file("ca.crt"), "--tls-cert", s.file(n.ID + ".crt"), "--tls-key",
			s.file(n.ID + ".key"),
		}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(first.pem())
	pool.AppendCertsFromPEM(second.pem())
	var mine atomic.Pointer[tls.Certificate] // of the client with a certificate
	old := first.pair("--client", "client/bob")
	mine.Store(&old)
	withToken := func() *tls.Config { return &tls.Config{RootCAs: pool} }
	withCertificate := func() *tls.Config {
		return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{*mine.Load()}}
	}
	term := s.ready(withCertificate())

	var y tally
	ctx, stop := context.WithCancel(t.Context())
	var driving sync.WaitGroup
	t.Cleanup(func() { stop(); driving.Wait() })
	for i, fresh := range []bool{false, true, false, true} {
		driving.Go(func() {
			if i < 2 {
				y.drive(ctx, s, fmt.Sprintf("token-%d", i), fresh, withToken, bearer["client"]...)
			} else {
				y.drive(ctx, s, fmt.Sprintf("certificate-%d", i), fresh, withCertificate)
			}
		})
	}
	const changed = "TLS files changed"
	driven := y.done.Load()
	step := func(reads int) {
		s.reread(changed, reads)
		eventually(t, soon, func() error { // some requests after each step
			if n := y.done.Load(); n < driven+20 {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		})
		driven = y.done.Load()
	}
	tokens, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var extra struct{ Token, Hash string }
	if err := json.Unmarshal([]byte(mustCtl(t, "token", "new", "--name", "more", "--role", "observer", "-o", "json")),
		&extra); err != nil {
		t.Fatal(err)
	}

	replace(t, s.file("ca.crt"), append(first.pem(), second.pem()...))
	replace(t, file, fmt.Appendf(tokens, "[[token]]\nname = \"more\"\nrole = \"observer\"\nhash = %q\n", extra.Hash))
	step(1)
	s.reread("token file reloaded", 1)
	s.certify(second)
	reissued := second.pair("--client", "client/bob")
	mine.Store(&reissued)
	step(2)
	replace(t, file, tokens)
	s.reread("token file reloaded", 2)
	eventually(t, soon, func() error { // connections with a certificate of the first authority are of no use after this
		if y.renews.Load() < 1 {
			return errors.New("the client that keeps its connections has not renewed them")
		}
		return nil
	})
	replace(t, s.file("ca.crt"), second.pem())
	step(3)
	stop()
	driving.Wait()
	t.Logf("%d requests", y.done.Load())
	if len(y.failed) > 0 {
		t.Errorf("%d of %d requests failed, the first: %s", len(y.failed), y.done.Load(), y.failed[0])
	}
	if now := s.ready(withCertificate()); now != term {
		t.Errorf("term %d, it was %d", now, term)
	}
	for _, n := range s.Nodes {
		if status, err := s.get(n, withToken(), "Authorization", "Bearer "+extra.Token); err != nil ||
			status != http.StatusUnauthorized {
			t.Errorf("a token that was taken out: %d %v", status, err)
		}
		if status, err := s.get(n, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{old}}); err == nil {
			t.Errorf("%s answers %d to a certificate of the old authority", n.ID, status)
		}
		for by, want := range map[*authority]bool{first: false, second: true} {
			if err := s.knock(n, pool, by.pair("--node", "n1")); (err == nil) != want {
				t.Errorf("a peer with a certificate of the new authority (%v) at %s: %v", want, n.ID, err)
			}
		}
	}
	// A node that restarts is accepted with its new certificate.
	s.Nodes[2].Kill()
	if err := s.StartNode(s.Nodes[2]); err != nil {
		t.Fatal(err)
	}
	s.ready(withCertificate())
}

// get requests a page of keys from one node, on a connection of its own.
func (s *secured) get(n *Node, cfg *tls.Config, header ...string) (status int, err error) {
	tr := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+n.HTTP+
		"/v1/kv?limit=1&timeout_ms=20000", nil)
	if err != nil {
		return 0, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, err
}

// ready waits until every node answers, and returns the term.
func (s *secured) ready(cfg *tls.Config) (term uint64) {
	s.t.Helper()
	for _, n := range s.Nodes {
		eventually(s.t, soon, func() error {
			status, err := s.get(n, cfg)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%s answers %d", n.ID, status)
			}
			return err
		})
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	resp, err := client.Get("https://" + s.Nodes[0].HTTP + "/status")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var st status
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		s.t.Fatal(err)
	}
	return st.Term
}

// knock makes the TLS handshake of a peer. The other side checks the certificate after the handshake: silence means
// that it accepted and waits for a hello.
func (s *secured) knock(n *Node, pool *x509.CertPool, pair tls.Certificate) error {
	conn, err := tls.Dial("tcp", n.Raft, &tls.Config{
		RootCAs: pool, ServerName: "127.0.0.1",
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"northstar-peer"},
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("hung up: %w", err)
	}
	return nil
}
