package state

import (
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// rolesVersion is the command from which on the state decides by RolesVersion.
func rolesVersion() Command {
	return Limits{StateBytes: 1 << 40, SessionsPerIdentity: 1000}.Change(true)
}

// The decisions need a version of their own. It does not make the history keep what is replaced. Limits that come later
// change nothing about it.
func TestRolesVersion(t *testing.T) {
	t.Parallel()
	c := rolesVersion()
	if v := c.MinVersion(); v != RolesVersion {
		t.Errorf("it needs version %d", v)
	}
	s := New(Options{})
	mustApply(t, s, put("a", "1"), c, put("a", "2"), keysPerSession(3))
	if v := s.View(); v.CommandVersion() != RolesVersion || v.KeepsReplaced() ||
		v.Limits() != (Limits{1 << 40, 1000, 3}) {
		t.Errorf("version %d, replaced items are kept: %v, %+v", v.CommandVersion(), v.KeepsReplaced(), v.Limits())
	}
}

// Of sessions that end in one command none is elected, and what remains of the queue is as if they had never waited.
// Logs of older builds are applied as those did.
func TestSessionsThatEndTogether_Candidates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cause   Cause
		old     string // the events of version 8
		pending bool   // with version 8
	}{
		{CauseSessionEnded, "+r/h -expired:r/h +r/b -session_ended:r/b +r/c", false},
		{CauseExpired, "+r/h -expired:r/h +r/b -expired:r/b", true},
	} {
		for _, upgraded := range []bool{false, true} {
			s := New(Options{})
			if upgraded {
				mustApply(t, s, rolesVersion())
			}
			h, a, b, c := newSession(t, s, "h"), newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "c")
			campaign(t, s, "r", h)
			for _, id := range []string{a, b, c} {
				mustApply(t, s, campaignWith("r", id, func(p *RoleCampaign) {
					if id != b {
						p.TakeoverDelay = time.Minute
					}
				}))
			}
			mustApply(t, s, end(CauseExpired, h))
			vacant, _ := s.View().Role("r")
			mustApply(t, s, end(tt.cause, a, b))
			events, pending, revision := "+r/h -expired:r/h", true, vacant.StateRevision
			r, _ := s.View().Role("r")
			if !upgraded {
				events, pending, revision = tt.old, tt.pending, r.StateRevision
			}
			if got := describeEvents(roleEvents(t, s, "r")); got != events || r.TakeoverPending != pending ||
				r.StateRevision != revision {
				t.Errorf("%s, upgraded %v: %s, pending %v", tt.cause, upgraded, got, r.TakeoverPending)
			}
			again := New(Options{})
			restore(t, again, snapshotOf(t, s))
			checkCounts(t, again)
			if again.View().Fingerprint() != s.View().Fingerprint() {
				t.Errorf("%s, upgraded %v: the snapshot has another state", tt.cause, upgraded)
			}
		}
	}
}

// A candidate that the role was revoked from ends together with the one before it: it is not elected.
func TestSessionsThatEndTogether_Revoked(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, rolesVersion())
	h, a, b := newSession(t, s, "h"), newSession(t, s, "a"), newSession(t, s, "b")
	for _, role := range []string{"both", "one"} {
		campaign(t, s, role, h)
		campaign(t, s, role, a)
		mustApply(t, s, revoking(role, ""))
	}
	campaign(t, s, "one", b)
	campaign(t, s, "both", h) // it may be elected again
	mustApply(t, s, end(CauseSessionEnded, a, h))
	if got, want := describeEvents(roleEvents(t, s, "")),
		"+both/h -evicted:both/h +one/h -evicted:one/h +one/b"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	checkCounts(t, s)
}

// A candidate that already waits stays in the queue, also if it campaigns again without waiting. So a larger value
// needs room. A look at a held role needs none.
func TestFullState_QueuedCandidate(t *testing.T) {
	t.Parallel()
	for _, upgraded := range []bool{false, true} {
		s := New(Options{})
		full := Limits{StateBytes: MinStateBytes, SessionsPerIdentity: 1000}.Change(upgraded)
		mustApply(t, s, full)
		a, b, other := newSession(t, s, "a"), newSession(t, s, "b"), newSession(t, s, "other")
		campaign(t, s, "held", a)
		mustApply(t, s, campaignWith("held", b, func(*RoleCampaign) {}))
		for apply(s, create("more"))[0].Err == nil {
		}
		before := s.View()
		look := func(session string) Result {
			return apply(s, campaignWith("held", session, func(c *RoleCampaign) {
				c.Wait, c.Value = false, strings.Repeat("v", MaxRoleValue)
			}))[0]
		}
		if r := look(other); r.Err != nil || s.View().StateBytes() != before.StateBytes() {
			t.Errorf("upgraded %v: %v, %d bytes", upgraded, r.Err, s.View().StateBytes())
		}
		r := look(b)
		if grown := s.View().StateBytes() - before.StateBytes(); upgraded && (grown != 0 ||
			!cluster.IsCode(r.Err, cluster.CodeQuotaExceeded)) || !upgraded && (grown != MaxRoleValue || r.Err != nil) {
			t.Errorf("upgraded %v: %v, grown by %d", upgraded, r.Err, grown)
		}
		mustApply(t, s, campaignWith("held", b, func(c *RoleCampaign) { c.Wait = false })) // keeps or shrinks
		checkCounts(t, s)
	}
}
