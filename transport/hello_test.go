package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/transport/monitor"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	peer, verdict, err := n1.tr.Probe(context.Background(), n2.addr)
	if err != nil || !verdict.OK() || !verdict.Votes {
		t.Fatalf("%+v, %v", verdict, err)
	}
	if !reflect.DeepEqual(peer, n2.peer()) {
		t.Errorf("got %+v", peer)
	}
	eventually(t, "both heard of it", func() bool {
		n1.mu.Lock()
		defer n1.mu.Unlock()
		n2.mu.Lock()
		defer n2.mu.Unlock()
		return len(n1.known) == 1 && n1.known[0].NodeID == "n2" && len(n2.known) == 1 && n2.known[0].NodeID == "n1" &&
			len(n1.admitted) == 1 && len(n2.admitted) == 1
	})
}

func TestProbeReportsIdentityWhenRefused(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2", as(func(p *cluster.Peer) { p.ClusterID = "other" }))
	peer, verdict, err := n1.tr.Probe(context.Background(), n2.addr)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Refusal != cluster.RefusedCluster {
		t.Errorf("error %v", err)
	}
	if peer.ClusterID != "other" || verdict.Refusal != cluster.RefusedCluster || verdict.Reason == "" {
		t.Errorf("peer %+v, verdict %+v", peer, verdict)
	}
	if r := n1.refusals(); len(r) != 1 || r[0] != cluster.RefusedCluster {
		t.Errorf("n1 heard %v", r)
	}
	eventually(t, "n2 hears and counts it", func() bool {
		return len(n2.refusals()) == 1 && n2.rejected("connection/foreign_cluster") == 1
	})
}

