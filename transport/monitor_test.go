package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/transport/monitor"
)

// Each two nodes exchange claims over one connection, which only one of them dials.
func TestClaimsAreExchanged(t *testing.T) {
	t.Parallel()
	a, b, c := newEnd(t, "n1"), newEnd(t, "n2"), newEnd(t, "n3")
	b.claims(func(c *cluster.Claim) { c.Term, c.LastLogIndex, c.Priority = 7, 44, 120 })
	acquaint(t, a, b, c)
	for _, e := range []*end{a, c} {
		seen := e.tr.Claims()[b.id]
		if seen.Claim.Term != 7 || seen.Claim.LastLogIndex != 44 || seen.Claim.Priority != 120 {
			t.Errorf("%s has seen %+v of n2", e.id, seen.Claim)
		}
		if seen.Claim.NodeID != b.id || seen.Claim.BootID != "boot-n2" {
			t.Errorf("claim of n2 bears %s, %s", seen.Claim.NodeID, seen.Claim.BootID)
		}
		eventually(t, "the round trip is known", func() bool {
			s := e.tr.Claims()[b.id]
			return s.LastExchange > 0 &&
				s.NetworkRTT > 0
		})
	}
	b.claims(func(c *cluster.Claim) { c.Term = 8 })
	eventually(t, "claims are renewed", func() bool {
		return a.tr.Claims()[b.id].Claim.Term == 8 && c.tr.Claims()[b.id].Claim.Term == 8
	})
}

// Both the dialling and the accepting side report the death of a process. A connection that ends with a goodbye, such
// as that of a removed server, is not reported.
func TestLost(t *testing.T) {
	t.Parallel()
	a, b, c := newEnd(t, "n1"), newEnd(t, "n2"), newEnd(t, "n3")
	acquaint(t, a, b, c)
	b.stop()
	for _, e := range []*end{a, c} {
		eventually(t, "n2 is lost", func() bool { return len(e.lost()) == 1 })
		if l := e.lost()[0]; l.Peer != b.id || l.BootID != "boot-n2" || l.Cause == nil {
			t.Errorf("%s lost %+v", e.id, l)
		}
		if e.tr.Claims()[b.id].Connected {
			t.Error("still connected")
		}
	}
	a.mu.Lock()
	a.servers = a.servers[:1]
	a.mu.Unlock()
	eventually(t, "n1 leaves n3", func() bool { return !c.tr.Claims()[a.id].Connected })
	if n := len(c.lost()); n != 1 {
		t.Errorf("n3 has lost %d processes, want n2's only", n)
	}
}

// A node that returns is monitored again, also if it is not the dialling side.
func TestMonitorsEnd(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	again := newEndOn(t, "n2", b.relisten(), as(func(p *cluster.Peer) { p.BootID = "second" }))
	eventually(t, "the new process is monitored", func() bool {
		s := a.tr.Claims()["n2"]
		return s.Connected && s.Claim.BootID == "second"
	})
	third := newEndOn(t, "n1", a.relisten(), as(func(p *cluster.Peer) { p.BootID = "third" }))
	third.mu.Lock()
	third.servers = []cluster.Server{{ID: "n1", Address: third.addr}, {ID: "n2", Address: again.addr}}
	third.mu.Unlock()
	eventually(t, "the new process monitors", func() bool { return again.tr.Claims()["n1"].Claim.BootID == "third" })
	if l := again.lost(); len(l) != 1 || l[0].BootID != "boot-n1" {
		t.Errorf("lost %+v, want n1's first process", l)
	}
}

// A connection with a new process of a peer shows that the old one died, even if its connection had not ended.
func TestNewProcessMeansLoss(t *testing.T) {
	t.Parallel()
	a := newEnd(t, "n2")
	for i, boot := range []string{"first", "second", "second"} {
		conn := dialProbe(t, a, as(func(p *cluster.Peer) { p.NodeID, p.BootID = "n1", boot }))
		send(t, conn, cluster.Claim{NodeID: "n1", ClusterID: "c1", BootID: boot})
		eventually(t, "it stands", func() bool {
			return a.tr.Claims()["n1"].Claim.BootID == boot && a.tr.Claims()["n1"].Connected
		})
		want := min(i, 1)
		eventually(t, "the loss is told", func() bool { return len(a.lost()) >= want })
		if l := a.lost(); len(l) != want {
			t.Fatalf("after process %s: lost %+v", boot, l)
		}
	}
	if l := a.lost()[0]; l.BootID != "first" || l.Cause.Error() != "replaced by a newer connection" {
		t.Errorf("lost %+v", l)
	}
}

