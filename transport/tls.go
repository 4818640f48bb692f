package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// TLSFiles names a node's PEM files: certificate with its chain, key, and certificates of the trusted authorities.
type TLSFiles struct{ Cert, Key, CA string }

// TLS is a node's certificate and the trusted authorities. It follows changes of the files: each new connection uses
// files read at most tlsReread ago. Safe for concurrent use.
type TLS struct {
	files TLSFiles
	fits  func(*tls.Certificate, *x509.CertPool) error // nil: any certificate does
	log   hclog.Logger

	mu        sync.Mutex
	now       tlsMaterial
	checkedAt time.Time
	failed    string // the last error, so that it is logged once
}

type tlsMaterial struct {
	raw   [3][]byte
	cert  *tls.Certificate
	roots *x509.CertPool
}

// tlsReread is the minimum interval between two reads of the files. Their contents are compared, because times and
// inodes are unreliable where files are replaced through symbolic links.
const tlsReread = 2 * time.Second

// peerProtocol is the ALPN name of peer connections, so that neither side takes one for another kind.
const peerProtocol = "northstar-peer"

// LoadTLS reads the files and checks that they fit together.
func LoadTLS(files TLSFiles, logger hclog.Logger) (*TLS, error) {
	m, err := readMaterial(files)
	if err != nil {
		return nil, err
	}
	return &TLS{files: files, log: logger.Named("tls"), now: m, checkedAt: time.Now()}, nil
}

// Require has changed files used only if fits returns no error for their certificate and authorities. It must be called
// before all other methods.
func (t *TLS) Require(fits func(cert *tls.Certificate, authorities *x509.CertPool) error) {
	t.fits = fits
}

func readMaterial(files TLSFiles) (tlsMaterial, error) {
	var m tlsMaterial
	for i, name := range []string{files.Cert, files.Key, files.CA} {
		b, err := os.ReadFile(name)
		if err != nil {
			return m, fmt.Errorf("read TLS file: %w", err)
		}
		m.raw[i] = b
	}
	cert, err := tls.X509KeyPair(m.raw[0], m.raw[1])
	if err != nil {
		return m, fmt.Errorf("certificate %s with key %s: %w", files.Cert, files.Key, err)
	}
	m.cert = &cert
	m.roots = x509.NewCertPool()
	if !m.roots.AppendCertsFromPEM(m.raw[2]) {
		return m, fmt.Errorf("no certificate in %s", files.CA)
	}
	return m, nil
}

// current returns the material, read again when it is due. After a failure the previous material stays.
func (t *TLS) current() tlsMaterial {
	now := time.Now()
	t.mu.Lock()
	m, due := t.now, now.Sub(t.checkedAt) >= tlsReread
	if due {
		t.checkedAt = now
	}
	t.mu.Unlock()
	if !due {
		return m
	}
	fresh, err := readMaterial(t.files)
	changed := fresh.differs(m)
	if err == nil && changed && t.fits != nil {
		err = t.fits(fresh.cert, fresh.roots)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.failed != err.Error() {
			t.failed = err.Error()
			t.log.Error("cannot use the changed TLS files: the previous ones stay in use", "error", err)
		}
		return t.now
	}
	t.failed = ""
	if changed {
		t.now = fresh
		t.log.Info("TLS files changed: new connections use them", "cert", t.files.Cert)
	}
	return t.now
}

// differs reports whether the files have other contents.
func (m tlsMaterial) differs(other tlsMaterial) bool {
	return !slices.EqualFunc(m.raw[:], other.raw[:], bytes.Equal)
}

// Roots returns the trusted authorities, as of the files: another pool after each change of any of them.
func (t *TLS) Roots() *x509.CertPool { return t.current().roots }

// Problem reads the files if that is due. It returns why they cannot be used, so that the previous ones are in use; ""
// if they can.
func (t *TLS) Problem() string {
	t.current()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Expiry returns when this node's certificate expires, or a certificate that its file has below it, and when the first
// authority of the CA file does.
func (t *TLS) Expiry() (node, ca time.Time) {
	m := t.current()
	return firstExpiry(m.raw[0]), firstExpiry(m.raw[2])
}

// firstExpiry returns the earliest end of the certificates in a PEM file that was parsed before.
func firstExpiry(file []byte) (first time.Time) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err == nil && (first.IsZero() || cert.NotAfter.Before(first)) {
			first = cert.NotAfter
		}
	}
	return first
}

// ServerConfig returns the configuration of a server of these protocols, which are those of ALPN. It follows the files.
// With requireClient a connection without a valid client certificate fails. Otherwise a client certificate is optional,
// but must be valid.
func (t *TLS) ServerConfig(requireClient bool, protocols ...string) *tls.Config {
	auth := tls.VerifyClientCertIfGiven
	if requireClient {
		auth = tls.RequireAndVerifyClientCert
	}
	return t.serverConfig(auth, protocols...)
}

func (t *TLS) serverConfig(auth tls.ClientAuthType, protocols ...string) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		ClientAuth: auth,
		// A resumed session would not be checked against changed files.
		SessionTicketsDisabled: true,
	}
	base := cfg.Clone()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m, current := t.current(), base.Clone()
		current.ClientCAs, current.Certificates = m.roots, []tls.Certificate{*m.cert}
		return current, nil
	}
	return cfg
}

