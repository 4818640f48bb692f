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

	"northstar/api/token"
	"northstar/cluster"
)

// checkCertificate reads this node's certificate as the transport will, and names the wrong key. The files are
// known to be readable.
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
	want := fmt.Sprintf("northstar://%s/node/%s", clusterName, id)
	if !slices.ContainsFunc(pair.Leaf.URIs, func(u *url.URL) bool { return u.String() == want }) {
		return "tls.cert", fmt.Errorf("is not this node's: want the URI %s among its names, it has %v", want,
			pair.Leaf.URIs)
	}
	intermediates := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return "tls.cert", fmt.Errorf("peers will refuse it: %w", err)
		}
	}
	return "", nil
}

// checkTokens reads the token file as the API will.
func checkTokens(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_, err = token.ParseFile(data)
	return err
}
