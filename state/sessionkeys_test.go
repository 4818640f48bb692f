package state

import (
	"fmt"
	"testing"

	"northstar/cluster"
)

// keysPerSession is the command that bounds the keys of a session.
func keysPerSession(n uint64) Command {
	c := limits(1<<40, 1000)
	c.Limits.KeysPerSession = n
	return c
}

func putFor(session, key string) Command {
	c := put(key, "v")
	c.Put.Session = session
	return c
}

// A session owns as many keys as the limits allow, also at a node that comes from a snapshot. What it has above a later
// limit stays.
func TestKeysPerSession(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	one, two := newSession(t, s, "one"), newSession(t, s, "two")
	mustApply(t, s, keysPerSession(3), putFor(one, "a"), putFor(one, "b"), putFor(one, "c"), putFor(two, "d"))
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	for _, s := range []*State{s, again} {
		for _, key := range []string{"e", "d"} {
			err := apply(s, putFor(one, key))[0].Err
			wantCode(t, err, cluster.CodeQuotaExceeded)
			if want := fmt.Sprintf("session %q has 3 keys, and 3 are allowed", one); err.Detail != want {
				t.Errorf("%q, want %q", err.Detail, want)
			}
		}
		mustApply(t, s, putFor(one, "a"), putFor(two, "a"), putFor(one, "e"), del("e"), putFor(one, "f"), put("g", "v"))
		wantCode(t, apply(s, putFor(one, "g"))[0].Err, cluster.CodeQuotaExceeded)
		mustApply(t, s, put("f", "v"), putFor(one, "g"), keysPerSession(2), putFor(one, "b"))
		wantCode(t, apply(s, putFor(one, "h"))[0].Err, cluster.CodeQuotaExceeded)
		if n := s.View().OwnedKeys(one, 9); n != 3 {
			t.Errorf("%d keys", n)
		}
		checkCounts(t, s)
		mustApply(t, s, end(CauseExpired, one), del("d"), putFor(two, "h"))
		checkCounts(t, s)
	}
}

// A native write ties no more keys to a lease than a transaction: they are deleted with one revision.
func TestKeysPerSession_OfALease(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, limits(1<<40, 1000), grant(7, 10))
	lease, _ := s.View().Lease(7)
	var cmds []Command
	for i := range MaxLeaseKeys {
		cmds = append(cmds, putFor(lease.ID, fmt.Sprint(i)))
	}
	mustApply(t, s, cmds...)
	more, twice := putFor(lease.ID, "more"), withIdempotency(putFor(lease.ID, "more"), "client/1", "f")
	own := putFor(lease.ID, "7")
	// While some member does not know the bound, only the leader refuses.
	before := s.View()
	wantCode(t, before.RefusesGrowth(&more), cluster.CodeQuotaExceeded)
	if a, b := before.RefusesGrowth(&twice), before.RefusesGrowth(&own); a != nil || b != nil {
		t.Errorf("refused: %v, %v", a, b)
	}
	mustApply(t, s, more, del("more"), keysPerSession(MaxSessionKeys))
	view := s.View()
	err := view.RefusesGrowth(&more)
	if applied := apply(s, more)[0].Err; err == nil || applied == nil || applied.Error() != err.Error() {
		t.Errorf("refused with %v, and in the log with %v", err, applied)
	}
	mustApply(t, s, own, del("8"), more)
	checkCounts(t, s)
}

// The bound needs a version of its own. It does not make the history keep what is replaced.
func TestKeysPerSession_Version(t *testing.T) {
	t.Parallel()
	c := keysPerSession(3)
	if v := c.MinVersion(); v != BoundsVersion {
		t.Errorf("it needs version %d", v)
	}
	s := New(Options{})
	mustApply(t, s, put("a", "1"), c, put("a", "2"))
	if v := s.View(); v.CommandVersion() != BoundsVersion || v.KeepsReplaced() {
		t.Errorf("version %d, replaced items are kept: %v", v.CommandVersion(), v.KeepsReplaced())
	}
	wantCode(t, apply(s, keysPerSession(MaxStateBytes+1))[0].Err, cluster.CodeBadRequest)
}
