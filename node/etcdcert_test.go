package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"northstar/api/token"
)

// TestEtcdClientRenewsItsCertificate: a client with an open connection is refused when its certificate has expired, or
// the authority of the certificate is removed. Once it has a new certificate, it goes on without being started again.
func TestEtcdClientRenewsItsCertificate(t *testing.T) {
	t.Parallel()
	const (
		nodeURI, appURI = "northstar://northstar/node/n1", "northstar://northstar/client/app"
		validity        = 3 * time.Second
	)
	for name, tc := range map[string]struct{ expires, gateway bool }{
		"expired":               {expires: true},
		"authority removed":     {},
		"gateway, expired":      {expires: true, gateway: true},
		"gateway, of authority": {gateway: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, next := newAuthority(t, "old"), newAuthority(t, "next")
			nextCA := read(t, next.file)
			rewrite(t, next.file, slices.Concat(nextCA, read(t, old.file)))
			_, hash := token.New()
			tokens := writeFile(t, "[[token]]\nname = \"t\"\nrole = \"client\"\nhash = \""+hash+"\"\n")
			n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
				withEtcd(i, cfg)
				cfg.TLS, cfg.Auth.Tokens = next.issue("n1", nodeURI, nil), tokens
			}))
			cfg := next.httpsClient(nil).Transport.(*http.Transport).TLSClientConfig
			renewed := atomic.Bool{}
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				by := old
				if renewed.Load() {
					by = next
				}
				files := by.issue("app", appURI, func(c *x509.Certificate) {
					if tc.expires && by == old {
						c.NotAfter = time.Now().Add(validity)
					}
				})
				pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
				return &pair, err
			}
			put := putOverGRPC(t, n, cfg)
			if tc.gateway {
				put = putOverGateway(t, n, cfg)
			}
			eventually(t, "the client puts", put)
			if !tc.expires {
				rewrite(t, next.file, nextCA)
			}
			eventually(t, "the certificate is refused", func() bool { return !put() })
			renewed.Store(true)
			eventually(t, "the client puts with the new certificate", put)
		})
	}
}

// putOverGRPC returns a function that puts a key over one ClientConn, and reports whether it has.
func putOverGRPC(t *testing.T, n *testNode, cfg *tls.Config) func() bool {
	t.Helper()
	conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		_, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("k")})
		return err == nil
	}
}

// putOverGateway is putOverGRPC for the gateway, and a client that keeps its connection.
func putOverGateway(t *testing.T, n *testNode, cfg *tls.Config) func() bool {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: cfg}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: soon}
	return func() bool {
		status, _, err := request(client, http.MethodPost, "https://"+n.etcdAddr+"/v3/kv/put", `{"key":"YQ=="}`)
		return err == nil && status == http.StatusOK
	}
}
