package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestFrames finds the same frames however the bytes are cut, without the padding of their content.
func TestFrames(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&sent, nil)
	for _, err := range []error{
		f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("xyz"), EndHeaders: true}),
		f.WriteDataPadded(1, false, []byte("abc"), make([]byte, 7)),
		f.WriteDataPadded(1, false, nil, make([]byte, 2)),
		f.WriteData(3, false, nil),
		f.WriteData(1, true, []byte("def")),
		f.WriteRSTStream(3, http2.ErrCodeCancel),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"SETTINGS 0 6 false", "HEADERS 1 3 false", "DATA 1 11 false", "DATA 1 3 false", "DATA 3 0 false",
		"DATA 1 3 true", "RST_STREAM 3 4 true",
	}
	for _, cut := range []int{1, 2, 3, 10, 1000} {
		in := frames{skip: len(http2.ClientPreface)}
		var seen []string
		var content []byte
		for part := range slices.Chunk(sent.Bytes(), cut) {
			in.follow(part, func(f frame) {
				seen = append(seen, fmt.Sprint(f.kind, " ", f.stream, " ", f.size, " ", f.endsStream()))
			}, func(_ uint32, part []byte, _ int) { content = append(content, part...) })
		}
		if !slices.Equal(seen, want) || string(content) != "abcdef" {
			t.Errorf("in parts of %d: %q, content %q", cut, seen, content)
		}
	}
}

// bufferConn is a connection whose client has sent what is in the buffer.
type bufferConn struct {
	net.Conn
	bytes.Buffer
}

func (c *bufferConn) Read(p []byte) (int, error)  { return c.Buffer.Read(p) }
func (c *bufferConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *bufferConn) Close() error                { return nil }

// TestWireCounts counts calls until the server has ended them, and messages until their calls have taken them.
func TestWireCounts(t *testing.T) {
	t.Parallel()
	share, c := &fakeShare{}, &bufferConn{}
	w := newWire(c, share)
	f := http2.NewFramer(&c.Buffer, nil)
	c.WriteString(http2.ClientPreface)
	expect := func(what string, err error, calls, bytes int) {
		t.Helper()
		if _, readErr := io.ReadAll(struct{ io.Reader }{w}); err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		if c, b := share.taken(); c != calls || b != bytes {
			t.Errorf("%s: %d calls, %d bytes, want %d and %d", what, c, b, calls, bytes)
		}
	}
	for id := range 5 {
		err := f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*id + 1), BlockFragment: []byte("x"), EndHeaders: true,
		})
		expect("calls", err, max(0, id+1-freeCalls), 0)
	}
	message := append([]byte{0, 0, 4, 0, 0}, make([]byte, 4<<16)...)
	expect("a part of a message", f.WriteData(1, false, message[:200<<10]), 3, takenBytes)
	expect("the message", f.WriteData(1, true, message[200<<10:]), 3, takenBytes)
	w.took(1)
	expect("the message is taken", nil, 3, 0)
	expect("a reset", f.WriteRSTStream(3, http2.ErrCodeCancel), 2, 0)
	end := http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x"), EndHeaders: true, EndStream: true}
	expect("an answer", http2.NewFramer(w, nil).WriteHeaders(end), 1, 0)
	expect("data of a call that is over", f.WriteData(1, false, message[:200<<10]), 1, 0)
	for range 2000 { // in memory, small frames take more than their bytes
		if err := f.WriteData(5, false, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	expect("small frames", nil, 1, 2*takenBytes)
	_ = w.Close()
	if calls, bytes := share.taken(); calls != 0 || bytes != 0 {
		t.Errorf("the closed connection holds %d calls, %d bytes", calls, bytes)
	}
}

// TestWireWithoutRoom ends a connection that has no room for 10 s, and one whose message takes more than 30 s.
func TestWireWithoutRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		maxBytes int
		after    time.Duration
	}{
		"no room": {1, stallTimeout}, "a slow message": {1 << 30, messageTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				w := newWire(server, &fakeShare{maxBytes: tc.maxBytes})
				defer w.Close()
				begin := time.Now()
				go func() {
					f := http2.NewFramer(client, nil)
					_, _ = io.WriteString(client, http2.ClientPreface)
					begin := http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x"), EndHeaders: true}
					_ = f.WriteHeaders(begin)
					_ = f.WriteData(1, false, append([]byte{0, 0, 10, 0, 0}, make([]byte, freeBytes)...))
				}()
				_, err := io.Copy(io.Discard, struct{ io.Reader }{w})
				if took := time.Since(begin); err == nil || took < tc.after || took > tc.after+time.Second {
					t.Errorf("%v after %s, want an error after %s", err, took, tc.after)
				}
			})
		})
	}
}

// TestEmptyEnd: a frame without content that ends a client's messages begins none, so none is slow.
func TestEmptyEnd(t *testing.T) {
	t.Parallel()
	for name, padding := range map[string][]byte{"empty": nil, "padded": make([]byte, 2)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				w := newWire(server, &fakeShare{})
				defer w.Close()
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					f := http2.NewFramer(client, nil)
					_, _ = io.WriteString(client, http2.ClientPreface)
					begin := http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x"), EndHeaders: true}
					_ = f.WriteHeaders(begin)
					_ = f.WriteData(1, false, []byte{0, 0, 0, 0, 0})
					_ = f.WriteDataPadded(1, true, nil, padding)
					time.Sleep(time.Second) // virtual
					w.took(1)
					time.Sleep(2 * messageTime)
					_ = f.WritePing(false, [8]byte{})
					_ = client.Close()
				}()
				begin := time.Now()
				_, _ = io.Copy(io.Discard, struct{ io.Reader }{w})
				took := time.Since(begin)
				<-sent
				if took < 2*messageTime {
					t.Errorf("the connection was closed after %s", took)
				}
			})
		})
	}
}