func TestProbe_OwnAddressAndSilentServer(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1")
	if _, _, err := n1.tr.Probe(context.Background(), n1.addr); !errors.Is(err, errIdentity) {
		t.Errorf("itself: %v", err)
	}
	if len(n1.refusals()) != 0 {
		t.Error("it refused itself")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	start := time.Now()
	if _, _, err := n1.tr.Probe(context.Background(), ln.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a mute server: %v", err)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// A node without a cluster ID adopts that of a member whose roster has the node's data directory. Either may dial.
func TestRecordedNodeAdoptsClusterID(t *testing.T) {
	t.Parallel()
	for _, dials := range []string{"member", "newcomer"} {
		t.Run(dials, func(t *testing.T) {
			member, newcomer := newEnd(t, "n1"), newEnd(t, "n2", noID)
			member.remember("n2", cluster.Record{Incarnation: "inc-n2"})
			from, to := member, newcomer
			if dials == "newcomer" {
				from, to = newcomer, member
			}
			if _, _, err := from.tr.Probe(context.Background(), to.addr); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it adopts", func() bool { return newcomer.peer().ClusterID == "c1" })
		})
	}
}

func TestUnrecordedNodeDoesNotAdoptClusterID(t *testing.T) {
	t.Parallel()
	member, newcomer := newEnd(t, "n1"), newEnd(t, "n2", noID)
	if _, v, err := newcomer.tr.Probe(context.Background(), member.addr); err != nil || v.MayAdoptClusterID {
		t.Fatalf("%+v, %v", v, err)
	}
	if id := newcomer.peer().ClusterID; id != "" {
		t.Errorf("adopted %q", id)
	}
}

func TestGarbageIsTurnedAway(t *testing.T) {
	t.Parallel()
	good, err := hello{version: protocolVersion, purpose: purposeRaft, peer: peerOf("n9")}.encode()
	if err != nil {
		t.Fatal(err)
	}
	oversize := bytes.Clone(good[:helloHeader])
	binary.BigEndian.PutUint32(oversize[helloHeader-4:], 1<<31)
	badPurpose := bytes.Clone(good)
	badPurpose[5] = 77
	manyBytes := peerOf("n9")
	manyBytes.BootID = strings.Repeat("x", maxBootID+1)
	badBoot, _ := hello{version: protocolVersion, purpose: purposeRaft, peer: manyBytes}.encode()
	badID, _ := hello{version: protocolVersion, purpose: purposeRaft, peer: peerOf("N 9")}.encode()
	for name, c := range map[string]struct {
		send   []byte
		reason string
	}{
		"http":       {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "garbage"},
		"short http": {[]byte("GET /"), "garbage"},
		"oversize":   {oversize, "garbage"},
		"no JSON": {
			append(bytes.Clone(good[:helloHeader]), bytes.Repeat([]byte{'x'}, len(good)-helloHeader)...),
			"garbage",
		},
		"bad purpose":    {badPurpose, "garbage"},
		"bad node ID":    {badID, "garbage"},
		"bad boot ID":    {badBoot, "garbage"},
		"nothing":        {nil, "hello_aborted"},
		"half a hello":   {good[:40], "hello_aborted"},
		"no verdict":     {good, "hello_aborted"},
		"false verdict":  {append(bytes.Clone(good), 0, 0, 0, 2, '{', '}'), "garbage"},
		"huge verdict":   {append(bytes.Clone(good), 255, 255, 255, 255), "garbage"},
		"other protocol": {otherVersion(t), "hello_aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			n1 := newEnd(t, "n1")
			got := n1.bind()
			conn, err := net.Dial("tcp", n1.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(c.send); err != nil {
				t.Fatal(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn) // until it hangs up
			eventually(t, "it is counted", func() bool { return n1.rejected("connection/"+c.reason) == 1 })
			if reached(got) != 0 {
				t.Error("something reached raft")
			}
		})
	}
}

func otherVersion(t *testing.T) []byte {
	b, err := hello{version: protocolVersion + 1, purpose: purposeRaft, peer: peerOf("n9")}.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A node of another protocol version gets a reply that it can read.
func TestOtherProtocolVersionIsReported(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1")
	conn, err := net.Dial("tcp", n1.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(otherVersion(t)); err != nil {
		t.Fatal(err)
	}
	theirs, err := readHello(conn)
	if err != nil || theirs.peer.NodeID != "n1" {
		t.Fatalf("%+v, %v", theirs, err)
	}
	v, err := readHelloReply(conn, nonce{})
	if err != nil || v.Refusal != cluster.RefusedProtocol || !strings.Contains(v.Reason, "version 2") {
		t.Errorf("%+v, %v", v, err)
	}
}

// Connections without a hello do not block others, and are closed after the deadline.
func TestHalfOpenFlood(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	var flood []net.Conn
	add := func(n int) {
		for range n {
			c, err := net.Dial("tcp", n1.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			flood = append(flood, c)
		}
	}
	eventually(t, "a vote under the flood", func() bool { // on a busy machine a hello may take too long
		add(maxHalfOpen + 50)
		_, err := n2.vote(n1, 6)
		return err == nil
	})
	eventually(t, "the oldest gave way", func() bool {
		if n1.rejected("connection/half_open_flood") >= 50 {
			return true
		}
		add(10) // on a busy machine the first ones reach their deadline before the last ones are accepted
		return false
	})
	n1.tr.half.mu.Lock()
	open := n1.tr.half.conns.Len()
	n1.tr.half.mu.Unlock()
	if open > maxHalfOpen {
		t.Errorf("%d half-open connections", open)
	}
	for _, c := range flood {
		_, _ = io.Copy(io.Discard, c) // each is closed from the other side within the deadline
	}
}

// listed is a listener of given connections.
type listed struct {
	conns  []net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listed) Accept() (net.Conn, error) {
	if len(l.conns) == 0 {
		<-l.closed
		return nil, net.ErrClosed
	}
	c := l.conns[0]
	l.conns = l.conns[1:]
	return c, nil
}

func (l *listed) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listed) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7} }

// fromOne is a connection from one address.
type fromOne struct{ net.Conn }

func (fromOne) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 7} }

// At the bound, the connections that came first are closed: a flood does not close what comes after it.
func TestHalfOpenOrder(t *testing.T) {
	t.Parallel()
	var conns []net.Conn
	for range maxHalfOpenAddress + 20 {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = b.Close() })
		conns = append(conns, fromOne{a})
	}
	n := newEndOn(t, "n1", &listed{conns: conns, closed: make(chan struct{})})
	eventually(t, "20 are closed", func() bool { return n.rejected("connection/half_open_flood") == 20 })
	half := n.tr.half
	half.mu.Lock()
	defer half.mu.Unlock()
	want := conns[20:]
	for e := half.conns.Front(); e != nil; e = e.Next() {
		if len(want) == 0 || e.Value != want[0] {
			t.Fatalf("another connection than the %d that came last is open", maxHalfOpenAddress)
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("%d of the last connections are closed", len(want))
	}
}

func TestHalfOpenList(t *testing.T) {
	t.Parallel()
	h := newHalfOpen(2, 2)
	pipe := func() (net.Conn, func() bool) {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
		return a, func() bool {
			_ = b.SetReadDeadline(time.Now())
			_, err := b.Read(make([]byte, 1))
			return err == io.EOF
		}
	}
	a, aClosed := pipe()
	b, bClosed := pipe()
	c, cClosed := pipe()
	leaveA, _ := h.enter(a)
	leaveB, _ := h.enter(b)
	if _, evicted := h.enter(c); !evicted || !aClosed() || bClosed() {
		t.Error("the oldest did not give way")
	}
	leaveA()
	leaveB()
	if h.conns.Len() != 1 {
		t.Errorf("%d left", h.conns.Len())
	}
	h.close()
	if !cClosed() {
		t.Error("close left one open")
	}
	d, dClosed := pipe()
	if h.enter(d); !dClosed() {
		t.Error("entered after close")
	}
}

func TestLimitedLog(t *testing.T) {
	t.Parallel()
	l := newLimitedLog(nil)
	now := time.Now()
	if n, ok := l.due("a", now); !ok || n != 0 {
		t.Error("the first is logged")
	}
	for range 5 {
		if _, ok := l.due("a", now.Add(time.Second)); ok {
			t.Error("logged again")
		}
	}
	if _, ok := l.due("b", now); !ok {
		t.Error("another kind is held back")
	}
	if n, ok := l.due("a", now.Add(logInterval)); !ok || n != 5 {
		t.Errorf("later: %d, %v", n, ok)
	}
}

func FuzzHello(f *testing.F) {
	good, err := hello{version: protocolVersion, purpose: purposeRaft, peer: peerOf("n1")}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:30])
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHello(bytes.NewReader(data))
		if err != nil || h.version != protocolVersion {
			return
		}
		if _, err := cluster.ParseNodeID(string(h.peer.NodeID)); err != nil {
			t.Errorf("accepted node ID %q", h.peer.NodeID)
		}
		b, err := h.encode()
		if err != nil {
			return // JSON may grow beyond the bound when written again
		}
		again, err := readHello(bytes.NewReader(b))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Errorf("%+v becomes %+v, %v", h, again, err)
		}
	})
}

