package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Every two nodes hear each other's claims over one connection, which only one
// of them dials.
func TestClaimsAreExchanged(t *testing.T) {
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
		eventually(t, "the round trip is known", func() bool { s := e.tr.Claims()[b.id]; return s.LastExchange > 0 && s.NetworkRTT > 0 })
	}
	if n := len(c.tr.monitors.dialled); n != 0 {
		t.Errorf("the node with the highest ID dials %d peers", n)
	}
	b.claims(func(c *cluster.Claim) { c.Term = 8 })
	eventually(t, "claims are renewed", func() bool {
		return a.tr.Claims()[b.id].Claim.Term == 8 && c.tr.Claims()[b.id].Claim.Term == 8
	})
}

// A process that ends is noticed at both kinds of ends; one that says goodbye,
// such as one that is no server any more, is not taken for dead.
func TestLost(t *testing.T) {
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

// A node that comes back is monitored again, also when it is not the one that
// dials.
func TestMonitorsEnd(t *testing.T) {
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

// A connection with a new process of a peer shows that the old one died, also
// when nothing was heard of that.
func TestNewProcessMeansLoss(t *testing.T) {
	a := newEnd(t, "n2")
	for i, boot := range []string{"first", "second", "second"} {
		conn := dialProbe(t, a, as(func(p *cluster.Peer) { p.NodeID, p.BootID = "n1", boot }))
		say(t, conn, frame{Kind: frameNotify, Claim: cluster.Claim{NodeID: "n1", ClusterID: "c1", BootID: boot}})
		eventually(t, "it stands", func() bool {
			return a.tr.Claims()["n1"].Claim.BootID == boot && a.tr.monitors.find("n1").current() != nil
		})
		want := min(i, 1)
		eventually(t, "the loss is told", func() bool { return len(a.lost()) >= want })
		if l := a.lost(); len(l) != want {
			t.Fatalf("after process %s: lost %+v", boot, l)
		}
	}
	if l := a.lost()[0]; l.BootID != "first" || !errors.Is(l.Cause, errReplaced) {
		t.Errorf("lost %+v", l)
	}
}

// dialProbe says hello to e for somebody else, and gives the connection.
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

func say(t *testing.T, conn net.Conn, f frame) {
	t.Helper()
	b, err := f.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// What is said on a monitor connection is bounded, and held against its hello.
func TestBadFramesEndTheConversation(t *testing.T) {
	good := cluster.Claim{NodeID: "n1", ClusterID: "c1", BootID: "boot-n1"}
	raw := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	with := func(change func(*cluster.Claim)) []byte {
		c := good
		change(&c)
		b, _ := frame{Kind: frameNotify, Claim: c}.encode()
		return b
	}
	flood := []byte{}
	for range frameBurst + frameRate {
		flood = append(flood, with(func(*cluster.Claim) {})...)
	}
	tests := []struct {
		name string
		send []byte
	}{
		{"garbage", raw("not JSON")},
		{"oversized", binary.BigEndian.AppendUint32(nil, maxFrame+1)},
		{"claim of another node", with(func(c *cluster.Claim) { c.NodeID = "n3" })},
		{"claim of another process", with(func(c *cluster.Claim) { c.BootID = "x" })},
		{"another cluster ID than the hello's", with(func(c *cluster.Claim) { c.ClusterID = "c2" })},
		{"flood", flood},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnd(t, "n2")
			conn := dialProbe(t, e)
			say(t, conn, frame{Kind: frameNotify, Claim: good})
			eventually(t, "it stands", func() bool { return e.tr.Claims()["n1"].Connected })
			start := time.Now()
			if _, err := conn.Write(tt.send); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it ends", func() bool { return !e.tr.Claims()["n1"].Connected })
			if d := time.Since(start); d > maxStall/2 {
				t.Errorf("it went on for %v", d)
			}
			if l := e.lost(); len(l) != 0 {
				t.Errorf("taken for a dead process: %+v", l)
			}
		})
	}
}

// A node that is removed is not listened to any longer.
func TestRemovedNodeIsNotMonitored(t *testing.T) {
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	b.remember("n1", cluster.Record{Removed: true})
	eventually(t, "the connection ends", func() bool { return !b.tr.Claims()["n1"].Connected })
	eventually(t, "n1 is told", func() bool { return len(a.refusals()) > 0 })
}

// Identities that change while a connection stands make it say hello again.
func TestMonitorsRepeatHello(t *testing.T) {
	a, b := newEnd(t, "n1", noID), newEnd(t, "n2", noID)
	acquaint(t, a, b)
	for _, e := range []*end{a, b} {
		e.set(func(p *cluster.Peer) { p.ClusterID = "c9" })
	}
	for _, e := range []*end{a, b} {
		eventually(t, "claims and hellos bear the ID", func() bool {
			for _, m := range e.tr.monitors.all() {
				c := m.current()
				s, _ := m.latestClaim()
				return c != nil && c.x.peer.ClusterID == "c9" && s.Claim.ClusterID == "c9"
			}
			return false
		})
		if l := e.lost(); len(l) != 0 {
			t.Errorf("%s lost %+v", e.id, l)
		}
	}
}

func TestConfirm(t *testing.T) {
	confirm := func(e *end, boot string) cluster.Liveness {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return e.tr.Confirm(ctx, "n2", boot)
	}
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	if l := confirm(a, "boot-n2"); l != cluster.LivenessUnclear {
		t.Errorf("without an address: %s", l)
	}
	acquaint(t, a, b)
	if l := confirm(a, "boot-n2"); l != cluster.LivenessAlive {
		t.Errorf("of the same process: %s", l)
	}
	if l := confirm(a, "boot-n2-before"); l != cluster.LivenessRestarted {
		t.Errorf("of an earlier process: %s", l)
	}
	b.stop()
	if l := confirm(a, "boot-n2"); l != cluster.LivenessDead {
		t.Errorf("of a dead process: %s", l)
	}
}

// A process that is about to die takes connections and says nothing on them: one
// try must not wait for it, and the whole is bounded.
func TestConfirmIsNotHeldUp(t *testing.T) {
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	ln := b.relisten()
	start := time.Now()
	result := make(chan cluster.Liveness, 1)
	go func() { result <- a.tr.Confirm(t.Context(), "n2", "boot-n2") }()
	taken, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_ = ln.Close()
	if l := <-result; l != cluster.LivenessDead {
		t.Errorf("of a listener that has died: %s", l)
	}
	if d := time.Since(start); d > 45*time.Millisecond {
		t.Errorf("took %v", d)
	}

	silent, err := net.Listen("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	start = time.Now()
	if l := a.tr.Confirm(t.Context(), "n2", "boot-n2"); l != cluster.LivenessUnclear {
		t.Errorf("of a process that says nothing: %s", l)
	}
	if d := time.Since(start); d < 60*time.Millisecond || d > 180*time.Millisecond {
		t.Errorf("took %v, want about 60 ms", d)
	}
}

// A poll brings what the peers claim now, after their Raft has finished what it
// is inside of, and does not wait for one that gives no answer.
func TestPoll(t *testing.T) {
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
		// A peer answers until the deadline, but who asks may give up before.
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
		if n := len(a.tr.monitors.find("n3").current().questions); n > 1 {
			t.Errorf("%d questions are kept for n3", n)
		}
		// An answer that nobody waits for any more is a sign of life all the same.
		c.claims(func(c *cluster.Claim) { c.Role = cluster.Leader })
		c.background(func() {
			rpc := <-c.raft.Consumer()
			rpc.Respond(nil, errors.New("refused"))
		})
		time.Sleep(time.Millisecond)
		if _, sign := a.tr.monitors.find("n3").leaderSign(); time.Since(sign) > 2*time.Millisecond {
			t.Errorf("n3 answered late, and was last heard %v ago", time.Since(sign))
		}
	})
}

