package etcd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// tightListener accepts connections for which the kernel keeps few bytes.
type tightListener struct{ net.Listener }

func (l tightListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	return c, err
}

// slowReader is a client that reads an answer when it is told to.
type slowReader struct {
	read  func() (size int, err error) // of the value in the answer
	close func()
}

// TestDrain_SlowReaders: a server that stops waits for the answer to a write until its client has taken it, or is gone.
func TestDrain_SlowReaders(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, addr string) slowReader{
		"gRPC": slowGRPC, "JSON": slowJSON,
	} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", gone: ", gone), func(t *testing.T) {
				t.Parallel()
				n := newFakeNode(t)
				n.apply(t, put("a", strings.Repeat("v", 1<<20)))
				before := n.View().Revision()
				s := New(testDeps(n))
				s.drainQuiet = 100 * time.Millisecond
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				startOn(t, s, tightListener{l}, nil)
				client := open(t, l.Addr().String())
				ctx, drained := within(t), make(chan struct{})
				for n.View().Revision() == before && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				go func() {
					defer close(drained)
					s.Drain(ctx)
				}()
				if gone {
					client.close()
				} else {
					select {
					case <-drained:
						t.Error("the server has not waited for the client")
					case <-time.After(10 * s.drainQuiet):
					}
					if size, err := client.read(); err != nil || size != 1<<20 {
						t.Errorf("the answer: %d bytes, %v", size, err)
					}
				}
				if <-drained; ctx.Err() != nil {
					t.Error("the server waits on")
				}
			})
		}
	}
}

// flushed is a response that notes how many calls are being answered when it is flushed.
type flushed struct {
	*httptest.ResponseRecorder
	s         *Server
	answering int64
}

func (f *flushed) Flush() { f.answering = f.s.answering.Load() }

// TestGateway_AnswersAreSentWhole: a call with one answer is over when nothing of that waits in the process.
func TestGateway_AnswersAreSentWhole(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	w := &flushed{httptest.NewRecorder(), s, 0}
	body := strings.NewReader(`{"key":"YQ==","value":"YQ=="}`)
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v3/kv/put", body))
	if size := w.Header().Get("Content-Length"); size != strconv.Itoa(w.Body.Len()) {
		t.Errorf("a header says %q bytes, not %d: one more chunk ends the answer", size, w.Body.Len())
	}
	if w.answering != 1 || s.answering.Load() != 0 {
		t.Errorf("calls being answered: %d when it is flushed, %d after that", w.answering, s.answering.Load())
	}
}

// slowGRPC makes a put that returns the value before it.
func slowGRPC(t *testing.T, addr string) slowReader {
	conn := dial(t, addr, grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	stream, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, pb.KV_Put_FullMethodName)
	if err == nil {
		err = stream.SendMsg(&pb.PutRequest{Key: []byte("a"), PrevKv: true})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	read := func() (int, error) {
		var out pb.PutResponse
		if err := stream.RecvMsg(&out); err != nil {
			return 0, err
		}
		if err := stream.RecvMsg(&out); err != io.EOF { //nolint:errorlint // a stream returns io.EOF itself
			return 0, fmt.Errorf("after the answer: %w", err)
		}
		return len(out.PrevKv.Value), nil
	}
	return slowReader{read, func() { conn.Close() }}
}

func slowJSON(t *testing.T, addr string) slowReader {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	body := `{"key":"YQ==","prev_kv":true}`
	fmt.Fprintf(c, "POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	read := func() (int, error) {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		var out struct {
			Before struct{ Value []byte } `json:"prev_kv"`
		}
		err = json.NewDecoder(resp.Body).Decode(&out)
		return len(out.Before.Value), err
	}
	return slowReader{read, func() { c.Close() }}
}
