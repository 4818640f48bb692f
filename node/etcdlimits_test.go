package node

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"northstar/api/token"
)

// TestEtcdHandshakesOfOneAddress: connections whose TLS handshake does not end hold the places of one address at most,
// and of those they give way, also to clients of the same address.
func TestEtcdHandshakesOfOneAddress(t *testing.T) {
	t.Parallel()
	const limit, silent = 16, 80
	ca := newAuthority(t, "ca")
	_, hash := token.New()
	tokens := writeFile(t, "[[token]]\nname = \"t\"\nrole = \"client\"\nhash = \""+hash+"\"\n")
	n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
		withEtcd(i, cfg)
		cfg.TLS = ca.issue("n1", "northstar://northstar/node/n1", nil)
		cfg.Auth.Tokens, cfg.Limits.ConnectionsPerAddress = tokens, limit
	}))
	for range silent {
		c, err := net.Dial("tcp", n.etcdAddr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	app := ca.issue("app", "northstar://northstar/client/app", nil)
	cfg := ca.httpsClient(&app).Transport.(*http.Transport).TLSClientConfig
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(credentials.NewTLS(cfg.Clone())),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				return d.DialContext(ctx, "tcp", addr)
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("k")}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("put from %s: %v", from, err)
		}
	}
	_, metrics, err := request(ca.httpsClient(&app), "GET", "https://"+n.httpAddr+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	closed := 0 // those that did not end by themselves, after 10 s
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(line, " ")
		if name == `northstar_rpc_rejected_total{kind="http_connection",reason="idle"}` {
			closed, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	if closed < silent-limit {
		t.Errorf("%d of %d connections of one address have given way, with a limit of %d", closed, silent, limit)
	}
}

// A local client of gRPC is trusted by any name that it gives the server. With several nodes as its
// target that is their list.
func TestEtcdAuthority(t *testing.T) {
	t.Parallel()
	n := startAll(t, newCluster(t, 1, withEtcd))
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, authority := range []string{"127.0.0.1:2379,127.0.0.1:2380", "etcd.example"} {
		conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithAuthority(authority))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("k")}); err != nil {
			t.Errorf("%s: %v", authority, err)
		}
	}
}
