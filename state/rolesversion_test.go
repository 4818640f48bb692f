package state

import (
	"strings"
	"testing"

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
