package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"northstar/api/token"
)

// authority is a CA for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.crt", "CERTIFICATE", der)
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

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// issue makes a certificate for loopback addresses with that URI.
func (a *authority) issue(name, uri string, change func(*x509.Certificate)) TLSConfig {
	a.t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{u},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return TLSConfig{
		Cert: a.write(name+".crt", "CERTIFICATE", der), Key: a.write(name+".key", "EC PRIVATE KEY", keyDER),
		CA: a.file,
	}
}

func TestValidateCertificate(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	good := ca.issue("n1", "northstar://northstar/node/n1", nil)
	otherNode := ca.issue("n2", "northstar://northstar/node/n2", nil)
	otherCluster := ca.issue("n1x", "northstar://prod/node/n1", nil)
	expired := ca.issue("n1old", "northstar://northstar/node/n1",
		func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	noClient := ca.issue("n1s", "northstar://northstar/node/n1", func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	with := func(t TLSConfig, change func(*TLSConfig)) TLSConfig {
		change(&t)
		return t
	}
	for _, c := range []struct {
		name string
		tls  TLSConfig
		want string
	}{
		{"good", good, ""},
		{
			"missing certificate", with(good, func(c *TLSConfig) { c.Cert = "/nowhere" }),
			`tls.cert = "/nowhere": open /nowhere`,
		},
		{"missing key", with(good, func(c *TLSConfig) { c.Key = "/nowhere" }), `tls.key = "/nowhere": open /nowhere`},
		{"missing CA", with(good, func(c *TLSConfig) { c.CA = "/nowhere" }), `tls.ca = "/nowhere": open /nowhere`},
		{"nothing there", TLSConfig{Cert: "/no/cert", Key: "/no/key", CA: "/no/ca"}, `tls.cert = "/no/cert": open /no/cert: no such file or directory
tls.key = "/no/key": open /no/key: no such file or directory
tls.ca = "/no/ca": open /no/ca`},
		{"CA is no certificate", with(good, func(c *TLSConfig) { c.CA = good.Key }), "holds no certificate"},
		{"key of another", with(good, func(c *TLSConfig) { c.Key = otherNode.Key }), "tls.cert = "},
		{
			"another node's", otherNode,
			"want the URI northstar://northstar/node/n1 among its names, it has [northstar://northstar/node/n2]",
		},
		{"another cluster's", otherCluster, "is not this node's"},
		{"another CA", with(good, func(c *TLSConfig) { c.CA = other.file }), "peers will refuse it"},
		{"expired", expired, "peers will refuse it"},
		{"not for clients", noClient, "peers will refuse it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := valid(func(cfg *Config) { cfg.TLS, cfg.HTTPAddr = c.tls, "10.0.0.1:7701" }).Validate(time.Now())
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestValidateTokens(t *testing.T) {
	_, hash := token.New()
	good := writeFile(t, "[[token]]\nname = 'a'\nrole = 'operator'\nhash = '"+hash+"'\n")
	if err := valid(func(c *Config) { c.Auth.Tokens = good }).Validate(time.Now()); err != nil {
		t.Error(err)
	}
	bad := writeFile(t, "[[token]]\nname = 'a'\nrole = 'king'\nhash = '"+hash+"'\n")
	if err := valid(func(c *Config) { c.Auth.Tokens = bad }).Validate(time.Now()); err == nil ||
		!strings.Contains(err.Error(), `role "king"`) {
		t.Errorf("got %v", err)
	}
}
