package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"
)

// LoadTLS returns a TLS 1.3 configuration from PEM files. ca has the certificates that sign the nodes' ("": the
// system's). cert and key are this client's own (both or neither).
//
// A Client with this configuration reads the files again for each new connection, so a changed authority or certificate
// needs no restart. If changed files cannot be used, the previous content stays in use. With another RootCAs the Client
// uses those.
func LoadTLS(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA: %s holds no certificate in PEM", ca)
		}
		followCA(cfg.RootCAs, &caFile{path: ca, pem: pem})
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("certificate and key belong together: one of them is missing")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("load certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
		cfg.GetClientCertificate = (&pairFiles{cert: cert, key: key, pair: &pair}).get
	}
	return cfg, nil
}

// readAgain reads a file that was read before. It leaves out what is no regular file: a pipe has no second content.
func readAgain(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.ErrUnsupported
	}
	return os.ReadFile(path)
}

// caFile is a file of authorities.
type caFile struct {
	path string

	mu    sync.Mutex
	pem   []byte
	roots *x509.CertPool // nil: those that LoadTLS has read
}

// followedCAs has the files of the pools that LoadTLS has made, while those are in use. The pool marks a configuration,
// also a changed copy of it, as one that follows the file.
var followedCAs sync.Map // from weak.Pointer[x509.CertPool] to *caFile

func followCA(pool *x509.CertPool, f *caFile) {
	key := weak.Make(pool)
	followedCAs.Store(key, f)
	runtime.AddCleanup(pool, func(key weak.Pointer[x509.CertPool]) { followedCAs.Delete(key) }, key)
}

// current returns the authorities; first are those that LoadTLS has read.
func (f *caFile) current(first *x509.CertPool) *x509.CertPool {
	pem, err := readAgain(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && !bytes.Equal(pem, f.pem) {
		if pool := x509.NewCertPool(); pool.AppendCertsFromPEM(pem) {
			f.pem, f.roots = pem, pool
		}
	}
	if f.roots == nil {
		return first
	}
	return f.roots
}

// pairFiles are the files of a client's certificate and its key.
type pairFiles struct {
	cert, key string

	mu   sync.Mutex
	pair *tls.Certificate
}

// get fits tls.Config.GetClientCertificate. As without it, a certificate that the server does not accept is not sent.
func (f *pairFiles) get(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := readAgain(f.cert)
	key, keyErr := readAgain(f.key)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && keyErr == nil {
		if pair, err := tls.X509KeyPair(cert, key); err == nil {
			f.pair = &pair
		}
	}
	if asked.SupportsCertificate(f.pair) != nil {
		return new(tls.Certificate), nil
	}
	return f.pair, nil
}

// dialTLS returns how to open TLS connections with authorities that follow their file. It returns nil if they follow
// none: http.Transport then uses cfg.TLS as it is.
func dialTLS(cfg Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	if cfg.TLS == nil || cfg.TLS.RootCAs == nil {
		return nil
	}
	followed, ok := followedCAs.Load(weak.Make(cfg.TLS.RootCAs))
	if !ok {
		return nil
	}
	ca := followed.(*caFile)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		raw, err := cfg.Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		now := cfg.TLS.Clone()
		now.RootCAs = ca.current(cfg.TLS.RootCAs)
		if now.ServerName == "" {
			now.ServerName = host
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn := tls.Client(raw, now)
		if err := conn.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("TLS handshake with %s: %w", address, err)
		}
		return conn, nil
	}
}

// tokenReread is the time between two reads of a token file.
const tokenReread = time.Second

// bearer is the token of a client, which may follow a file.
type bearer struct {
	path string // "": it never changes

	mu     sync.Mutex
	token  string
	readAt time.Time
}

// newBearer returns the token of a configuration.
func newBearer(token, path string) (*bearer, error) {
	b := &bearer{token: token, path: path, readAt: time.Now()}
	if path != "" && token == "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		b.token = strings.TrimSpace(string(data))
	}
	if strings.ContainsAny(b.token, "\r\n") {
		return nil, errors.New("token: contains a line break")
	}
	return b, nil
}

// current returns the token, read again when it is due. A file without a token changes nothing.
func (b *bearer) current() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.path != "" && now.Sub(b.readAt) >= tokenReread {
		b.readAt = now
		data, err := readAgain(b.path)
		if token := strings.TrimSpace(string(data)); err == nil && token != "" && !strings.ContainsAny(token, "\r\n") {
			b.token = token
		}
	}
	return b.token
}
