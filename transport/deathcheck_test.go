package transport

import (
	"errors"
	"testing"
	"time"

	"northstar/cluster"
)

// Raft does not dial a process for deadDialBackoff after it was found dead. It dials the peer immediately if another
// process has completed a hello since.
func TestProcessFoundDeadIsNotDialled(t *testing.T) {
	t.Parallel()
	a := newEnd(t, "n1")
	b := newEnd(t, "n2")
	acquaint(t, a, b)
	b.bind()
	a.bindOnly()
	if _, err := a.heartbeat(b); err != nil {
		t.Fatal(err)
	}
	b.stop()
	eventually(t, "it is found dead", func() bool {
		return a.tr.Confirm(t.Context(), "n2", "boot-n2") == cluster.LivenessDead
	})
	p, err := a.raft.peer("n2")
	if err != nil {
		t.Fatal(err)
	}
	p.backoff.Store(&dialBackoff{"boot-n2", time.Now().Add(time.Hour)})
	for range 3 {
		if _, err := a.vote(b, 2); !errors.Is(err, errProcessDead) || !unreachable(err) || connectionDied(err) {
			t.Errorf("a vote of a dead process: %v", err)
		}
	}
	if err := p.checkBackoff(time.Now().Add(time.Hour)); err != nil {
		t.Errorf("long after: %v", err)
	}
	p.mu.Lock()
	next := *p.lastHello
	next.BootID = "boot-next"
	p.lastHello = &next
	p.mu.Unlock()
	if err := p.checkBackoff(time.Now()); err != nil {
		t.Errorf("another process has said hello: %v", err)
	}
}

// The result of Confirm is valid for a short time, and for one process.
func TestDeadProcessIsNotedForAMoment(t *testing.T) {
	t.Parallel()
	a, b := newEnd(t, "n1"), newEnd(t, "n2")
	acquaint(t, a, b)
	backoff := func() *dialBackoff {
		p, err := a.raft.peer("n2")
		if err != nil {
			t.Fatal(err)
		}
		return p.backoff.Load()
	}
	if l := a.confirm("n2", "boot-before"); l != cluster.LivenessRestarted || backoff() != nil {
		t.Error("a process that was replaced")
	}
	b.stop()
	eventually(t, "it is found dead", func() bool {
		return a.tr.Confirm(t.Context(), "n2", "boot-n2") == cluster.LivenessDead
	})
	if g := backoff(); g == nil || g.bootID != "boot-n2" || time.Until(g.until) > deadDialBackoff {
		t.Errorf("noted: %+v", g)
	}
}
