package etcd

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"northstar/cluster"
)

// TestOnePort serves gRPC and JSON on one port without TLS.
func TestOnePort(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	status, err := pb.NewMaintenanceClient(dial(t, addr)).Status(within(t), &pb.StatusRequest{})
	if err != nil || status.Version != serverVersion || status.Leader == 0 || status.Leader != status.Header.MemberId {
		t.Errorf("Status: %v, %v", status, err)
	}
	for path, want := range map[string]string{
		"/version": `{"etcdserver":"3.5.21","etcdcluster":"3.5.0"}`,
		"/health":  `{"health":"true","reason":""}`,
	} {
		if got := get(t, http.DefaultTransport, "http://"+addr+path); got != want {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// exhaustedListener fails once, as the kernel does without memory.
type exhaustedListener struct {
	net.Listener
	failed atomic.Bool
}

func (l *exhaustedListener) Accept() (net.Conn, error) {
	if l.failed.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.ENOBUFS)}
	}
	return l.Listener.Accept()
}

// TestServe_FailedAccept: a connection that cannot be accepted does not end the service. A closed listener does, and is
// an error if the server was not stopped.
func TestServe_FailedAccept(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, failing, served := New(testDeps(newFakeNode(t))), &exhaustedListener{Listener: l}, make(chan error, 1)
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	go func() { served <- s.Serve(ctx, failing, nil) }()
	conn := dial(t, l.Addr().String())
	if _, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); err != nil || !failing.failed.Load() {
		t.Errorf("after a failed accept: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-served:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener is closed: %v", err)
		}
	case <-ctx.Done():
		t.Error("the server goes on without a listener")
	}
}

func get(t *testing.T, via http.RoundTripper, url string) string {
	t.Helper()
	client := http.Client{Transport: via}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestProtocolsOverTLS negotiates HTTP/1.1 with clients that offer both protocols, and gRPC with those that offer h2
// alone. The services see the client's certificate.
func TestProtocolsOverTLS(t *testing.T) {
	t.Parallel()
	ca, cert := certificate(t)
	d := testDeps(newFakeNode(t))
	seen := make(chan int, 8)
	begin := d.Begin
	d.Begin = func(ctx context.Context, r *http.Request, conn any, kind CallKind) (Call, error) {
		seen <- len(r.TLS.PeerCertificates)
		return begin(ctx, r, conn, kind)
	}
	_, addr := serve(t, d, &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: ca, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
	})
	client := &tls.Config{RootCAs: ca, Certificates: []tls.Certificate{cert}, ServerName: "localhost"}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(client.Clone())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := pb.NewMaintenanceClient(conn).Status(within(t), &pb.StatusRequest{}); err != nil {
		t.Error(err)
	}
	if n := <-seen; n != 1 {
		t.Errorf("gRPC: the service sees %d certificates", n)
	}
	both := client.Clone()
	both.NextProtos = []string{"h2", "http/1.1"}
	raw, err := tls.Dial("tcp", addr, both)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if got := raw.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("a client of both protocols gets %q", got)
	}
	body := `{"key":"YQ=="}`
	r, err := http.NewRequest(http.MethodPost, "https://"+addr+"/v3/kv/range", io.NopCloser(bytesOf(body)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(raw); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(raw), r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("range: %v, %v", resp, err)
	}
	if n := <-seen; n != 1 {
		t.Errorf("HTTP: the service sees %d certificates", n)
	}
}

// certificate returns a certificate for localhost and a pool that trusts it.
func certificate(t *testing.T) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return pool, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestSilentConnection delays no other connection, and ends with the server.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(testDeps(newFakeNode(t)))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, nil) }()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := silent.Write([]byte("PRI * HT")); err != nil { // it might become either protocol
		t.Fatal(err)
	}
	if got := get(t, &http.Transport{}, "http://"+l.Addr().String()+"/version"); got == "" {
		t.Error("no answer beside a silent connection")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("the silent connection is open after the server's end")
	}
}

// TestDrainSendsGoAway: a client's connection is told to go before the server ends, and a stream gets its reason.
func TestDrainSendsGoAway(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, testDeps(newFakeNode(t)), nil)
	conn := dial(t, addr)
	stream, err := pb.NewWatchClient(conn).Watch(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(createWatch(&pb.WatchCreateRequest{Key: []byte("a")})); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.Drain(within(t))
	_, err = stream.Recv()
	if want := "rpc error: code = Unavailable desc = etcdserver: server stopped"; err == nil || err.Error() != want {
		t.Errorf("the stream ends with %v", err)
	}
}

// TestHealthStreams: anyone may ask for the health, but a stream of it needs a caller, with whom it counts.
func TestHealthStreams(t *testing.T) {
	t.Parallel()
	d := testDeps(newFakeNode(t))
	d.Begin = func(context.Context, *http.Request, any, CallKind) (Call, error) {
		return nil, cluster.Errorf(cluster.CodeUnauthenticated, "no token")
	}
	_, addr := serve(t, d, nil)
	health := grpc_health_v1.NewHealthClient(dial(t, addr))
	if _, err := health.Check(within(t), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	stream, err := health.Watch(within(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream without a caller: %v", err)
	}
}

// TestHealthOfInventedServices: what clients watch, and no service has as its name, leaves nothing behind.
func TestHealthOfInventedServices(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, testDeps(newFakeNode(t)), nil)
	client := grpc_health_v1.NewHealthClient(dial(t, addr))
	for i := range 100 {
		stream, err := client.Watch(within(t), &grpc_health_v1.HealthCheckRequest{Service: fmt.Sprintf("name-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Fatalf("the health of an unknown service: %v, %v", got, err)
		}
	}
	if kept := reflect.ValueOf(s.health).Elem().FieldByName("updates").Len(); kept > 1 {
		t.Errorf("%d names are kept", kept)
	}
}
