package proc

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var ctlBin = sync.OnceValues(func() (string, error) { return Program(binDir, "northstarctl") })

// ctl runs northstarctl and returns its output and exit code.
func ctl(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	bin, err := ctlBin()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	data, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(data), cmd.ProcessState.ExitCode()
}

func mustCtl(t *testing.T, args ...string) string {
	t.Helper()
	out, code := ctl(t, args...)
	if code != 0 {
		t.Fatalf("northstarctl %v: exit code %d: %s", args, code, out)
	}
	return out
}

// tokenFile makes a token of each role.
func tokenFile(t *testing.T) (file string, bearer map[string][]string) {
	t.Helper()
	bearer = map[string][]string{"nobody": nil}
	var b strings.Builder
	for _, role := range []string{"observer", "client", "operator"} {
		var made struct{ Token, Hash string }
		if err := json.Unmarshal([]byte(mustCtl(t, "token", "new", "--name", "the-"+role, "--role", role, "-o",
			"json")), &made); err != nil {
			t.Fatal(err)
		}
		bearer[role] = []string{"Authorization", "Bearer " + made.Token}
		fmt.Fprintf(&b, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", "the-"+role, role, made.Hash)
	}
	file = filepath.Join(t.TempDir(), "tokens.toml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, bearer
}

// TestContractTokens: each role at each kind of route, and no caller acts for another one.
func TestContractTokens(t *testing.T) {
	t.Parallel()
	file, bearer := tokenFile(t)
	cl, lead, follower := contractCluster(t, 3, append(calm, "--auth-tokens", file)...)
	c := newContract(t)
	roles := []string{"nobody", "observer", "client", "operator"}
	for _, n := range []*Node{lead, follower} {
		for _, tc := range []struct {
			method, path, body string
			want               []int // by role
		}{
			{"GET", "/leader", "", []int{200, 200, 200, 200}},
			{"GET", "/status", "", []int{200, 200, 200, 200}},
			{"GET", "/v1/cluster", "", []int{200, 200, 200, 200}},
			{"GET", "/metrics", "", []int{200, 200, 200, 200}},
			{"GET", "/v1/kv", "", []int{401, 200, 200, 200}},
			{"GET", "/v1/events", "", []int{401, 200, 200, 200}},
			{"GET", "/v1/elections", "", []int{401, 200, 200, 200}},
			{"PUT", "/v1/kv/k", "v", []int{401, 403, 200, 200}},
			{"DELETE", "/v1/kv/none", "", []int{401, 403, 404, 404}},
			{"GET", "/admin/snapshot", "", []int{401, 403, 403, 200}},
			{"DELETE", "/admin/members/nobody", "", []int{401, 403, 403, 404}},
		} {
			for i, role := range roles {
				h := c.ask(n, tc.method, tc.path, tc.body, bearer[role]...).is(tc.want[i])
				if h.status == 401 && h.header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s: 401 without WWW-Authenticate", h.what)
				}
			}
		}
		spoof := []string{"X-Northstar-Forwarded-By", "n2", "X-Northstar-Identity", "operator eve"}
		c.ask(n, "PUT", "/v1/kv/k", "v", spoof...).is(401, 4401)
		c.ask(n, "PUT", "/v1/kv/k", "v", append(spoof, bearer["observer"]...)...).is(403, 4403)
		c.ask(n, "GET", "/admin/snapshot", "", append(spoof, bearer["client"]...)...).is(403, 4403)
	}
	// Idempotency keys belong to one caller, forwarded or not.
	once := append([]string{"Idempotency-Key", "x"}, bearer["client"]...)
	first := c.ask(follower, "PUT", "/v1/kv/once", "1", once...).is(200)
	if again := c.ask(lead, "PUT", "/v1/kv/once", "1", once...).is(200); string(again.body) != string(first.body) {
		t.Errorf("%s, then %s", first.body, again.body)
	}
	c.ask(follower, "PUT", "/v1/kv/once", "2", append([]string{"Idempotency-Key", "x"},
		bearer["operator"]...)...).is(200)

	seen := 0
	for range 40 {
		if h := c.ask(follower, "GET", "/v1/kv", "", "Authorization",
			"Bearer wrong"); h.status == http.StatusTooManyRequests {
			h.is(429, 4017)
			seen++
		}
	}
	if seen == 0 {
		t.Error("bad tokens are not limited")
	}
	c.ask(follower, "GET", "/v1/kv", "", bearer["client"]...).is(200)

	ep := "--endpoints=" + cl.Nodes[0].HTTP
	for want, args := range map[int][]string{
		0: {"--token", strings.TrimPrefix(bearer["client"][1], "Bearer "), ep, "kv", "put", "k", "v"},
		6: {"--token", strings.TrimPrefix(bearer["client"][1], "Bearer "), ep, "kv", "get", "none"},
		2: {ep, "kv", "frobnicate"},
		4: {ep, "kv", "get", "k"},
		8: {"--endpoints=127.0.0.1:1", "--timeout=300ms", "leader"},
	} {
		if out, code := ctl(t, args...); code != want {
			t.Errorf("northstarctl %v: exit code %d, want %d: %s", args, code, want, out)
		}
	}
	// Changes of the file apply within 5 s; an invalid file changes nothing.
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("garbage ["), 0o600); err != nil {
		t.Fatal(err)
	}
	awaitLog(t, cl, follower, "cannot load token file")
	c.ask(follower, "GET", "/v1/kv", "", bearer["client"]...).is(200)
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(good), `role = "client"`, `role = "observer"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		h, err := c.try(follower, "PUT", "/v1/kv/k", "v", bearer["client"]...)
		if err == nil && h.status != 403 {
			err = fmt.Errorf("still %d", h.status)
		}
		return err
	})
}

// TestContractTLS: certificates of clients and nodes, TLS 1.3 only.
func TestContractTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustCtl(t, "tls", "ca", "--out", dir)
	cert := func(args ...string) {
		mustCtl(t, append([]string{"tls", "cert", "--ca", dir, "--out", dir, "--cluster-name", "northstar"},
			args...)...)
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		cert("--node", id, "--host", "127.0.0.1")
	}
	for _, who := range []string{"observer/eve", "client/bob", "operator/ann"} {
		cert("--client", who)
	}
	cl := newCluster(t, 3, calm...)
	for _, n := range cl.Nodes {
		cl.Extra[n.ID] = []string{
			"--tls-ca", filepath.Join(dir, "ca.crt"), "--tls-cert",
			filepath.Join(dir, n.ID+".crt"), "--tls-key", filepath.Join(dir, n.ID+".key"),
		}
	}
	if err := cl.Start(); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	as := func(name string) *contract {
		c := newContract(t)
		c.scheme = "https"
		cfg := &tls.Config{RootCAs: pool}
		if name != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: cfg}
		t.Cleanup(transport.CloseIdleConnections)
		c.client.Transport = transport
		return c
	}
	eve, bob, ann, node := as("eve"), as("bob"), as("ann"), as("n1")
	eventually(t, soon, func() error { return wantStatus(ann, cl.Nodes[0], "GET", "/v1/kv", 200) })
	for _, n := range cl.Nodes {
		eve.ask(n, "GET", "/v1/kv", "").is(200)
		eve.ask(n, "PUT", "/v1/kv/k", "v").is(403, 4403)
		eve.ask(n, "PUT", "/v1/kv/k", "v", "X-Northstar-Forwarded-By", "n2", "X-Northstar-Identity",
			"operator eve").is(403, 4403)
		bob.ask(n, "PUT", "/v1/kv/k", "v").is(200)
		bob.ask(n, "GET", "/admin/snapshot", "").is(403, 4403)
		ann.ask(n, "GET", "/admin/snapshot", "").is(200)
		node.ask(n, "GET", "/leader", "").is(200)
		node.ask(n, "GET", "/v1/kv", "").is(403, 4403)
		as("").ask(n, "GET", "/leader", "").is(200)
		plain := newContract(t)
		h, err := plain.try(n, "GET", "/leader", "")
		if err != nil {
			t.Fatal(err)
		}
		plain.checkProblem(h.is(400, 4400))
		for what, addr := range map[string]string{"HTTP": n.HTTP, "peers": n.Raft} {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "n1.crt"), filepath.Join(dir, "n1.key"))
			if err != nil {
				t.Fatal(err)
			}
			conn, err := tls.Dial("tcp", addr, &tls.Config{
				RootCAs: pool, Certificates: []tls.Certificate{pair},
				MaxVersion: tls.VersionTLS12,
			})
			if err == nil {
				conn.Close()
				t.Errorf("the port for %s of %s takes TLS 1.2", what, n.ID)
			}
		}
	}
}
