package state

import (
	"bytes"
	"fmt"
	"testing"

	"northstar/cluster"
)

// The last campaign decides whether a role is required, also for the time after its tenure. Older members cannot read
// that, so the mark needs its version; without it, a command is what it was before.
func TestRequiredRoles(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	a, b := newSession(t, s, "a"), newSession(t, s, "b")
	campaign := func(session string, required, want bool) {
		t.Helper()
		c := Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
			Role: "r", Session: session, Wait: true, Required: required,
		}}
		if v := c.MinVersion(); required != (v == requiredVersion) || !required && v != 1 {
			t.Errorf("required %v: version %d", required, v)
		}
		mustApply(t, s, c)
		if r, _ := s.View().Role("r"); r.Required != want {
			t.Errorf("%+v", r)
		}
	}
	campaign(a, true, true)
	campaign(a, false, false) // the holder again
	campaign(a, true, true)
	campaign(b, false, false) // in the queue
	campaign(b, true, true)
	mustApply(t, s, end(CauseExpired, a), end(CauseExpired, b))
	if r, ok := s.View().Role("r"); !ok || r.Held() || !r.Required {
		t.Errorf("vacant: %+v", r)
	}
	again := New(Options{})
	restore(t, again, snapshotOf(t, s))
	if r, _ := again.View().Role("r"); !r.Required {
		t.Errorf("after a restart: %+v", r)
	}
	campaign(newSession(t, s, "c"), false, false)
	c := Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{Role: "r", Session: a, Required: true}}
	shared := c
	c.DropRequired()
	if c.MinVersion() != 1 || !shared.RoleCampaign.Required {
		t.Errorf("dropped: %+v, shared: %+v", c.RoleCampaign, shared.RoleCampaign)
	}
}

// requiredRole makes a session the holder of a required role.
func requiredRole(t *testing.T, s *State, role, session string) {
	t.Helper()
	mustApply(t, s, Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{
		Role: role, Session: session, Required: true,
	}})
}

func isRequired(s *State, role string) bool {
	r, ok := s.View().Role(role)
	return ok && !r.Held() && r.Required
}

// A restore leaves required roles vacant, which is what their alert is for. So does one of the backup of another
// cluster, whose roles nothing else knows. The lock delays end before any candidate comes.
func TestRequiredRoles_Restore(t *testing.T) {
	t.Parallel()
	backup := New(Options{})
	restore(t, backup, snapshotOf(t, richState(t)))
	requiredRole(t, backup, "theirs", newSession(t, backup, "a"))
	mustApply(t, backup, put("later", "v"))
	s := New(Options{})
	restore(t, s, snapshotOf(t, richState(t)))
	upgraded(t, s)
	requiredRole(t, s, "own", newSession(t, s, "b"))
	merged, err := mergeBackup(s.Snapshot(), snapshotOf(t, backup))
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
	for range 2 {
		if !isRequired(s, "own") || !isRequired(s, "theirs") || isRequired(s, "primary") {
			t.Fatalf("own %v, theirs %v", isRequired(s, "own"), isRequired(s, "theirs"))
		}
		for _, name := range []string{"own", "theirs"} {
			r, _ := s.View().Role(name)
			mustApply(t, s, elect(name, r.StateRevision))
		}
		restore(t, s, snapshotOf(t, s))
	}
	theirs, _ := s.View().Role("theirs")
	if last := theirs.History[0]; theirs.LockDelay != 0 || last.Token == 0 || last.Cause != CauseRestored ||
		last.EndedAt != s.View().now {
		t.Errorf("after its lock delay: %+v", theirs)
	}
}

// A recovery keeps the mark, when every member knows that.
func TestRequiredRoles_Recovery(t *testing.T) {
	t.Parallel()
	for _, bounded := range []bool{false, true} {
		s := richState(t)
		requiredRole(t, s, "r", newSession(t, s, "a"))
		if bounded {
			mustApply(t, s, keysPerSession(9))
		}
		mustApply(t, s, Command{Kind: KindRecovery, Recovery: &Recovery{
			Generation: cluster.Generation{Number: 2, RecoveryID: "again"}, LockDelay: true,
		}})
		if isRequired(s, "r") != bounded {
			t.Errorf("with version %d: %v", s.View().CommandVersion(), isRequired(s, "r"))
		}
	}
}

// Vacant roles make room for others, those without an alert first.
func TestRequiredRoles_Evicted(t *testing.T) {
	t.Parallel()
	for _, bounded := range []bool{false, true} {
		s := New(Options{})
		id := newSession(t, s, "a")
		if bounded {
			mustApply(t, s, keysPerSession(9))
		}
		requiredRole(t, s, "required", id)
		mustApply(t, s, resign("required", id))
		for i := range MaxRoles - 1 {
			role := fmt.Sprint("r", i)
			mustApply(t, s, Command{Kind: KindRoleCampaign, RoleCampaign: &RoleCampaign{Role: role, Session: id}})
			mustApply(t, s, resign(role, id))
		}
		requiredRole(t, s, "more", id)
		if n := s.View().Roles(); isRequired(s, "required") != bounded || n > MaxRoles-roleEvictionBatch+1 {
			t.Errorf("bounded %v: %d roles, required %v", bounded, n, isRequired(s, "required"))
		}
	}
}