// A poll of peers that are gone does not wait.
func TestPollOfNobody(t *testing.T) {
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
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[2]
		acquaint(t, ends...)
		time.Sleep(10 * time.Millisecond) // off the beat of the questions
		b.claims(func(c *cluster.Claim) { c.LeaderProcessDead = true })
		changed := a.tr.ClaimsChanged()
		start := time.Now()
		b.tr.Announce()
		<-changed
		if d := time.Since(start); d > time.Millisecond || !a.tr.Claims()[b.id].Claim.LeaderProcessDead {
			t.Errorf("after %v: %+v", d, a.tr.Claims()[b.id].Claim)
		}
	})
}

// Silence counts from the leader's last sign of life, by append or by probe; an
// answer that says that its disk is stalled is none.
func TestLeaderSilence(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		b.claims(func(c *cluster.Claim) { c.LeaderID, c.LeaderContactAge = "n1", time.Hour })
		a.claims(func(c *cluster.Claim) { c.Role = cluster.Leader })
		time.Sleep(time.Second)
		if s := b.tr.Claim().LeaderSilence; s > b.tr.params.probeIdle {
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
		// Raft has forgotten it, and voted: that is no sign of the leader.
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

// A node that hangs up after the hello, as older ones do, is not taken for dead
// each time.
func TestHelloOnlyIsNoLoss(t *testing.T) {
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

// One slow exchange, or three, are a busy peer; four are the network.
func TestTheNetworkIsTheLeastOfAFew(t *testing.T) {
	const ms = time.Millisecond
	var m monitor
	for i, step := range []struct{ exchange, want time.Duration }{
		{60 * ms, 60 * ms}, {ms, ms}, {90 * ms, ms}, {250 * ms, ms}, {90 * ms, ms}, {40 * ms, 40 * ms}, {2 * ms, 2 * ms},
	} {
		if m.recordExchange(step.exchange); m.networkRTT() != step.want {
			t.Errorf("%d: %v after one of %v, want %v", i, m.networkRTT(), step.exchange, step.want)
		}
	}
	if len(m.exchanges) != maxExchanges {
		t.Errorf("%d are kept", len(m.exchanges))
	}
}

// What a question for a fresh claim takes is Raft's time as well: it says nothing of
// the network, at either end.
func TestFreshAnswersAreNoMeasure(t *testing.T) {
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	for _, e := range []*end{a, b} {
		id, mark := map[cluster.NodeID]cluster.NodeID{"n1": "n2", "n2": "n1"}[e.id], time.Hour
		if e == b {
			mark *= 2 // what a has said is no word of its own
		}
		eventually(t, "the round trip is known", func() bool { return e.tr.Claims()[id].NetworkRTT > 0 })
		m := e.tr.monitors.find(id)
		unmoved := false
		for range 5 { // a routine answer may come between
			m.setTrip(mark)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			seen, ok := m.requestFresh(ctx, time.Second)
			cancel()
			if !ok || seen.LastExchange <= 0 {
				t.Fatalf("%s: answered %v, after %v", e.id, ok, seen.LastExchange)
			}
			unmoved = unmoved || seen.NetworkRTT == mark
		}
		if !unmoved {
			t.Errorf("%s: what fresh answers took counts for the network", e.id)
		}
	}
}

func TestFrames(t *testing.T) {
	want := frame{Kind: frameAsk, Seq: 9, Fresh: true, Wait: time.Millisecond, RTT: 3, Claim: cluster.Claim{
		NodeID: "n1", Term: 4, Role: cluster.Leader, LeaderSilence: -1, Disk: cluster.DiskState{Stalled: true},
	}}
	b, err := want.encode()
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	go func() {
		_, _ = there.Write(append(b, b[:7]...))
		_ = there.Close()
	}()
	r := newFrameReader(here)
	if got, err := r.next(); err != nil || got != want {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := r.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("of half a frame: %v", err)
	}
}

func TestBarrier(t *testing.T) {
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

// Two nodes that refuse each other ask again once a second, and not as fast as
// they can: their own hello is no sign that the other would have them now.
func TestRefusedPeer_DialBackoff(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		b.remember(a.id, cluster.Record{Incarnation: "another"})
		for _, e := range ends {
			e.mu.Lock()
			e.servers = []cluster.Server{{ID: a.id, Address: a.addr}, {ID: b.id, Address: b.addr}}
			e.mu.Unlock()
		}
		const watched = 20 * time.Second
		time.Sleep(watched)
		if n := len(a.refusals()); n < 5 || n > int(watched/refusedWait)+1 {
			t.Errorf("it was refused %d times in %v", n, watched)
		}
		b.remember(a.id, cluster.Record{}) // it is re-admitted
		time.Sleep(2 * refusedWait)
		if !a.tr.Claims()[b.id].Connected {
			t.Error("it is let in, and does not know")
		}
	})
}

// A question that is not answered, because a cut has killed the connection at the
// other end alone, ends the connection long before TCP would, and nobody takes the
// peer for dead.
func TestUnansweredQuestionEndsTheConnection(t *testing.T) {
	deaf := &links{}
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		deaf.cut(a.id, b.id)
		time.Sleep(a.tr.params.probeIdle) // one question has been asked
		deaf.heal()
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
	}, deaf.install)
}

// However long the timeouts, a monitor connection stands.
func TestIdleMonitorConnectionsStay(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		a, b := ends[0], ends[1]
		acquaint(t, a, b)
		first := a.tr.monitors.find(b.id).current()
		time.Sleep(5 * time.Minute)
		if now := a.tr.monitors.find(b.id).current(); now != first {
			t.Errorf("the connection has ended: %v", first.cause)
		}
	}, func(cfg *Config, _ *end) { cfg.TimeoutMin, cfg.TimeoutMax = time.Minute, 2*time.Minute })
}
