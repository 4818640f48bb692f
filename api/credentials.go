package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
)

// Credentials are checked for as long as they are used: a certificate at each request of its connection, and the
// credentials of open streams whenever tokens or trusted authorities change, or a certificate expires. A stream that
// another node forwards is checked all the time: that node may be removed.

// connTrust remembers the check of a connection's client certificate. Any goroutine may use it.
type connTrust struct{ last atomic.Pointer[trust] }

// trust is the result of a check against the authorities that are trusted at one time.
type trust struct {
	roots *x509.CertPool
	until time.Time // expiry of the certificate or its chain; zero: not trusted
}

type trustKey struct{}

// certificateValidUntil returns until when the client's certificate is valid, zero if it is not trusted, or there is
// none. It verifies a certificate once, and again after each change of the authorities.
func (a *authenticator) certificateValidUntil(r *http.Request) time.Time {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return time.Time{}
	}
	conn, _ := r.Context().Value(trustKey{}).(*connTrust)
	if conn == nil || conn.last.Load() == nil {
		a.refreshRoots() // the handshake may have trusted newer authorities
	}
	roots := a.trustedRoots(r)
	if conn != nil {
		if last := conn.last.Load(); last != nil && last.roots == roots {
			return last.until
		}
	}
	chains := r.TLS.VerifiedChains
	if roots != nil {
		chains = verify(r.TLS, roots)
	}
	t := trust{roots: roots, until: validUntil(chains)}
	if conn != nil {
		conn.last.Store(&t)
	}
	return t.until
}

// ofOtherAuthorities reports whether the request is a call whose certificate is of other authorities than those of this
// cluster: they must not name its nodes and operators.
func (a *authenticator) ofOtherAuthorities(r *http.Request) bool {
	return a.readCallRoots != nil && r.Context().Value(callMark{}) != nil
}

// trustedRoots returns the authorities of the request's certificate.
func (a *authenticator) trustedRoots(r *http.Request) *x509.CertPool {
	if a.ofOtherAuthorities(r) {
		return a.callRoots.Load()
	}
	return a.roots.Load()
}

// certified returns the identity in the client's certificate, if it is valid.
func (a *authenticator) certified(r *http.Request) (who identity, ok bool) {
	if !time.Now().Before(a.certificateValidUntil(r)) {
		return identity{}, false
	}
	cert := r.TLS.PeerCertificates[0]
	if !a.ofOtherAuthorities(r) {
		for _, uri := range cert.URIs {
			if who, ok := certificateIdentity(uri, a.cluster); ok {
				return who, true
			}
		}
		if slices.ContainsFunc(cert.URIs, func(uri *url.URL) bool { return uri.Scheme == scheme }) {
			return identity{}, false // of another cluster, or with a role that there is not
		}
	}
	if role, ok := r.Context().Value(certRoleKey{}).(token.Role); ok {
		return identity{name: certificateName(cert), role: role}, true
	}
	return identity{}, false
}

// digestName is how a digest as a client's name begins. No common name makes such a name.
const digestName = "cert."

// certificateName returns the name of a client whose certificate has no identity of this cluster: the common name, or a
// digest if that is missing or no name of a client. The digest is of what stays when the certificate is renewed, also
// with another key: its first URI or DNS name, or its subject. A certificate without any name is known by its key.
func certificateName(c *x509.Certificate) string {
	common := c.Subject.CommonName
	if name := "cert-" + common; common != "" && token.CheckName(name) == nil {
		return name
	}
	var of string
	switch {
	case len(c.URIs) > 0:
		of = "uri " + c.URIs[0].String()
	case len(c.DNSNames) > 0:
		of = "dns " + c.DNSNames[0]
	case common != "":
		of = "subject " + string(c.RawSubject)
	default:
		of = "key " + string(c.RawSubject) + string(c.RawSubjectPublicKeyInfo)
	}
	sum := sha256.Sum256([]byte(of))
	return digestName + hex.EncodeToString(sum[:16])
}

