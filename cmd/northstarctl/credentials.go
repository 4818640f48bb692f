package main

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
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

// Unit of lifetimes, and how far certificates are backdated, for slow clocks.
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
	Force bool   `help:"Replace existing files."`
}

func (c *tlsCACmd) Run(a *app) error {
	if c.Days < 1 {
		return usagef("--days: must be 1 or more")
	}
	template := certificate("NorthStar CA", time.Now(), c.Days)
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	return a.issue(template, template, nil, pairFiles{c.Out, "ca", c.Force})
}

// tlsCertCmd uses the common flag --ca: here the directory with ca.crt and ca.key.
type tlsCertCmd struct {
	Out         string         `required:"" type:"path" placeholder:"DIR" help:"Directory for the certificate and its key."`
	Node        cluster.NodeID `xor:"who" required:"" placeholder:"ID" help:"For this node."`
	Client      string         `xor:"who" required:"" placeholder:"ROLE/NAME" help:"For this client; ROLE is observer, client or operator."`
	ClusterName string         `required:"" placeholder:"C" help:"The nodes' cluster-name."`
	Host        []string       `placeholder:"H" help:"Host name or IP address of the node; may be repeated."`
	Days        int            `default:"365" help:"Lifetime in days."`
	Force       bool           `help:"Replace existing files."`
}

func (c *tlsCertCmd) Run(a *app) error {
	name, template, err := c.template(time.Now())
	if err != nil {
		return &usageError{err}
	}
	if a.CA == "" {
		return usagef("--ca: must be the directory with ca.crt and ca.key")
	}
	ca, caKey, err := loadCA(filepath.Dir(caFile(a.CA)))
	if err != nil {
		return err
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
		fmt.Fprintf(a.stderr, "northstarctl: certificate lifetime limited to the CA's expiry, %s\n",
			ca.NotAfter.Format(time.DateOnly))
	}
	return a.issue(template, ca, caKey, pairFiles{c.Out, name, c.Force})
}

// template returns the certificate that the flags ask for, and the name of its files.
func (c *tlsCertCmd) template(now time.Time) (name string, t *x509.Certificate, err error) {
	if c.Days < 1 {
		return "", nil, errors.New("--days: must be 1 or more")
	}
	if err := cluster.CheckClusterName(c.ClusterName); err != nil {
		return "", nil, fmt.Errorf("--cluster-name: %w (got %q)", err, c.ClusterName)
	}
	role := "node"
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if c.Node != "" {
		name = string(c.Node)
		if len(c.Host) == 0 {
			return "", nil, errors.New("--host: a node's certificate requires at least one")
		}
	} else {
		role, name, _ = strings.Cut(c.Client, "/")
		usages = usages[1:]
		_, err := token.ParseRole(role)
		if err = errors.Join(err, token.CheckName(name)); err != nil {
			return "", nil, fmt.Errorf("--client: must be ROLE/NAME (got %q): %w", c.Client, err)
		}
	}
	if name == "ca" {
		return "", nil, errors.New(`the name "ca" is reserved for the CA's own files`)
	}
	t = certificate(name, now, c.Days)
	t.KeyUsage, t.ExtKeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, usages, true
	t.URIs = []*url.URL{{Scheme: "northstar", Host: c.ClusterName, Path: "/" + role + "/" + name}}
	for _, h := range c.Host {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if len(h) > 253 || !hostPattern.MatchString(h) {
			return "", nil, fmt.Errorf("--host: must be a host name or an IP address, without a port (got %q)", h)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return name, t, nil
}

var hostPattern = regexp.MustCompile(
	`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`,
)

func certificate(name string, now time.Time, days int) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdated),
		NotAfter:  now.Add(time.Duration(days) * day),
	}
}

// loadCA reads ca.crt and ca.key of a directory.
func loadCA(dir string) (*x509.Certificate, crypto.PrivateKey, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, nil, fmt.Errorf("read CA: %w", err)
	}
	if !pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("%s: ca.crt is not a CA certificate", dir)
	}
	return pair.Leaf, pair.PrivateKey, nil
}

// pairFiles are the files of a certificate and its key.
type pairFiles struct {
	dir, name string
	force     bool // replace existing files
}

// issue creates a key, and a certificate that parentKey signs (nil: the new key). It writes both, the key readable
// only by its owner.
func (a *app) issue(template, parent *x509.Certificate, parentKey crypto.PrivateKey, files pairFiles) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), cmp.Or[any](parentKey, key))
	if err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	if _, err := x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("make certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key: %w", err)
	}
	base := filepath.Join(files.dir, files.name)
	certFile, keyFile := base+".crt", base+".key"
	for _, f := range []string{certFile, keyFile} {
		if _, err := os.Lstat(f); !errors.Is(err, fs.ErrNotExist) && !files.force {
			return fmt.Errorf("%s exists: --force replaces it", f)
		}
	}
	if err := os.MkdirAll(files.dir, 0o755); err != nil {
		return err
	}
	encode := func(kind string, der []byte) func(*os.File) error {
		return func(f *os.File) error { return pem.Encode(f, &pem.Block{Type: kind, Bytes: der}) }
	}
	// Together: a running node keeps its pair until it reads another one, but no node starts with half a pair.
	if err := writeFiles(newFile{keyFile, 0o600, encode("PRIVATE KEY", keyDER)},
		newFile{certFile, 0o644, encode("CERTIFICATE", der)}); err != nil {
		return err
	}
	out := struct {
		Certificate string    `json:"certificate"`
		Key         string    `json:"key"`
		NotAfter    time.Time `json:"not_after"`
	}{certFile, keyFile, template.NotAfter.UTC()}
	return a.printResult(out, func() error {
		return a.printf("%s and %s, valid until %s\n", certFile, keyFile, out.NotAfter.Format(time.DateOnly))
	})
}

type tokenCmd struct {
	New tokenNewCmd `cmd:"" help:"Make a token and its hash; northstarctl does not store them."`
}

type tokenNewCmd struct {
	Name string `required:"" placeholder:"N" help:"Token name, shown in the audit log."`
	Role string `required:"" placeholder:"R" help:"Permissions: observer, client or operator."`
}

// Run prints {"token","hash"} in either output format. On a terminal it also prints what to do with them.
func (t *tokenNewCmd) Run(a *app) error {
	role, err := token.ParseRole(t.Role)
	if err != nil {
		return &usageError{fmt.Errorf("--role: %w", err)}
	}
	if err := token.CheckName(t.Name); err != nil {
		return &usageError{fmt.Errorf("--name: %w", err)}
	}
	tok, hash := token.New()
	if terminal(a.stderr) {
		fmt.Fprintf(a.stderr,
			"Give this token to the user, and add this entry to the auth.tokens file of every node:\n\n"+
				"[[token]]\nname = %q\nrole = %q\nhash = %q\n\n", t.Name, role, hash)
	}
	return a.printJSONLine(struct {
		Token string `json:"token"`
		Hash  string `json:"hash"`
	}{tok, hash})
}
