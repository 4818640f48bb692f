package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"northstar/api/token"
	"northstar/cluster"
)

// httpsClient trusts the authority and presents a certificate, if one is given.
func (a *authority) httpsClient(cert *TLSConfig) *http.Client {
	a.t.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AddCert(a.cert)
	if cert != nil {
		pair, err := tls.LoadX509KeyPair(cert.Cert, cert.Key)
		if err != nil {
			a.t.Fatal(err)
		}
		// Unlike Certificates, this is presented also where the server does not
		// name its authority.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, Timeout: soon}
}

func TestClusterWithCertificatesAndTokens(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	operator, hash := token.New()
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	if err := os.WriteFile(tokens, []byte("[[token]]\nname = 'op'\nrole = 'operator'\nhash = '"+hash+"'\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	secure := func(c *Config) {
		c.TLS = ca.issue(string(c.ID), "northstar://northstar/node/"+string(c.ID), nil)
		c.Auth.Tokens = tokens
	}
	nodes := newCluster(t, 3, func(i int, c *Config) {
		secure(c)
		calm(i, c)
	})
	lead := startAll(t, nodes)
	follower := nodes[0]
	if follower == lead {
		follower = nodes[1]
	}
	url := "https://" + follower.httpAddr
	app := ca.issue("app", "northstar://northstar/client/app", nil)
	both := ca.httpsClient(&app) // as curl and browsers, which offer HTTP/2 first
	both.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	want(t, both, "PUT", url+"/v1/kv/a", "1", 200, `"revision"`)
	want(t, ca.httpsClient(nil), "PUT", url+"/v1/kv/a", "1", 401, "ERR_UNAUTHENTICATED")
	other := newAuthority(t, "other")
	stranger := other.issue("app", "northstar://northstar/operator/app", nil)
	c := ca.httpsClient(&stranger)
	if _, _, err := request(c, "GET", url+"/leader", ""); err == nil {
		t.Error("a certificate of another authority is taken")
	}

	// One more node joins with a token, one with its certificate alone.
	for _, join := range []struct {
		id    cluster.NodeID
		token string
	}{{"n4", operator}, {"n5", ""}} {
		n := prepare(t, join.id, func(c *Config) {
			secure(c)
			c.Join, c.JoinToken = []string{nodes[0].httpAddr, nodes[1].httpAddr}, join.token
		})
		n.start()
		eventually(t, "a new node is a voter",
			func() bool { return n.Consensus().Status().Suffrage() == cluster.Voter })
		want(t, ca.httpsClient(&app), "GET", "https://"+n.httpAddr+"/v1/kv/a", "", 200, "1")
	}
}

// rewrite replaces a file by a rename, as a node that reads it expects.
func rewrite(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", content, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestChangeOfTheAuthority takes the steps of docs/security.md. Leadership stays, and every node serves afterwards.
func TestChangeOfTheAuthority(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	nodes := newCluster(t, 3, func(i int, c *Config) {
		c.TLS = old.issue(string(c.ID), "northstar://northstar/node/"+string(c.ID), nil)
		calm(i, c)
	})
	lead := startAll(t, nodes)
	term := lead.Consensus().Status().Term
	oldApp := old.issue("app", "northstar://northstar/client/app", nil)
	nextApp := next.issue("app", "northstar://northstar/client/app", nil)
	everywhere := func(what string, client *http.Client, works bool) {
		t.Helper()
		for _, n := range nodes {
			eventually(t, what+" at "+string(n.cfg.ID), func() bool {
				status, _, err := request(client, "PUT", "https://"+n.httpAddr+"/v1/kv/a", "1")
				return (err == nil && status == 200) == works
			})
		}
	}
	both := slices.Concat(read(t, old.file), read(t, next.file))
	rewrite(t, old.file, both)
	everywhere("certificates of the next authority count", old.httpsClient(&nextApp), true)
	for _, n := range nodes {
		renewed := next.issue(string(n.cfg.ID), "northstar://northstar/node/"+string(n.cfg.ID), nil)
		rewrite(t, n.cfg.TLS.Key, read(t, renewed.Key))
		rewrite(t, n.cfg.TLS.Cert, read(t, renewed.Cert))
	}
	everywhere("the new certificates are in use", next.httpsClient(&oldApp), true)
	rewrite(t, old.file, read(t, next.file))
	everywhere("certificates of the old authority do not count", next.httpsClient(&oldApp), false)
	everywhere("the service goes on", next.httpsClient(&nextApp), true)
	if st := lead.Consensus().Status(); st.Role != cluster.Leader || st.Term != term {
		t.Errorf("%s is a %s of term %d, and led in term %d", st.NodeID, st.Role, st.Term, term)
	}
}

// TestFilesThatCannotBeUsed: tokens and certificates that a changed file takes away
// by being unusable stay in force, and the node says so until it is mended.
func TestFilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	tok, hash := token.New()
	tokens := filepath.Join(t.TempDir(), "tokens.toml")
	file := "[[token]]\nname = 'op'\nrole = 'operator'\nhash = '" + hash + "'\n"
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tokens, file)
	n := newCluster(t, 1, func(_ int, c *Config) {
		c.TLS = ca.issue(string(c.ID), "northstar://northstar/node/"+string(c.ID), nil)
		c.Auth.Tokens = tokens
	})[0]
	startAll(t, []*testNode{n})
	client, url := ca.httpsClient(nil), "https://"+n.httpAddr
	put := func() int {
		req, _ := http.NewRequest("PUT", url+"/v1/kv/a", strings.NewReader("1"))
		req.Header.Set("Authorization", "Bearer "+tok)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	said := func(failed string) func() bool {
		return func() bool {
			_, metrics, err := request(client, "GET", url+"/metrics", "")
			return err == nil && strings.Contains(metrics, `northstar_reload_failed{file="tokens"} `+failed) &&
				strings.Contains(metrics, `northstar_reload_failed{file="tls"} `+failed)
		}
	}
	eventually(t, "nothing is said of good files", said("0"))
	cert, err := os.ReadFile(n.cfg.TLS.Cert)
	if err != nil {
		t.Fatal(err)
	}
	write(tokens, "")
	write(n.cfg.TLS.Cert, "half")
	eventually(t, "the metrics tell", said("1"))
	if status := put(); status != 200 {
		t.Errorf("the token that was read before: %d", status)
	}
	want(t, client, "GET", url+"/status", "", 200, "auth.tokens: reload failed")
	want(t, client, "GET", url+"/status", "", 200, "tls: reload failed")
	eventually(t, "the event log tells", func() bool {
		items, _, _ := n.eventLog.Latest("node", 20)
		return slices.ContainsFunc(items, func(e cluster.Event) bool {
			return strings.HasPrefix(e.Message,
				"auth.tokens: ")
		}) &&
			slices.ContainsFunc(items, func(e cluster.Event) bool { return strings.HasPrefix(e.Message, "tls: ") })
	})
	write(tokens, file)
	write(n.cfg.TLS.Cert, string(cert))
	eventually(t, "the metrics tell that it is mended", said("0"))
	want(t, client, "GET", url+"/status", "", 200, `"warnings":[]`)
}

// A certificate of another node is not taken from a changed file either: with it, no peer would talk to this node.
func TestChangedCertificateOfAnotherNode(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	n := newCluster(t, 1, func(_ int, c *Config) {
		c.TLS = ca.issue("n1", "northstar://northstar/node/"+string(c.ID), nil)
	})[0]
	startAll(t, []*testNode{n})
	client, url := ca.httpsClient(nil), "https://"+n.httpAddr
	failed := func(want string) func() bool {
		return func() bool {
			_, metrics, err := request(client, "GET", url+"/metrics", "")
			return err == nil && strings.Contains(metrics, `northstar_reload_failed{file="tls"} `+want)
		}
	}
	shown := func() string {
		conn, err := tls.Dial("tcp", n.httpAddr, client.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].URIs[0].String()
	}
	own := shown()
	ca.issue("n1", "northstar://northstar/node/n9", nil) // replaces the files
	eventually(t, "the metrics tell", failed("1"))
	if got := shown(); got != own {
		t.Errorf("it shows the certificate of %s", got)
	}
	want(t, client, "GET", url+"/status", "", 200, "is not this node's")
	ca.issue("n1", own, nil)
	eventually(t, "the metrics tell that it is mended", failed("0"))
}
