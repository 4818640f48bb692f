package state

import "testing"

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
