package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"northstar/api/token"
	"northstar/state"
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

// TestEtcdUnfinishedMessages: gRPC receives a message before its caller is known. Those of one address without a token
// have a share of the node's memory, and clients of other addresses are served meanwhile.
func TestEtcdUnfinishedMessages(t *testing.T) {
	t.Parallel()
	secret, hash := token.New()
	tokens := writeFile(t, "[[token]]\nname = \"t\"\nrole = \"client\"\nhash = \""+hash+"\"\n")
	n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
		withEtcd(i, cfg)
		cfg.Auth.Tokens = tokens
	}))
	const free = 20 << 20
	share := n.api.NewShare("127.0.0.2:1") // of the address of the senders
	if err := share.Take(0, free); err != nil {
		t.Fatalf("the share is less than the test needs: %v", err)
	}
	share.Give(0, free)
	var senders []net.Conn
	for range 16 {
		senders = append(senders, sendUnfinished(t, n.etcdAddr, "127.0.0.2"))
	}
	eventually(t, "unfinished messages take the share of their address", func() bool {
		err := share.Take(0, 1<<20)
		if err == nil {
			share.Give(0, 1<<20)
		}
		return err != nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "token", secret)
	put := &pb.PutRequest{Key: []byte("k"), Value: make([]byte, 1<<20)}
	if _, err := pb.NewKVClient(n.etcdClient()).Put(ctx, put); err != nil {
		t.Errorf("put from another address: %v", err)
	}
	for _, c := range senders {
		_ = c.Close()
	}
	eventually(t, "the share is free again", func() bool {
		err := share.Take(0, free)
		if err == nil {
			share.Give(0, free)
		}
		return err == nil
	})
}

// sendUnfinished opens a connection without a caller, and sends a put of 2 MiB but for its last byte.
func sendUnfinished(t *testing.T, to, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var headers bytes.Buffer
	e := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", pb.KV_Put_FullMethodName},
		{":authority", to},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	const size = 2<<20 - 64
	message := binary.BigEndian.AppendUint32([]byte{0}, size)
	message = append(message, make([]byte, size-1)...)
	go func() { // it ends with the connection
		f := http2.NewFramer(c, c)
		_, _ = io.WriteString(c, http2.ClientPreface)
		_ = f.WriteSettings()
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true})
		conn, stream := 65535, 65535 // windows, as of RFC 9113
		for {
			if n := min(conn, stream, len(message), 16<<10); n > 0 {
				if f.WriteData(1, false, message[:n]) != nil {
					return
				}
				message, conn, stream = message[n:], conn-n, stream-n
				continue
			}
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch u := frame.(type) {
			case *http2.SettingsFrame:
				if !u.IsAck() {
					_ = f.WriteSettingsAck()
				}
			case *http2.WindowUpdateFrame:
				if u.StreamID == 0 {
					conn += int(u.Increment)
				} else {
					stream += int(u.Increment)
				}
			}
		}
	}()
	return c
}

// TestEtcdAlarmOfAFullState: while puts are refused because the state is full, there is an alarm.
func TestEtcdAlarmOfAFullState(t *testing.T) {
	t.Parallel()
	n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
		withEtcd(i, cfg)
		cfg.Limits.StateBytes = Size(state.MinStateBytes)
	}))
	eventually(t, "the limit is in force", func() bool { return n.consensus.View().Limits().StateBytes > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := n.etcdClient()
	kv, maintenance := pb.NewKVClient(conn), pb.NewMaintenanceClient(conn)
	alarms := func() []*pb.AlarmMember {
		out, err := maintenance.Alarm(ctx, &pb.AlarmRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return out.Alarms
	}
	if got := alarms(); len(got) != 0 {
		t.Errorf("alarms of an empty state: %v", got)
	}
	err := error(nil)
	for i := 0; err == nil && i < 100; i++ {
		_, err = kv.Put(ctx, &pb.PutRequest{Key: []byte{'k', byte(i)}, Value: make([]byte, 50<<10)})
	}
	if status.Convert(err).Message() != rpctypes.ErrorDesc(rpctypes.ErrGRPCNoSpace) {
		t.Fatalf("a put without room: %v", err)
	}
	if got := alarms(); len(got) != 1 || got[0].Alarm != pb.AlarmType_NOSPACE || got[0].MemberID == 0 {
		t.Errorf("alarms of a full state: %v", got)
	}
	want(t, plain, "GET", "http://"+n.etcdAddr+"/health", "", 503, "ALARM NOSPACE")
	if _, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}); err != nil {
		t.Fatal(err)
	}
	if got := alarms(); len(got) != 0 {
		t.Errorf("alarms after a deletion: %v", got)
	}
}