// dialProbe completes a hello with e as another node, and returns the connection.
func dialProbe(t *testing.T, e *end, opts ...option) net.Conn {
	t.Helper()
	x := newEnd(t, "n1", opts...)
	conn, ex, err := x.tr.open(t.Context(), e.addr, purposeProbe, e.id)
	if err != nil || ex.refused() != nil {
		t.Fatal(err, ex.refused())
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// frame returns the bytes of a frame with a claim.
func frame(t *testing.T, c cluster.Claim) []byte {
	t.Helper()
	body, err := json.Marshal(map[string]any{"kind": "tell", "claim": c})
	if err != nil {
		t.Fatal(err)
	}
	return lengthPrefixed(string(body))
}

func lengthPrefixed(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func send(t *testing.T, conn net.Conn, c cluster.Claim) {
	t.Helper()
	if _, err := conn.Write(frame(t, c)); err != nil {
		t.Fatal(err)
	}
}

// lockedBuffer is a buffer for one writer and one reader.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// The frames of a monitor connection are bounded, and their claims are compared with its hello.
func TestBadFrame_ClosesConnection(t *testing.T) {
	t.Parallel()
	good := cluster.Claim{NodeID: "n1", ClusterID: "c1", BootID: "boot-n1"}
	with := func(change func(*cluster.Claim)) []byte {
		c := good
		change(&c)
		return frame(t, c)
	}
	flood := bytes.Repeat(frame(t, good), 3000) // the limit is 200 a second, with a burst of 400
	tests := []struct {
		name  string
		send  []byte
		cause error
	}{
		{"garbage", lengthPrefixed("not JSON"), errors.New("malformed frame: invalid character")},
		{"oversized", binary.BigEndian.AppendUint32(nil, 8<<10+1), errors.New("malformed frame: frame of 8193 bytes")},
		{"claim of another node", with(func(c *cluster.Claim) { c.NodeID = "n3" }), monitor.ErrIdentity},
		{"claim of another process", with(func(c *cluster.Claim) { c.BootID = "x" }), monitor.ErrIdentity},
		{
			"another cluster ID than the hello's", with(func(c *cluster.Claim) { c.ClusterID = "c2" }),
			monitor.ErrStale,
		},
		{"flood", flood, errors.New("too many frames")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log lockedBuffer
			e := newEnd(t, "n2", func(c *Config, _ *end) {
				c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: &log})
			})
			conn := dialProbe(t, e)
			send(t, conn, good)
			eventually(t, "it stands", func() bool { return e.tr.Claims()["n1"].Connected })
			_, _ = conn.Write(tt.send) // the connection may end meanwhile
			eventually(t, "it ends", func() bool { return strings.Contains(log.String(), "monitor connection ended") })
			if got := log.String(); !strings.Contains(got, tt.cause.Error()) {
				t.Errorf("want %q in %s", tt.cause, got)
			}
			if e.tr.Claims()["n1"].Connected {
				t.Error("it is connected")
			}
			if l := e.lost(); len(l) != 0 {
				t.Errorf("taken for a dead process: %+v", l)
			}
		})
	}
}

// The monitor connection with a removed node ends.
func TestRemovedNodeIsNotMonitored(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	b.remember("n1", cluster.Record{Removed: true})
	eventually(t, "the connection ends", func() bool { return !b.tr.Claims()["n1"].Connected })
	eventually(t, "n1 is told", func() bool { return len(a.refusals()) > 0 })
}

// A change of identity during a connection leads to a new hello.
func TestMonitorsRepeatHello(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1", noID), newEnd(t, "n2", noID)
	acquaint(t, a, b)
	for _, e := range []*end{a, b} {
		e.set(func(p *cluster.Peer) { p.ClusterID = "c9" })
	}
	for i, e := range []*end{a, b} {
		peer := []*end{b, a}[i].id
		eventually(t, "claims bear the ID", func() bool { // and hellos: another ID would end the connection
			seen := e.tr.Claims()[peer]
			return seen.Connected && seen.Claim.ClusterID == "c9"
		})
		if l := e.lost(); len(l) != 0 {
			t.Errorf("%s lost %+v", e.id, l)
		}
	}
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	if l := a.tr.Confirm(t.Context(), "n2", "boot-n2"); l != cluster.LivenessUnclear {
		t.Errorf("without an address: %s", l)
	}
	acquaint(t, a, b)
	if l := a.confirm("n2", "boot-n2"); l != cluster.LivenessAlive {
		t.Errorf("of the same process: %s", l)
	}
	if l := a.confirm("n2", "boot-n2-before"); l != cluster.LivenessRestarted {
		t.Errorf("of an earlier process: %s", l)
	}
	b.stop()
	if l := a.confirm("n2", "boot-n2"); l != cluster.LivenessDead {
		t.Errorf("of a dead process: %s", l)
	}
}

