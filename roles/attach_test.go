package roles

import (
	"strconv"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
)

func held(session, stream string) cluster.Attachment {
	return cluster.Attachment{Session: session, Stream: stream}
}

func (b *bench) renewAttached(a cluster.Attachment) {
	b.t.Helper()
	out, err := b.RenewAttached(b.t.Context(), []cluster.Attachment{a})
	if err != nil || len(out.Alive) != 1 {
		b.t.Fatalf("%+v, %v", out, err)
	}
}

func (b *bench) detach(a cluster.Attachment) {
	b.t.Helper()
	if err := b.Detach(b.t.Context(), []cluster.Attachment{a}); err != nil {
		b.t.Fatal(err)
	}
}

func TestAttachedSession(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.campaign(t, "r", id, 0)
		for range 30 {
			b.renewAttached(held(id, "1"))
			time.Sleep(cluster.KeepEvery(time.Second))
		}
		began := time.Now()
		b.detach(held(id, "1"))
		if b.lives(id) || time.Since(began) > 10*time.Millisecond {
			t.Fatalf("it lives: %v, after %v", b.lives(id), time.Since(began))
		}
		r, _ := b.View().Role("r")
		if r.Held() || r.History[0].Cause != state.CauseDisconnected {
			t.Fatalf("%+v", r)
		}
		b.detach(held(id, "1")) // said again
	})
}

// The node that serves a connection dies without a word.
func TestAttachedSessionFallsBackToItsTTL(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", 2*time.Second)
		b.renewAttached(held(id, "1"))
		last := time.Now()
		time.Sleep(5 * time.Second)
		if took := b.endedAt(id).Sub(last); took < 2*time.Second || took > 2*time.Second+late {
			t.Fatalf("ended after %v", took)
		}
	})
}

func TestGrace(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := cluster.Attachment{Session: b.session(t, "s", 10*time.Second), Stream: "1", Grace: 2 * time.Second}
		b.renewAttached(a)
		time.Sleep(time.Second)
		b.detach(a)
		time.Sleep(1900 * time.Millisecond)
		if !b.lives(a.Session) {
			t.Fatal("ended within the grace")
		}
		a.Stream = "2"
		b.renewAttached(a) // it is back in time
		time.Sleep(3 * time.Second)
		b.renewAttached(a)
		b.detach(a)
		dropped := time.Now()
		time.Sleep(4 * time.Second)
		if took := b.endedAt(a.Session).Sub(dropped); took < 2*time.Second || took > 2*time.Second+late {
			t.Fatalf("ended after %v", took)
		}
	})
}

// A session that is attached again within the grace lives on for its TTL, also by a connection that renews nothing.
func TestGrace_PassiveConnection(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := cluster.Attachment{
			Session: b.session(t, "s", 10*time.Second), Stream: "1", Grace: 2 * time.Second, Passive: true,
		}
		b.mustRenew(a.Session)
		last := time.Now()
		b.renewAttached(a)
		b.detach(a)
		time.Sleep(time.Second)
		a.Stream = "2"
		b.renewAttached(a)
		time.Sleep(15 * time.Second)
		if took := b.endedAt(a.Session).Sub(last); took < 9900*time.Millisecond || took > 10*time.Second+late {
			t.Fatalf("ended after %v", took)
		}
	})
}

// A grace never makes a session outlive its TTL.
func TestGraceLongerThanTheTTL(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := cluster.Attachment{Session: b.session(t, "s", time.Second), Stream: "1", Grace: time.Hour}
		b.renewAttached(a)
		last := time.Now()
		b.detach(a)
		time.Sleep(3 * time.Second)
		if took := b.endedAt(a.Session).Sub(last); took < time.Second || took > time.Second+late {
			t.Fatalf("ended after %v", took)
		}
	})
}

// The end of a connection is not that of a client which is attached elsewhere.
func TestAttach_SecondConnectionKeepsSession(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.renewAttached(held(id, "1"))
		b.renewAttached(held(id, "2"))
		b.detach(held(id, "1"))
		if !b.lives(id) {
			t.Fatal("ended")
		}
		b.detach(held(id, "2"))
		if b.lives(id) {
			t.Fatal("still there")
		}
	})
}

// A connection whose node died counts no more after a while.
func TestAttach_StaleConnectionDoesNotKeepSession(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.renewAttached(held(id, "of a dead node"))
		for range 5 {
			time.Sleep(cluster.KeepEvery(time.Second))
			b.renewAttached(held(id, "2"))
		}
		b.detach(held(id, "2"))
		if b.lives(id) {
			t.Fatal("still there")
		}
	})
}