// ClientConfig returns the configuration for one HTTPS connection, made soon. A long-lived client must use Dial.
func (t *TLS) ClientConfig() *tls.Config {
	m := t.current()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      m.roots,
		Certificates: []tls.Certificate{*m.cert},
	}
}

// Dial opens a TLS connection to addr over a connection from dial. It presents this node's certificate and checks the
// server's against the host in addr. It fits http.Transport.DialTLSContext.
func (t *TLS) Dial(
	ctx context.Context, dial func(ctx context.Context, addr string) (net.Conn, error), addr string,
) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	cfg := t.ClientConfig()
	cfg.ServerName = host
	return secure(ctx, dial, addr, cfg)
}

// DialNode is Dial to an address that may be forged. The server's certificate must be that of a node of the cluster.
// The host does not matter.
func (t *TLS) DialNode(
	ctx context.Context, dial func(ctx context.Context, addr string) (net.Conn, error), addr, clusterName string,
) (net.Conn, error) {
	cfg := t.peerConfig()
	issued := cfg.VerifyConnection
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		if err := issued(s); err != nil {
			return err
		}
		_, err := NodeIdentity(s.PeerCertificates[0], clusterName)
		return err
	}
	return secure(ctx, dial, addr, cfg)
}

// secure opens a TLS connection for HTTP/1.1.
func secure(
	ctx context.Context, dial func(ctx context.Context, addr string) (net.Conn, error), addr string, cfg *tls.Config,
) (net.Conn, error) {
	raw, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	cfg.NextProtos = []string{"http/1.1"}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", addr, err)
	}
	return conn, nil
}

// ParseIdentity parses the name in a certificate, northstar://CLUSTER/ROLE/NAME. A node's role is node.
func ParseIdentity(uri *url.URL) (clusterName, role, name string, err error) {
	if uri.Scheme != "northstar" || uri.Host == "" || uri.RawQuery != "" || uri.Fragment != "" ||
		uri.User != nil || uri.Opaque != "" {
		return "", "", "", fmt.Errorf("%q is not northstar://CLUSTER/ROLE/NAME", uri)
	}
	role, name, ok := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
	if !ok || role == "" || name == "" || strings.Contains(name, "/") {
		return "", "", "", fmt.Errorf("%q is not northstar://CLUSTER/ROLE/NAME", uri)
	}
	return uri.Host, role, name, nil
}

// NodeIdentity returns the node that a certificate names, as peers see it: exactly one of the cluster.
func NodeIdentity(cert *x509.Certificate, clusterName string) (cluster.NodeID, error) {
	var found cluster.NodeID
	for _, uri := range cert.URIs {
		c, role, name, err := ParseIdentity(uri)
		if err != nil || role != "node" || c != clusterName {
			continue
		}
		id, err := cluster.ParseNodeID(name)
		if err != nil || found != "" {
			return "", fmt.Errorf("%w: its certificate names %q in addition to %q", errIdentity, name, found)
		}
		found = id
	}
	if found == "" {
		return "", fmt.Errorf("%w: its certificate names no node of cluster %q", errIdentity, clusterName)
	}
	return found, nil
}

// secureServer starts TLS, if configured, on an accepted connection, and returns the node in its certificate.
func (t *Transport) secureServer(ctx context.Context, raw net.Conn) (net.Conn, cluster.NodeID, error) {
	if t.cfg.TLS == nil {
		return raw, "", nil
	}
	cfg := t.cfg.TLS.serverConfig(tls.RequireAndVerifyClientCert, peerProtocol)
	return t.handshake(ctx, tls.Server(raw, cfg))
}

// secureClient does the same for a dialled connection. It verifies the server's certificate against the authorities;
// the hello checks the node ID. Host names do not matter.
func (t *Transport) secureClient(ctx context.Context, raw net.Conn) (net.Conn, cluster.NodeID, error) {
	if t.cfg.TLS == nil {
		return raw, "", nil
	}
	cfg := t.cfg.TLS.peerConfig()
	cfg.NextProtos = []string{peerProtocol}
	return t.handshake(ctx, tls.Client(raw, cfg))
}

// peerConfig is ClientConfig for any host: the authorities must have issued the server's certificate, and the caller
// looks at the name in it.
func (t *TLS) peerConfig() *tls.Config {
	cfg := t.ClientConfig()
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true // VerifyConnection does it, without a host name
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		opts := verifyOptions(roots, s.PeerCertificates, x509.ExtKeyUsageServerAuth)
		_, err := s.PeerCertificates[0].Verify(opts)
		return err
	}
	return cfg
}

func (t *Transport) handshake(ctx context.Context, conn *tls.Conn) (net.Conn, cluster.NodeID, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, "", fmt.Errorf("TLS handshake: %w", err)
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != peerProtocol {
		return nil, "", fmt.Errorf("%w: no %s protocol", errNotPeer, peerProtocol)
	}
	id, err := NodeIdentity(state.PeerCertificates[0], t.cfg.ClusterName)
	return conn, id, err
}