// Poll returns the current claims of the peers, made after their Raft has finished its current message. It does not
// wait longer than ctx for a peer that does not answer.
func TestPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := newSimNet()
		var ends []*end
		for _, nd := range net.newCluster(t, 3).nodes {
			ends = append(ends, nd.end)
		}
		a, b, c := ends[0], ends[1], ends[2]
		acquaint(t, a, b, c)
		b.bindOnly()
		c.bindOnly()
		b.claims(func(c *cluster.Claim) { c.LastLogIndex = 1 })
		time.Sleep(time.Second)
		// A peer answers until the deadline, but the caller of Poll may stop waiting earlier.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		time.AfterFunc(20*time.Millisecond, cancel)
		b.background(func() { // b's raft is inside an append for 5 ms
			time.Sleep(5 * time.Millisecond)
			b.claims(func(c *cluster.Claim) { c.LastLogIndex = 2 })
			select {
			case rpc := <-b.raft.Consumer():
				if _, ok := rpc.Command.(*raft.AppendEntriesRequest); !ok {
					t.Errorf("raft got %T", rpc.Command)
				}
				rpc.Respond(nil, errors.New("refused"))
			case <-time.After(time.Second):
				t.Error("the answer did not wait for raft")
			}
		})
		start := time.Now()
		got := a.tr.Poll(ctx, []cluster.NodeID{"n2", "n3", "n4"})
		if len(got) != 1 || got["n2"].Claim.LastLogIndex != 2 {
			t.Errorf("got %+v", got)
		}
		if d := time.Since(start); d != 20*time.Millisecond {
			t.Errorf("took %v, want all of its time: n3 does not answer", d)
		}
		// An answer counts as a sign of life even if its caller has stopped waiting.
		c.claims(func(c *cluster.Claim) { c.Role = cluster.Leader })
		c.background(func() {
			rpc := <-c.raft.Consumer()
			rpc.Respond(nil, errors.New("refused"))
		})
		time.Sleep(time.Millisecond)
		a.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderContactAge = "n3", -1 })
		if silence := a.tr.Claim().LeaderSilence; silence < 0 || silence > 2*time.Millisecond {
			t.Errorf("n3 answered late, and was last heard %v ago", silence)
		}
	})
}

// Poll does not wait for peers that are not connected.
func TestPoll_SkipsDisconnectedPeers(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	b.stop()
	eventually(t, "n2 is lost", func() bool { return len(a.lost()) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got := a.tr.Poll(ctx, []cluster.NodeID{"n2"}); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[2]
		acquaint(t, ends...)
		time.Sleep(10 * time.Millisecond) // off the beat of the questions
		b.claims(func(c *cluster.Claim) { c.LeaderProcessDead, c.Disk.Hangs = true, true })
		changed := a.tr.ClaimsChanged()
		start := time.Now()
		b.tr.Announce()
		<-changed
		got := a.tr.Claims()[b.id].Claim
		if d := time.Since(start); d > time.Millisecond || !got.LeaderProcessDead || !got.Disk.Hangs {
			t.Errorf("after %v: %+v", d, got)
		}
	})
}