// A new leader gives a session a grace period if it has no report of its connection. Another node may still hold an
// attached connection.
func TestDetach_UnknownStreamOnNewLeaderGetsGrace(t *testing.T) {
	withLeader(t, func(b *bench) {
		id, other := b.session(t, "s", 10*time.Second), b.session(t, "other", 10*time.Second)
		b.renewAttached(held(id, "1"))
		b.end()
		b.lead()
		for _, s := range []string{id, other} {
			if err := b.Detach(b.t.Context(), []cluster.Attachment{held(s, "1")}); !cluster.IsCode(err,
				cluster.CodeNoLeader) {
				t.Fatalf("as if it was known what becomes of the session: %v", err)
			}
		}
		time.Sleep(100 * time.Millisecond)
		b.renewAttached(held(id, "2")) // its node tells the new leader
		time.Sleep(time.Second)
		if !b.lives(id) || b.lives(other) {
			t.Fatalf("attached elsewhere: %v; not attached: %v", b.lives(id), b.lives(other))
		}
		b.detach(held(id, "3"))
		b.detach(held(other, "1")) // again, as its node was told to
		if !b.lives(id) {
			t.Fatal("ended although connection 2 stands")
		}
	})
}

// A leader can prove that it leads before it has taken all sessions in: what it is
// told of connections then, it does not know later.
func TestAttach_UnrecordedStreamIsReportedAgain(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Minute)
		b.renewAttached(held(id, "1"))
		b.end()
		two := []cluster.Attachment{held(id, "2")}
		_, early := b.RenewAttached(b.t.Context(), two)
		b.lead()
		if early != nil {
			b.renewAttached(two[0]) // its node tells again what was refused
		}
		time.Sleep(attachReportWindow)
		b.detach(held(id, "1"))
		if !b.lives(id) || !cluster.IsCode(early, cluster.CodeNoLeader) {
			t.Fatalf("lives: %v; the connection that holds it was told of between two leaderships: %v", b.lives(id), early)
		}
	})
}

// A leader may lose its leadership between the end of a connection and the end of the session. The report is then
// repeated to the next leader.
func TestDetach_SurvivesLeaderChange(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := held(b.session(t, "s", time.Hour), "1")
		b.renewAttached(a)
		reported := false
		for range 3 {
			b.end()
			b.lead()
			reported = reported || b.Detach(b.t.Context(), []cluster.Attachment{a}) == nil
			time.Sleep(unknownStreamGrace / 2)
		}
		for deadline := time.Now().Add(attachReportWindow + unknownStreamGrace); !reported &&
			time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			reported = b.Detach(b.t.Context(), []cluster.Attachment{a}) == nil
		}
		if !reported || b.lives(a.Session) {
			t.Errorf("reported: %v; the session lives on: %v", reported, b.lives(a.Session))
		}
	})
}

func TestPassiveConnectionDoesNotRenew(t *testing.T) {
	withLeader(t, func(b *bench) {
		a := cluster.Attachment{Session: b.session(t, "s", time.Second), Stream: "1", Passive: true}
		began := time.Now()
		for b.lives(a.Session) && time.Since(began) < time.Minute {
			if _, err := b.RenewAttached(b.t.Context(), []cluster.Attachment{a}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if took := time.Since(began); took > time.Second+late {
			t.Fatalf("ended after %v", took)
		}
	})
}

// What could not be proposed is to be said again.
func TestDetach_IsRepeated(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", 10*time.Second)
		b.renewAttached(held(id, "1"))
		b.set(func() { b.propose = func(state.Command) error { return cluster.Errorf(cluster.CodeBusy, "busy") } })
		if err := b.Detach(b.t.Context(), []cluster.Attachment{held(id, "1")}); !cluster.IsCode(err,
			cluster.CodeNoLeader) || !b.lives(id) {
			t.Fatalf("%v", err)
		}
		b.set(func() { b.propose = nil })
		time.Sleep(attachReportWindow)
		b.detach(held(id, "1"))
		if b.lives(id) {
			t.Fatal("still there")
		}
		b.end()
		if err := b.Detach(b.t.Context(), []cluster.Attachment{held(id, "1")}); !cluster.IsCode(err,
			cluster.CodeNoLeader) {
			t.Fatal(err)
		}
	})
}

// A session costs the leader no more than maxStreams connections, however many its client opens. It ends with the last
// of those that are known.
func TestAttach_ManyConnections(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Minute)
		for i := range 10 * maxStreams {
			b.renewAttached(held(id, strconv.Itoa(i)))
		}
		if n := len(b.leaderState.sessions[id].streams); n != maxStreams {
			t.Errorf("%d connections are known", n)
		}
		for i := range 10 * maxStreams {
			if !b.lives(id) {
				t.Fatalf("it ended with connection %d", i-1)
			}
			b.detach(held(id, strconv.Itoa(i)))
		}
		if b.lives(id) {
			t.Error("it outlives its connections")
		}
	})
}