func FuzzHelloReply(f *testing.F) {
	b, err := helloReply{Refusal: cluster.RefusedCluster, Reason: "why"}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := readHelloReply(bytes.NewReader(data), nonce{}); err == nil && v.Nonce != (nonce{}) {
			t.Error("took a verdict on another hello")
		}
	})
}

// Accepted connections are counted until they are closed.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	c, err := net.Dial("tcp", n1.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := n2.vote(n1, 6); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are counted", func() bool { return n1.tr.Connections() >= 2 })
	_ = c.Close()
	n2.stop()
	eventually(t, "none is left", func() bool { return n1.tr.Connections() == 0 })
}

// TestHelloOfAStoppedProcess: the hello of a dialled node is read after its member was removed and added again. By then
// its process may have stopped, and its disk may be empty. The hello is of the record from before.
func TestHelloOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1")
	n1.remember("n2", cluster.Record{AsOfIndex: 7})
	dialled, peer := net.Pipe()
	defer dialled.Close()
	go func() {
		defer peer.Close()
		mine, err := readHello(peer)
		if err != nil {
			return
		}
		n1.remember("n2", cluster.Record{AsOfIndex: 9})
		h, err := hello{version: protocolVersion, purpose: mine.purpose, peer: peerOf("n2")}.encode()
		if err != nil {
			return
		}
		reply, err := helloReply{Nonce: mine.nonce}.encode()
		if err != nil {
			return
		}
		_, _ = peer.Write(append(h, reply...))
		_, _ = io.Copy(io.Discard, peer)
	}()
	x, err := n1.tr.dialHello(dialled, purposeRaft, "n2", "")
	if err != nil || x.mine.AsOfIndex != 7 {
		t.Errorf("admitted as of %d, want 7: %v", x.mine.AsOfIndex, err)
	}
}

// A normal first start has no warning: connections that break off then are expected. Later they are not.
func TestRejectionLevel(t *testing.T) {
	t.Parallel()
	stale := fmt.Errorf("monitor: %w", monitor.ErrStale)
	for name, tt := range map[string]struct {
		reason, clusterID string
		err               error
		want              hclog.Level
	}{
		"broke off in a first start": {"hello_aborted", "", io.EOF, hclog.Info},
		"failed in a first start":    {"hello_failed", "", io.ErrClosedPipe, hclog.Info},
		"garbage in a first start":   {"garbage", "", errNotPeer, hclog.Warn},
		"broke off later":            {"hello_aborted", "c1", io.EOF, hclog.Warn},
		"other identity":             {"hello_failed", "c1", stale, hclog.Info},
		"said goodbye":               {"hello_failed", "c1", monitor.ErrGoodbye, hclog.Info},
	} {
		if got := rejectionLevel(tt.reason, tt.err, tt.clusterID); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