// LeaderSilence counts from the leader's last sign of life, which is an append or a claim. A claim with a stalled disk
// does not count.
func TestLeaderSilence(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		b.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderContactAge = "n1", time.Hour })
		a.claims(func(c *cluster.Claim) { c.Role = cluster.Leader })
		time.Sleep(time.Second)
		if s := b.tr.Claim().LeaderSilence; s > testMin*10/3 {
			t.Errorf("silent for %v while it answers probes", s)
		}
		if boot := b.tr.Claim().LeaderBootID; boot != "boot-n1" {
			t.Errorf("the leader's process is %q", boot)
		}
		a.claims(func(c *cluster.Claim) { c.Disk.Stalled = true })
		time.Sleep(time.Second)
		if s := b.tr.Claim().LeaderSilence; s < 900*time.Millisecond {
			t.Errorf("silent for %v with a stalled disk", s)
		}
		a.claims(func(c *cluster.Claim) { c.Role, c.Disk.Stalled = cluster.Follower, false })
		time.Sleep(time.Second)
		if s := b.tr.Claim().LeaderSilence; s < 1900*time.Millisecond {
			t.Errorf("silent for %v when it has stepped down", s)
		}
		b.claims(func(c *cluster.Claim) { c.LeaderContactAge = 20 * time.Millisecond })
		if s := b.tr.Claim().LeaderSilence; s != 20*time.Millisecond {
			t.Errorf("silent for %v after an append", s)
		}
		// Raft has dropped the leader and voted, which is no sign of life of the leader.
		b.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderBootID = "", "boot-n1" })
		if s := b.tr.Claim().LeaderSilence; s < 900*time.Millisecond {
			t.Errorf("silent for %v after a vote for another", s)
		}
		b.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderBootID, c.LeaderContactAge = "n7", "", -1 })
		if s := b.tr.Claim().LeaderSilence; s >= 0 {
			t.Errorf("a leader that was never heard is silent for %v", s)
		}
	})
}

// A node that closes the connection after the hello, as older ones do, is not reported as dead.
func TestHelloOnlyIsNoLoss(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "n2")
	conn := dialProbe(t, e)
	_ = conn.Close()
	other := newEnd(t, "n1")
	if _, _, err := other.tr.Probe(t.Context(), e.addr); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connections have ended", func() bool { return e.tr.half.len() == 0 })
	if l := e.lost(); len(l) != 0 {
		t.Errorf("lost %+v", l)
	}
}

func TestBarrier(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "n1")
	if err := e.raft.WaitMainLoop(t.Context()); err != nil {
		t.Errorf("before raft runs: %v", err)
	}
	e.bindOnly()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := e.raft.WaitMainLoop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while raft is inside something: %v", err)
	}
	e.serve(func(rpc raft.RPC) {
		if c := rpc.Command.(*raft.AppendEntriesRequest); c.Term != 0 {
			t.Errorf("an append of term %d", c.Term)
		}
		rpc.Respond(&raft.AppendEntriesResponse{}, nil)
	})
	if err := e.raft.WaitMainLoop(t.Context()); err != nil {
		t.Error(err)
	}
}

// Two nodes that refuse each other dial again once a second, not continuously. A node's own hello does not show that
// the other would admit it now.
func TestRefusedPeer_DialBackoff(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		b.remember(a.id, cluster.Record{Incarnation: "another"})
		for _, e := range ends {
			e.mu.Lock()
			e.servers = []cluster.Server{{ID: a.id, Address: a.addr}, {ID: b.id, Address: b.addr}}
			e.mu.Unlock()
		}
		const watched, refusedDelay = 20 * time.Second, time.Second
		time.Sleep(watched)
		if n := len(a.refusals()); n < 5 || n > int(watched/refusedDelay)+1 {
			t.Errorf("it was refused %d times in %v", n, watched)
		}
		b.remember(a.id, cluster.Record{}) // it is re-admitted
		time.Sleep(2 * refusedDelay)
		if !a.tr.Claims()[b.id].Connected {
			t.Error("it is let in, and does not know")
		}
	})
}

// A network cut has ended the connection at the other end only. An unanswered request then ends it here, long before
// TCP would. No node considers the peer dead.
func TestUnansweredQuestionEndsTheConnection(t *testing.T) {
	t.Parallel()
	network := &links{}
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		network.cut(a.id, b.id)
		time.Sleep(testMin * 10 / 3) // one question has been asked
		network.heal()
		const limit = 2 * time.Second
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if seen := a.tr.Claims()[b.id]; time.Since(seen.At) > limit {
				t.Fatalf("connected %v, and nothing heard for %v", seen.Connected, time.Since(seen.At))
			}
		}
		for _, e := range ends {
			if l := e.lost(); len(l) != 0 {
				t.Errorf("%s takes a peer for dead: %+v", e.id, l)
			}
		}
	}, network.install)
}

// A monitor connection lasts, even with long election timeouts.
func TestIdleMonitorConnectionsStay(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		time.Sleep(time.Second)
		hellos := a.hellos()
		time.Sleep(5 * time.Minute)
		if n := a.hellos() - hellos; n != 0 || !a.tr.Claims()[b.id].Connected {
			t.Errorf("connected: %v, after %d more hellos", a.tr.Claims()[b.id].Connected, n)
		}
	}, func(cfg *Config, _ *end) { cfg.TimeoutMin, cfg.TimeoutMax = time.Minute, 2*time.Minute })
}
