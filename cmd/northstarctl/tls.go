package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"northstar/api/token"
	"northstar/cluster"
)

// Lifetimes, and how far back a certificate begins, for clocks that are behind.
const (
	day       = 24 * time.Hour
	backdated = 5 * time.Minute
)

type tlsCmd struct {
	CA   tlsCACmd   `cmd:"" name:"ca" help:"Make a certificate authority: ca.crt and ca.key."`
	Cert tlsCertCmd `cmd:"" help:"Make a certificate for a node or a client: NAME.crt and NAME.key."`
}

type tlsCACmd struct {
	Out   string `required:"" type:"path" placeholder:"DIR" help:"Directory for ca.crt and ca.key."`
	Days  int    `default:"3650" help:"Lifetime in days."`
	Force bool   `help:"Replace files that exist."`
}

func (c *tlsCACmd) Run(a *app) error {
	if c.Days < 1 {
		return usagef("--days: want 1 or more")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	template := certificate("NorthStar CA", time.Now(), c.Days)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	return a.savePair(c.Out, "ca", der, key, template.NotAfter, c.Force)
}

// tlsCertCmd takes its CA from the --ca of all commands, here the directory
// with ca.crt and ca.key.
type tlsCertCmd struct {
	Out         string   `required:"" type:"path" placeholder:"DIR" help:"Directory for the certificate and its key."`
	Node        string   `xor:"who" required:"" placeholder:"ID" help:"For this node."`
	Client      string   `xor:"who" required:"" placeholder:"ROLE/NAME" help:"For this client; ROLE is observer, client or operator."`
	ClusterName string   `required:"" placeholder:"C" help:"The nodes' cluster-name."`
	Host        []string `placeholder:"H" help:"Name or IP address that the node is reached by; may be repeated."`
	Days        int      `default:"365" help:"Lifetime in days."`
	Force       bool     `help:"Replace files that exist."`
}

func (c *tlsCertCmd) Run(a *app) error {
	name, template, err := c.template(time.Now())
	if err != nil {
		return &usageError{err}
	}
	if a.CA == "" {
		return usagef("--ca: want the directory with ca.crt and ca.key")
	}
	ca, caKey, err := loadCA(filepath.Dir(caFile(a.CA)))
	if err != nil {
		return err
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
		fmt.Fprintf(a.stderr, "northstarctl: the certificate ends with its CA, on %s\n", ca.NotAfter.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	return a.savePair(c.Out, name, der, key, template.NotAfter, c.Force)
}

// template is what the flags ask for, and the name of its files.
func (c *tlsCertCmd) template(now time.Time) (name string, t *x509.Certificate, err error) {
	if c.Days < 1 {
		return "", nil, errors.New("--days: want 1 or more")
	}
	if c.ClusterName == "" || url.PathEscape(c.ClusterName) != c.ClusterName {
		return "", nil, fmt.Errorf("--cluster-name %q: want characters that need no escaping in a URL", c.ClusterName)
	}
	role := "node"
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if c.Node != "" {
		name = c.Node
		if _, err := cluster.ParseNodeID(name); err != nil {
			return "", nil, fmt.Errorf("--node: %w", err)
		}
		if len(c.Host) == 0 {
			return "", nil, errors.New("--host: a node's certificate needs at least one, else nobody can verify it")
		}
	} else {
		role, name, _ = strings.Cut(c.Client, "/")
		usages = usages[1:]
		_, err := token.ParseRole(role)
		if err = errors.Join(err, token.CheckName(name)); err != nil {
			return "", nil, fmt.Errorf("--client %q: want ROLE/NAME: %w", c.Client, err)
		}
	}
	if name == "ca" {
		return "", nil, errors.New(`the name "ca" is that of the CA's own files`)
	}
	t = certificate(name, now, c.Days)
	t.KeyUsage, t.ExtKeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, usages, true
	t.URIs = []*url.URL{{Scheme: "northstar", Host: c.ClusterName, Path: "/" + role + "/" + name}}
	return name, t, addHosts(t, c.Host)
}

var hostPattern = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)

func addHosts(t *x509.Certificate, hosts []string) error {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
			continue
		}
		if len(h) > 253 || !hostPattern.MatchString(h) {
			return fmt.Errorf("--host %q: want a host name or an IP address, without a port", h)
		}
		t.DNSNames = append(t.DNSNames, h)
	}
	return nil
}

func certificate(name string, now time.Time, days int) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand.Reader never fails: it ends the process instead
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-backdated),
		NotAfter:     now.Add(time.Duration(days) * day),
	}
}

// loadCA reads ca.crt and ca.key of a directory.
func loadCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certDER, err := readPEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE")
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := readPEM(filepath.Join(dir, "ca.key"), "PRIVATE KEY")
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, nil, fmt.Errorf("read ca.crt: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, nil, fmt.Errorf("read ca.key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !cert.IsCA || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("%s: ca.crt is no CA certificate, or ca.key is not its key", dir)
	}
	return cert, key, nil
}

func readPEM(name, kind string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s: holds no %s in PEM", name, kind)
	}
	return block.Bytes, nil
}

// savePair writes a certificate and its key, the key for its owner only. It
// replaces nothing unless forced.
func (a *app) savePair(dir, name string, der []byte, key *ecdsa.PrivateKey, until time.Time, force bool) error {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	certFile, keyFile := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	for _, f := range []string{certFile, keyFile} {
		if _, err := os.Lstat(f); !errors.Is(err, fs.ErrNotExist) && !force {
			return fmt.Errorf("%s exists: --force replaces it", f)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	write := func(file string, mode fs.FileMode, kind string, der []byte) error {
		return writeFile(file, mode, func(f *os.File) error { return pem.Encode(f, &pem.Block{Type: kind, Bytes: der}) })
	}
	if err := errors.Join(write(keyFile, 0o600, "PRIVATE KEY", keyDER), write(certFile, 0o644, "CERTIFICATE", der)); err != nil {
		return err
	}
	out := struct {
		Certificate string    `json:"certificate"`
		Key         string    `json:"key"`
		NotAfter    time.Time `json:"not_after"`
	}{certFile, keyFile, until.UTC()}
	return a.printResult(out, func() error {
		_, err := fmt.Fprintf(a.stdout, "%s and %s, valid until %s\n", certFile, keyFile, until.UTC().Format(time.DateOnly))
		return err
	})
}
