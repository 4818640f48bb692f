package transport

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// slowConn limits the rate of writes.
type slowConn struct {
	net.Conn
	perMiB time.Duration
}

func (c *slowConn) Write(p []byte) (int, error) {
	time.Sleep(c.perMiB * time.Duration(len(p)) >> 20)
	return c.Conn.Write(p)
}

func outOver(conn net.Conn, heard func() time.Time) *outConn {
	return &outConn{
		Conn: conn, rpc: 2 * testMin, lastReceived: heard, stale: func() bool { return false },
		released: func() {}, scan: scanner{limit: maxResponse},
	}
}

// A large message may take long while it makes progress. Each part has the RPC timeout.
func TestLargeMessageOutlivesTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c := outOver(&slowConn{Conn: here, perMiB: time.Second}, nil)
		defer c.Close()
		go func() {
			_, _ = io.CopyN(io.Discard, there, 20<<20)
			time.Sleep(3 * time.Second) // to store it
			_, _ = there.Write([]byte{0xa0})
		}()
		_ = c.SetDeadline(time.Now().Add(2 * testMin))
		if n, err := c.Write(make([]byte, 20<<20)); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		if _, err := c.Read(make([]byte, 10)); err != nil {
			t.Errorf("the answer: %v", err)
		}
	})
}

// A request on a connection that carries no data fails after the RPC timeout, for a message of any size.
func TestBlackholeIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		c := outOver(here, nil)
		defer c.Close()
		start := time.Now()
		_ = c.SetDeadline(start)
		if _, err := c.Write(make([]byte, 20<<20)); err == nil {
			t.Fatal("written")
		}
		if d := time.Since(start); d != 2*testMin {
			t.Errorf("writing took %v", d)
		}
		go func() { _, _ = io.CopyN(io.Discard, there, 100) }()
		start = time.Now()
		_ = c.SetDeadline(start)
		if _, err := c.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 10)); err == nil {
			t.Fatal("read")
		}
		if d := time.Since(start); d != 2*testMin {
			t.Errorf("reading took %v", d)
		}
	})
}

// The answer to a snapshot may take as long as the peer answers heartbeats.
func TestSnapshotAnswerWaitsForALivingPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		died := time.Now().Add(time.Minute)
		c := outOver(here, func() time.Time {
			if now := time.Now(); now.Before(died) {
				return now
			}
			return died
		})
		defer c.Close()
		go func() { _, _ = io.CopyN(io.Discard, there, 100) }()
		_ = c.SetDeadline(time.Now())
		if _, err := c.Write(append([]byte{wireInstallSnapshot}, make([]byte, 99)...)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 10)); err == nil {
			t.Fatal("read")
		}
		if now := time.Now(); now.Before(died) || now.Sub(died) > maxStall {
			t.Errorf("gave up %v after the peer's death", now.Sub(died))
		}
	})
}

// A leader that disappears in the middle of a snapshot blocks raft's main loop only briefly.
func TestSnapshotFromAVanishedLeaderEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := newSimNet()

		c := network.newCluster(t, 1)
		n1 := c.nodes[0]
		leader := newEndOn(t, "n9", network.listen("n9:1"), func(cfg *Config, _ *end) { cfg.Dial = network.dial })
		readEnded := make(chan time.Time, 1)
		n1.bindOnly()
		n1.serve(func(rpc raft.RPC) {
			_, _ = io.Copy(io.Discard, rpc.Reader)
			readEnded <- time.Now()
			rpc.Respond(&raft.InstallSnapshotResponse{}, nil)
		})
		stuck, _, err := leader.tr.open(context.Background(), n1.addr, purposeRaft, "n1")
		if err != nil {
			t.Fatal(err)
		}
		defer stuck.Close()
		b := encode(t, int(wireInstallSnapshot), &raft.InstallSnapshotRequest{
			RPCHeader: leader.header(), Term: 5,
			LastLogIndex: 500, Size: 1 << 30,
		})
		if _, err := stuck.Write(b); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if d := (<-readEnded).Sub(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// A peer stores a large request before it responds. Its response is waited for that much longer than that to a small
// one: the request would be sent again and again.
func TestResponseToALargeRequest(t *testing.T) {
	t.Parallel()
	const rpc = 2 * testMin
	for _, tt := range []struct {
		size  int
		takes time.Duration
		ok    bool
	}{
		{100, rpc / 2, true},
		{100, 2 * rpc, false},
		{4 * writeChunk, 4 * rpc, true},
		{4 * writeChunk, 6 * rpc, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			c := outOver(here, nil)
			go func() {
				_, _ = io.CopyN(io.Discard, there, int64(tt.size))
				time.Sleep(tt.takes) // virtual
				_, _ = there.Write([]byte{0xa0})
			}()
			_ = c.SetDeadline(time.Time{})
			if _, err := c.Write(make([]byte, tt.size)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); (err == nil) != tt.ok {
				t.Errorf("%d bytes, answered after %v: %v", tt.size, tt.takes, err)
			}
			_ = c.Close()
			time.Sleep(tt.takes) // the peer ends
		})
	}
}
