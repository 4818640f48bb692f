package library

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// The library's own network transport, on loopback and in real time.
func listen(t *testing.T, address string, timeout time.Duration) *raft.NetworkTransport {
	t.Helper()
	trans, err := raft.NewTCPTransportWithLogger(address, nil, 3, timeout, config("a").Logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = trans.Close() })
	return trans
}

// serve answers what comes to a transport, as long as it is open.
func serve(t *testing.T, trans *raft.NetworkTransport, a answer) {
	t.Helper()
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	go func() {
		for {
			select {
			case rpc := <-trans.Consumer():
				rpc.Respond(a("", rpc.Command, rpc.Reader))
			case <-end:
				return
			}
		}
	}()
}

// stream keeps the connections that a process has taken, and ends with it.
type stream struct {
	net.Listener
	taken chan net.Conn
}

func (s stream) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err == nil {
		s.taken <- c
	}
	return c, err
}

func (stream) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(to), timeout)
}

// A connection that a peer's restart has left in the pool costs a vote.
func TestDeadPooledConnectionLosesAVote(t *testing.T) {
	own := listen(t, "127.0.0.1:0", time.Second)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	layer := stream{l, make(chan net.Conn, 10)}
	peer := raft.NewNetworkTransportWithLogger(layer, 3, time.Second, config("b").Logger)
	t.Cleanup(func() { _ = peer.Close() })
	serve(t, peer, agree)
	vote := func() error {
		return own.RequestVote("b", peer.LocalAddr(), voteFor("a", 2, 1, 1), &raft.RequestVoteResponse{})
	}
	if err := vote(); err != nil {
		t.Fatal(err)
	}
	_ = (<-layer.taken).Close() // as the end of its process; another one listens
	lost := vote()
	again := vote()
	if lost == nil || again != nil {
		t.Fatalf("the next vote: %v; the one after it: %v", lost, again)
	}
	t.Logf("the next vote: %v; the one after it: %v", lost, again)
}

// The error of an answer that is late does not match a timeout error.
func TestTimeoutIsNoTimeout(t *testing.T) {
	own := listen(t, "127.0.0.1:0", 50*time.Millisecond)
	peer := listen(t, "127.0.0.1:0", time.Second)
	err := own.RequestVote("b", peer.LocalAddr(), voteFor("a", 2, 1, 1), &raft.RequestVoteResponse{}) // the peer does not answer
	if err == nil || errors.As(err, new(net.Error)) {
		t.Fatalf("%T: %v", err, err)
	}
	t.Logf("%T: %v", err, err)
}

// With the default of two messages in flight, a refusal can end the replication to
// a follower permanently, while its heartbeats go on. That happens when another
// append waits behind the refused one, which is random.
func TestRefusalWedgesAPipeline(t *testing.T) {
	own := listen(t, "127.0.0.1:0", time.Second)
	peer := listen(t, "127.0.0.1:0", time.Second)
	f := &follower{}
	serve(t, peer, f.answer)
	addresses := raft.Configuration{Servers: []raft.Server{
		{ID: "a", Address: own.LocalAddr()}, {ID: "b", Address: peer.LocalAddr()},
	}}
	d := newDisk(1, "a")
	_ = d.InmemStore.StoreLog(&raft.Log{
		Index: 1, Term: 1, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(addresses),
	})
	n := &node{wire: newWire("a"), disk: d, fsm: &words{}}
	r, err := raft.NewRaft(config("a"), n.fsm, d, d, d.snaps, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Shutdown() }) // it never ends: the replication is stuck
	await(t, "it leads", func() bool { return r.State() == raft.Leader })
	await(t, "it is wedged", func() bool {
		f.refuse.Store(true)
		for range 10 { // one is to wait behind the one that is refused
			r.Apply([]byte("x"), 10*time.Millisecond)
			time.Sleep(time.Millisecond)
		}
		return time.Since(f.last(&f.appended)) > time.Second && time.Since(f.last(&f.heard)) < time.Second &&
			r.State() == raft.Leader
	})
	t.Logf("the last append %v ago, the last heartbeat %v", time.Since(f.last(&f.appended)).Round(100*time.Millisecond),
		time.Since(f.last(&f.heard)).Round(time.Millisecond))
}

// follower accepts entries. It refuses an append when refuse is set.
type follower struct {
	refuse          atomic.Bool
	appended, heard atomic.Int64
}

func (f *follower) last(of *atomic.Int64) time.Time { return time.Unix(0, of.Load()) }

func (f *follower) answer(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
	m, ok := cmd.(*raft.AppendEntriesRequest)
	switch {
	case isHeartbeat(cmd):
		f.heard.Store(time.Now().UnixNano())
	case ok:
		f.appended.Store(time.Now().UnixNano())
		time.Sleep(2 * time.Millisecond) // as a disk does
		if f.refuse.CompareAndSwap(true, false) {
			return &raft.AppendEntriesResponse{Term: m.Term, LastLog: m.PrevLogEntry, NoRetryBackoff: true}, nil
		}
	}
	return agree(to, cmd, data)
}
