package hostile

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"northstar/api/token"
	"northstar/chaos/ports"
	"northstar/chaos/proc"
	"northstar/chaos/testenv"
)

// Source addresses of those who are not attackers.
var (
	writerAddress   = net.IPv4(127, 0, 0, 2)
	operatorAddress = net.IPv4(127, 0, 0, 3)
	probeAddress    = net.IPv4(127, 0, 0, 4)
)

// cluster is the cluster under attack, with tokens: of an operator, of a client that is no attacker, and of attackers.
type cluster struct {
	*proc.Cluster
	operator, writer string
	attackers        []string
	scheme           string
	roots            *x509.CertPool
	etcd             map[string]string // addresses of the etcd API by node; nil: there is none
}

// start starts three nodes with a token for each caller of the attacker.
func start(ctx context.Context, bin string, a Attack, flags []string) (*cluster, error) {
	nodes, err := proc.NorthStar(bin, 3, append(flags, a.Flags...)...)
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: nodes, scheme: "http"}
	err = c.writeTokens(a.Callers)
	if err == nil && a.TLS {
		c.scheme = "https"
		err = c.writeCertificates()
	}
	if err == nil && a.Etcd {
		err = c.serveEtcd()
	}
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		_, err = c.leader(ctx)
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Logs())
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) writeTokens(attackers int) error {
	var file strings.Builder
	add := func(name, role string) string {
		text, hash := token.New()
		fmt.Fprintf(&file, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", name, role, hash)
		return text
	}
	c.operator, c.writer = add("operator", "operator"), add("writer", "client")
	for i := range attackers {
		c.attackers = append(c.attackers, add(fmt.Sprintf("attacker%d", i), "client"))
	}
	path := filepath.Join(c.Dir, "tokens.toml")
	c.addFlags(func(*proc.Node) []string { return []string{"--auth-tokens", path} })
	return os.WriteFile(path, []byte(file.String()), 0o600)
}

func (c *cluster) addFlags(flags func(*proc.Node) []string) {
	for _, n := range c.Nodes {
		c.Extra[n.ID] = append(c.Extra[n.ID], flags(n)...)
	}
}

// serveEtcd makes each node serve the etcd API.
func (c *cluster) serveEtcd() error {
	addrs, err := ports.Reserve(len(c.Nodes))
	if err != nil {
		return err
	}
	c.etcd = map[string]string{}
	for i, n := range c.Nodes {
		c.etcd[n.ID] = addrs[i]
	}
	c.addFlags(func(n *proc.Node) []string { return []string{"--etcd-addr", c.etcd[n.ID]} })
	return nil
}

// writeCertificates makes an authority, and a certificate of it for each node.
func (c *cluster) writeCertificates() error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, public, private)
	if err != nil {
		return err
	}
	ca := filepath.Join(c.Dir, "ca.crt")
	if err := writePEM(ca, "CERTIFICATE", der); err != nil {
		return err
	}
	if authority, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	c.roots = x509.NewCertPool()
	c.roots.AddCert(authority)
	for i, n := range c.Nodes {
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)), NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			URIs:        []*url.URL{{Scheme: "northstar", Host: "northstar", Path: "/node/" + n.ID}},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if err := c.writeLeaf(n.ID, leaf, authority, private); err != nil {
			return err
		}
	}
	c.addFlags(func(n *proc.Node) []string {
		base := filepath.Join(c.Dir, n.ID)
		return []string{"--tls-ca", ca, "--tls-cert", base + ".crt", "--tls-key", base + ".key"}
	})
	return nil
}

func (c *cluster) writeLeaf(id string, leaf, authority *x509.Certificate, signer ed25519.PrivateKey) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, public, signer)
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	base := filepath.Join(c.Dir, id)
	return errors.Join(writePEM(base+".crt", "CERTIFICATE", der), writePEM(base+".key", "PRIVATE KEY", key))
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// caller makes requests to the cluster from one address, with one token.
type caller struct {
	c     *cluster
	token string
	http  *http.Transport
}

// caller returns a caller. token may be empty. It must be closed.
func (c *cluster) caller(token string, from net.IP) *caller {
	return &caller{c: c, token: token, http: &http.Transport{
		DialContext: dialer(from).DialContext, TLSClientConfig: &tls.Config{RootCAs: c.roots}, MaxIdleConnsPerHost: 4,
	}}
}

// forget closes the idle connections: the next request has a new one.
func (u *caller) forget() { u.http.CloseIdleConnections() }

// do makes a request. An answer other than 200 is an error.
func (u *caller) do(ctx context.Context, n *proc.Node, method, path string, body []byte) ([]byte, error) {
	addr := n.HTTP
	if strings.HasPrefix(path, "/v3/") {
		addr = u.c.etcd[n.ID]
	}
	req, err := http.NewRequestWithContext(ctx, method, u.c.scheme+"://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if u.token != "" {
		req.Header.Set("Authorization", "Bearer "+u.token)
	}
	resp, err := u.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text)
	}
	return text, err
}

// get makes a request and decodes its answer into v.
func (u *caller) get(ctx context.Context, n *proc.Node, path string, v any) error {
	text, err := u.do(ctx, n, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// leader waits until every node names the same leader and every node is ready, and returns the leader.
func (c *cluster) leader(ctx context.Context) (*proc.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, testenv.Slowdown()*30*time.Second)
	defer cancel()
	u := c.caller("", probeAddress)
	defer u.forget()
	for {
		n, err := c.agreed(ctx, u)
		if err == nil {
			return n, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no leader: %w", err)
		}
		wait(ctx, 10*time.Millisecond)
	}
}

func (c *cluster) agreed(ctx context.Context, u *caller) (leader *proc.Node, err error) {
	id := ""
	for i, n := range c.Nodes {
		var answer struct {
			ID string `json:"leader_id"`
		}
		if err := u.get(ctx, n, "/leader", &answer); err != nil {
			return nil, err
		}
		if _, err := u.do(ctx, n, http.MethodGet, "/readyz", nil); err != nil {
			return nil, err
		}
		if i > 0 && answer.ID != id {
			return nil, fmt.Errorf("%s names %s, others %s", n.ID, answer.ID, id)
		}
		if id = answer.ID; n.ID == id {
			leader = n
		}
	}
	if leader == nil {
		return nil, fmt.Errorf("the leader %q is no node", id)
	}
	return leader, nil
}

// fillLists writes values that make one list as long as it can be.
func fillLists(ctx context.Context, c *cluster) error { return c.write(ctx, 4, 1<<20) }

// fillHistory writes as much as the history for watches keeps: what it needs is not the attack's.
func fillHistory(ctx context.Context, c *cluster) error { return c.write(ctx, 256, 256<<10) }

// write writes values of a size to four keys in turn.
func (c *cluster) write(ctx context.Context, values, size int) error {
	u := c.caller(c.writer, writerAddress)
	defer u.forget()
	value := []byte(randomText(size))
	for i := range values {
		path := fmt.Sprintf("/v1/kv/%s%d", bigPrefix, i%4)
		if _, err := u.do(ctx, c.Nodes[0], http.MethodPut, path, value); err != nil {
			return err
		}
	}
	return nil
}
