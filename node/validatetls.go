package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/transport"
)

// etcdTLS checks the certificate of the etcd port.
func (v *validator) etcdTLS() {
	c := v.cfg
	if !c.Etcd.TLS.Enabled() {
		return
	}
	v.require(c.TLS.Enabled(), "etcd.tls.cert", c.Etcd.TLS.Cert, "requires tls.cert, tls.key and tls.ca")
	if v.files("etcd.tls", TLSConfig(c.Etcd.TLS)) {
		if _, err := transport.LoadTLS(transport.TLSFiles(c.Etcd.TLS), hclog.NewNullLogger()); err != nil {
			v.problem("etcd.tls.cert", c.Etcd.TLS.Cert, "%w", err)
		}
	}
}

// files reports whether all three files of a certificate can be read.
func (v *validator) files(section string, t TLSConfig) bool {
	readable := 0
	for _, f := range []struct{ key, name string }{{"cert", t.Cert}, {"key", t.Key}, {"ca", t.CA}} {
		key := section + "." + f.key
		if f.name == "" {
			v.problem(key, nil,
				"required, since other tls keys are set: a node needs %[1]s.cert, %[1]s.key and %[1]s.ca", section)
		} else if _, err := os.ReadFile(f.name); err != nil {
			v.problem(key, f.name, "%w", err)
		} else {
			readable++
		}
	}
	return readable == 3
}

// checkCertificate reads this node's readable certificate as the transport will, and names the wrong key.
func checkCertificate(files TLSConfig, clusterName string, id cluster.NodeID, now time.Time) (key string, err error) {
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return "tls.cert", err
	}
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		return "tls.ca", err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return "tls.ca", errors.New("holds no certificate in PEM form")
	}
	if err := suitsNode(&pair, pool, clusterName, id, now); err != nil {
		return "tls.cert", err
	}
	return "", nil
}

// suitsNode returns an error unless a certificate is that of a node, and valid by these authorities at both ends of a
// connection. The zero time is now.
func suitsNode(
	pair *tls.Certificate, authorities *x509.CertPool, clusterName string, id cluster.NodeID, now time.Time,
) error {
	if err := namesNode(pair.Leaf, clusterName, id); err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: authorities, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return fmt.Errorf("peers will refuse it: %w", err)
		}
	}
	return nil
}

// namesNode returns an error unless a certificate is that of a node, as peers see it: it names no other node, and for
// forwarded calls no other identity of the cluster before.
func namesNode(cert *x509.Certificate, clusterName string, id cluster.NodeID) error {
	want := fmt.Sprintf("northstar://%s/node/%s", clusterName, id)
	if !slices.ContainsFunc(cert.URIs, func(u *url.URL) bool { return u.String() == want }) {
		return fmt.Errorf("is not this node's: its URIs must include %s (got %v)", want, cert.URIs)
	}
	if _, err := transport.NodeIdentity(cert, clusterName); err != nil {
		return fmt.Errorf("peers will refuse it: %w", err)
	}
	first := slices.IndexFunc(cert.URIs, func(u *url.URL) bool {
		c, _, _, err := transport.ParseIdentity(u)
		return err == nil && c == clusterName
	})
	if cert.URIs[first].String() != want {
		return fmt.Errorf("peers will take it for another identity: the URI %s must come before %s", want, cert.URIs[first])
	}
	return nil
}