// TestMessageBehindOthers: a message whose call has not taken the ones before it is not slow. From then on it is.
func TestMessageBehindOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		w := newWire(server, &fakeShare{})
		defer w.Close()
		begin := time.Now()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			f := http2.NewFramer(client, nil)
			_, _ = io.WriteString(client, http2.ClientPreface)
			begin := http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("x"), EndHeaders: true}
			_ = f.WriteHeaders(begin)
			_ = f.WriteData(1, false, []byte{0, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 1})
			time.Sleep(5 * messageTime / 2) // virtual
			_ = f.WritePing(false, [8]byte{})
			time.Sleep(messageTime / 2)
			w.took(1)
		}()
		_, err := io.Copy(io.Discard, struct{ io.Reader }{w})
		took := time.Since(begin)
		<-sent
		if err == nil || took < 4*messageTime || took > 4*messageTime+time.Second {
			t.Errorf("%v after %s, want an error after %s", err, took, 4*messageTime)
		}
	})
}

// TestCallsWithoutRoom refuses calls beyond the share, and serves again when others have ended.
func TestCallsWithoutRoom(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.share.maxCalls = 3
	_, addr := serve(t, testDeps(n), nil)
	conn := dial(t, addr)
	var streams []pb.Lease_LeaseKeepAliveClient
	for range 3 + freeCalls {
		stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, stream)
	}
	kv := pb.NewKVClient(conn)
	read := func() error {
		_, err := kv.Range(within(t), &pb.RangeRequest{Key: []byte("a")})
		return err
	}
	err := read()
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too many requests") {
		t.Errorf("a call too many: %v", err)
	}
	if err := streams[0].CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := streams[0].Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of a call: %v", err)
	}
	if err := read(); err != nil {
		t.Errorf("after the end of another call: %v", err)
	}
}

// TestLongHeaders refuses a call with more than 32 KiB of headers.
func TestLongHeaders(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	conn := dial(t, addr)
	ctx := metadata.AppendToOutgoingContext(within(t), "x-long", strings.Repeat("x", 64<<10))
	if _, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err == nil {
		t.Error("the call was served")
	}
}

// TestLargeRequestWithoutRoom refuses a request that is complete, before it is executed.
func TestLargeRequestWithoutRoom(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	kv := pb.NewKVClient(dial(t, addr))
	put := &pb.PutRequest{Key: []byte("a"), Value: make([]byte, 300<<10)}
	if _, err := kv.Put(within(t), put); err != nil {
		t.Fatal(err)
	}
	n.share.mu.Lock()
	n.share.maxBytes = 256 << 10
	n.share.mu.Unlock()
	if _, err := kv.Put(within(t), put); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC: %v", err)
	}
	if _, bytes := n.share.taken(); bytes != 0 {
		t.Errorf("%d bytes are not given back", bytes)
	}
}

// TestUnreadWire reads nothing more from a client that does not read.
func TestUnreadWire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		w := newWire(server, &fakeShare{})
		defer w.Close()
		begin := time.Now()
		go func() { _, _ = w.Write(make([]byte, 1)) }()
		time.Sleep(2 * stuckTime) // virtual
		go func() { _, _ = client.Write(make([]byte, 1)) }()
		time.AfterFunc(time.Minute, func() { _, _ = client.Read(make([]byte, 1)) })
		if _, err := w.Read(make([]byte, 1)); err != nil || time.Since(begin) < time.Minute {
			t.Errorf("read after %s, %v", time.Since(begin), err)
		}
	})
}

// TestUnreadAnswersAreCounted: a small answer may wait for its client as well.
func TestUnreadAnswersAreCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	n.apply(t, put("a", strings.Repeat("x", 5<<10)))
	if _, err := pb.NewKVClient(dial(t, addr)).Range(within(t), &pb.RangeRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if n.largest.Load() < 5<<10 {
		t.Errorf("an answer of 5 KiB took %d bytes of the budget", n.largest.Load())
	}
}

// TestResetsAreSlow lets a client reset 1,000 calls without a pause, and then 200 a second.
func TestResetsAreSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &bufferConn{}
		w := newWire(c, &fakeShare{})
		f := http2.NewFramer(&c.Buffer, nil)
		c.WriteString(http2.ClientPreface)
		begin := time.Now()
		for i := range uint32(3000) {
			headers := http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: []byte("x"), EndHeaders: true}
			err := errors.Join(f.WriteHeaders(headers), f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
			if _, readErr := io.ReadAll(struct{ io.Reader }{w}); err != nil || readErr != nil {
				t.Fatal(err, readErr)
			}
			if took := time.Since(begin); i < 1000 && took > 0 {
				t.Fatalf("reset %d is slow", i)
			}
		}
		if took := time.Since(begin); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("3,000 resets take %s", took)
		}
	})
}