// verify returns the chains from the client's certificate to the authorities, none if it is not trusted.
func verify(s *tls.ConnectionState, roots *x509.CertPool) [][]*x509.Certificate {
	opts := x509.VerifyOptions{
		Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	chains, err := s.PeerCertificates[0].Verify(opts)
	if err != nil {
		return nil
	}
	return chains
}

// validUntil returns when the last of the chains expires.
func validUntil(chains [][]*x509.Certificate) (until time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(until) {
			until = first
		}
	}
	return until
}

// streams holds the open streams whose callers have proved their identity. Its methods may be called by any goroutine.
type streams struct {
	mu  sync.Mutex
	all map[*openStream]struct{}
}

// openStream is one stream with the credentials as of its last check.
type openStream struct {
	r       *http.Request
	caller  identity
	via     string // the node that has asserted the caller; "": none
	checked bool   // since it is known here: the credentials may have changed just before
	tokens  *token.Set
	roots   *x509.CertPool
	expires time.Time // of the certificate; zero: none
	end     context.CancelCauseFunc
}

// follow ends the request's context when its caller's credentials are no longer valid. release must be called.
func (a *authenticator) follow(c *request) (release func()) {
	ctx, end := context.WithCancelCause(c.r.Context())
	o := &openStream{
		r: c.r, caller: c.caller, via: c.via, tokens: a.tokens.Load(), roots: a.trustedRoots(c.r),
		expires: a.certificateValidUntil(c.r), end: end,
	}
	c.r = c.r.WithContext(ctx)
	c.ctx = ctx
	a.open.mu.Lock()
	defer a.open.mu.Unlock()
	if a.open.all == nil {
		a.open.all = make(map[*openStream]struct{})
	}
	a.open.all[o] = struct{}{}
	return func() {
		a.open.mu.Lock()
		delete(a.open.all, o)
		a.open.mu.Unlock()
		end(nil)
	}
}

// endRevoked ends the streams whose credentials are no longer valid.
func (a *authenticator) endRevoked(now time.Time) {
	tokens := a.tokens.Load()
	a.open.mu.Lock()
	defer a.open.mu.Unlock()
	for o := range a.open.all {
		roots := a.trustedRoots(o.r)
		expired := !o.expires.IsZero() && !now.Before(o.expires)
		if o.tokens == tokens && o.roots == roots && !expired && o.checked && o.via == "" {
			continue
		}
		o.checked = true
		o.tokens, o.roots, o.expires = tokens, roots, a.certificateValidUntil(o.r)
		if who, _, err := a.identify(o.r); err != nil || who != o.caller {
			o.end(cluster.Errorf(cluster.CodeUnauthenticated, "the credentials of this stream are no longer valid"))
			delete(a.open.all, o)
			a.endCallConn(o.r)
		}
	}
}

// revoked returns the error of a request that follow has ended; nil if it goes on, or its client has ended it.
func (c *request) revoked() error {
	if why := (*cluster.Error)(nil); errors.As(context.Cause(c.r.Context()), &why) {
		return why
	}
	return nil
}

// endCallConn closes the connection of a call whose certificate is no longer valid: its client, which may have renewed
// the certificate, shows the new one only in another handshake. The connection of any other request stays.
func (a *authenticator) endCallConn(r *http.Request) {
	call, ok := r.Context().Value(callMark{}).(*callContext)
	if !ok || call.at == nil || call.at.conn == nil || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return
	}
	if !time.Now().Before(a.certificateValidUntil(r)) {
		call.at.conn.closeSoon()
	}
}

// isLong reports whether the response may outlive the check of its caller.
func (c *request) isLong() bool {
	switch c.route.Kind {
	case openapi.Unary:
		return false
	case openapi.StreamOnAccept:
		return c.wantsStream()
	}
	return true
}
