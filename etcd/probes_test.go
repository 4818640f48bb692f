package etcd

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestProbeWaits sends the answer to a probe behind what is sent next, or after 50 ms, and other pings immediately.
func TestProbeWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		defer server.Close()
		w := newWire(server, &fakeShare{})
		keepalive := bytes.Clone(probeAck)
		clear(keepalive[9:])
		answer, large := dataFrame(1), dataFrame(joinedBytes+1)
		before, after := slices.Concat(probeAck, large[:joinedBytes]), slices.Concat(large[joinedBytes:], probeAck)
		begin := time.Now()
		go func() {
			for _, p := range [][]byte{
				probeAck, answer, keepalive, slices.Concat(probeAck, answer), probeAck, large, probeAck, probeAck,
				probeAck, before, after[:5], after[5:],
			} {
				if n, err := w.Write(p); n != len(p) || err != nil {
					t.Errorf("%d of %d bytes, %v", n, len(p), err)
				}
			}
		}()
		read := make([]byte, 2*joinedBytes)
		for _, want := range []struct {
			what  []byte
			after time.Duration
		}{
			{slices.Concat(answer, probeAck), 0},
			{keepalive, 0},
			{slices.Concat(answer, probeAck), 0},
			{large, 0},
			{probeAck, 0},
			{slices.Concat(probeAck, probeAck), 0}, // two of them do not wait
			{before, 0},                            // within a frame there is nothing else
			{after[:5], 0},
			{slices.Concat(after[5:], probeAck), 0},
		} {
			n, err := client.Read(read)
			if took := time.Since(begin); err != nil || !bytes.Equal(read[:n], want.what) || took != want.after {
				t.Fatalf("%d bytes after %s, %v: want %d after %s", n, took, err, len(want.what), want.after)
			}
		}
		if _, err := w.Write(probeAck); err != nil {
			t.Fatal(err)
		}
		n, err := client.Read(read)
		if took := time.Since(begin); err != nil || !bytes.Equal(read[:n], probeAck) || took != probeTime {
			t.Errorf("%d bytes after %s, %v", n, took, err)
		}
	})
}

// dataFrame returns a frame with so many bytes of data.
func dataFrame(size int) []byte {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteData(1, false, bytes.Repeat([]byte("x"), size))
	return frame.Bytes()
}

// recordedConn keeps what is written.
type recordedConn struct {
	net.Conn
	mu   *sync.Mutex
	sent *bytes.Buffer
}

func (c recordedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent.Write(p)
	return c.Conn.Write(p)
}

// TestProbeIsThatOfGRPC finds gRPC's own pings, of which it sends one for two answers.
func TestProbeIsThatOfGRPC(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	var mu sync.Mutex
	var sent bytes.Buffer
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return recordedConn{c, &mu, &sent}, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const calls = 100
	for range calls {
		if _, err := pb.NewKVClient(conn).Range(within(t), &pb.RangeRequest{Key: []byte("a")}); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	probe := bytes.Clone(probeAck)
	probe[4] = 0 // it is no answer
	if n := bytes.Count(sent.Bytes(), probe); n == 0 || n > calls*3/4 {
		t.Errorf("%d probes in %d calls", n, calls)
	}
}
