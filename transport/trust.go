package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// A certificate is verified when its connection is made. Connections last for months, so it is verified again when the
// trusted authorities have changed: a stolen key must not outlive its authority on an open connection.

// peerTrust knows whether the certificate at the other end of a connection is trusted. Its methods may be called by any
// goroutine.
type peerTrust struct {
	files *TLS             // nil: no TLS
	usage x509.ExtKeyUsage // of the certificate
	certs []*x509.Certificate
	since time.Time // when the connection was made
	last  atomic.Pointer[peerVerdict]
}

// peerVerdict is the result of a verification.
type peerVerdict struct {
	roots *x509.CertPool
	until time.Time // expiry of the certificate or its chain; zero: no trusted authority has issued it
}

// trustOfClient is the trust in the node that has dialled conn.
func (t *Transport) trustOfClient(conn net.Conn) *peerTrust {
	return t.newPeerTrust(conn, x509.ExtKeyUsageClientAuth)
}

// trustOfServer is the trust in the node that this one has dialled.
func (t *Transport) trustOfServer(conn net.Conn) *peerTrust {
	return t.newPeerTrust(conn, x509.ExtKeyUsageServerAuth)
}

func (t *Transport) newPeerTrust(conn net.Conn, usage x509.ExtKeyUsage) *peerTrust {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return &peerTrust{}
	}
	certs := secured.ConnectionState().PeerCertificates
	return &peerTrust{files: t.cfg.TLS, usage: usage, certs: certs, since: time.Now()}
}

// verdict returns the verdict with the authorities that are trusted now. It reads no files, which might take long.
func (p *peerTrust) verdict() *peerVerdict {
	roots := p.files.knownRoots()
	if last := p.last.Load(); last != nil && last.roots == roots {
		return last
	}
	now := &peerVerdict{roots: roots}
	// As of then: whether it has expired since is another question.
	opts := verifyOptions(roots, p.certs, p.usage)
	opts.CurrentTime = p.since
	chains, err := p.certs[0].Verify(opts)
	if err != nil { // the authority's certificate may have been renewed since then
		opts.CurrentTime = time.Time{}
		chains, _ = p.certs[0].Verify(opts)
	}
	for _, chain := range chains {
		if end := chainEnd(chain); end.After(now.until) {
			now.until = end
		}
	}
	p.last.Store(now)
	return now
}

// hasAuthority reports whether a trusted authority has issued the certificate. It may have expired.
func (p *peerTrust) hasAuthority() bool { return p.files == nil || !p.verdict().until.IsZero() }

// valid reports whether the certificate is trusted, and has not expired.
func (p *peerTrust) valid() bool { return p.files == nil || time.Now().Before(p.verdict().until) }

// errAuthority ends a connection whose certificate's authority is not trusted any more.
var errAuthority = errors.New("its certificate is no longer from a trusted authority")

// trustedConn is a monitor connection that fails once its certificate has no trusted authority.
type trustedConn struct {
	net.Conn
	trust *peerTrust
}

func (c trustedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && !c.trust.hasAuthority() {
		return 0, errAuthority
	}
	return n, err
}

func verifyOptions(roots *x509.CertPool, certs []*x509.Certificate, usage x509.ExtKeyUsage) x509.VerifyOptions {
	opts := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	return opts
}

// chainEnd returns when the first certificate of a chain expires.
func chainEnd(chain []*x509.Certificate) time.Time {
	first := chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}

// knownRoots is Roots without looking at the files.
func (t *TLS) knownRoots() *x509.CertPool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now.roots
}

// followTLS reads the TLS files again and again until ctx ends: open connections have to know of a change.
func (t *Transport) followTLS(ctx context.Context) {
	if t.cfg.TLS == nil {
		return
	}
	tick := time.NewTicker(tlsReread)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.cfg.TLS.Roots()
		case <-ctx.Done():
			return
		}
	}
}
