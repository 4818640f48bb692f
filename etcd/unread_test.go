package etcd

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"
)

// TestUnreadAnswers: a client that does not read loses its connection, and what it holds of the budget is given back.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	value := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value) // which cannot be compressed
	for range 16 {
		n.apply(t, put("a", string(value)))
	}
	ctx := within(t)
	s := New(testDeps(n))
	s.lifetime = 100 * time.Millisecond
	addr := start(t, s, nil)
	unread := func(method string, request proto.Message, opts ...grpc.CallOption) func() bool {
		conn := dial(t, addr, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
		both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
		stream, err := conn.NewStream(ctx, both, method, opts...)
		if err == nil {
			err = stream.SendMsg(request)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() bool { return conn.GetState() != connectivity.Ready }
	}
	read := &pb.RangeRequest{Key: []byte("a")}
	watch := &pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1}
	for name, call := range map[string]func() (ended func() bool){
		"range": func() func() bool { return unread(pb.KV_Range_FullMethodName, read) },
		"watch": func() func() bool { return unread(pb.Watch_Watch_FullMethodName, createWatch(watch)) },
		"range after a compressed request": func() func() bool {
			return unread(pb.KV_Range_FullMethodName, read, grpc.UseCompressor(gzip.Name))
		},
		"watch after a compressed request": func() func() bool {
			return unread(pb.Watch_Watch_FullMethodName, createWatch(watch), grpc.UseCompressor(gzip.Name))
		},
		"JSON": func() func() bool {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			body := `{"create_request":{"key":"YQ==","start_revision":1}}`
			fmt.Fprintf(c, "POST /v3/watch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			return func() bool { return s.hub.watching() == 0 }
		},
	} {
		ended := call()
		for n.answers.Load() == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		for (!ended() || n.answers.Load() != 0) && ctx.Err() == nil {
			runtime.GC()
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: ended %v, %d bytes are not given back", name, ended(), n.answers.Load())
		}
	}
}
