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

// onlyIneligible makes a required role for which an ineligible candidate waits, and ends that candidate's session.
func onlyIneligible(t *testing.T, s *State, role string) {
	t.Helper()
	id := newSession(t, s, "standby")
	mustApply(t, s, campaignWith(role, id, func(c *RoleCampaign) { c.Ineligible, c.Required = true, true }))
	if !isRequired(s, role) {
		t.Fatalf("%s is not required while a candidate waits", role)
	}
	mustApply(t, s, end(CauseExpired, id))
}

// A required role that no session ever held stays required without candidates, until a campaign says otherwise: also
// after a restart, a restore, a recovery, and in another cluster that restores a backup.
func TestRequiredRoles_NeverHeld(t *testing.T) {
	t.Parallel()
	for _, upgraded := range []bool{false, true} {
		s := richState(t)
		if upgraded {
			mustApply(t, s, rolesVersion())
		}
		onlyIneligible(t, s, "r")
		left := newSession(t, s, "left")
		mustApply(t, s, campaignWith("withdrawn", left, func(c *RoleCampaign) {
			c.Ineligible, c.Required, c.Wait = true, true, false
		}))
		check := func(what string) {
			t.Helper()
			if a, b := isRequired(s, "r"), isRequired(s, "withdrawn"); a != upgraded || b != upgraded {
				t.Fatalf("%s, upgraded %v: required %v and %v", what, upgraded, a, b)
			}
			checkCounts(t, s)
		}
		check("without candidates")
		restore(t, s, snapshotOf(t, s))
		check("after a restart")
		mustApply(t, s, patch(MemberPatch{ID: "n1", SupportedVersion: ptr(CommandVersion)}),
			patch(MemberPatch{ID: "n2", SupportedVersion: ptr(CommandVersion)}))
		for _, into := range []*State{s, New(Options{})} {
			merged, err := mergeBackup(into.Snapshot(), snapshotOf(t, s))
			if err != nil {
				t.Fatal(err)
			}
			var raw bytes.Buffer
			if _, err := merged.WriteTo(&raw); err != nil {
				t.Fatal(err)
			}
			restored := New(Options{})
			restore(t, restored, raw.Bytes())
			if isRequired(restored, "r") != upgraded || isRequired(restored, "withdrawn") != upgraded {
				t.Fatalf("after a restore, upgraded %v", upgraded)
			}
			checkCounts(t, restored)
		}
		mustApply(t, s, Command{Kind: KindRecovery, Recovery: &Recovery{
			Generation: cluster.Generation{Number: 2, RecoveryID: "again"}, LockDelay: true,
		}})
		check("after a recovery")
		id := newSession(t, s, "other")
		mustApply(t, s, campaignWith("r", id, func(c *RoleCampaign) { c.Ineligible = true }), end(CauseExpired, id))
		if r, known := s.View().Role("r"); known {
			t.Errorf("no longer required: %+v", r)
		}
	}
}

// The marks of another cluster's backup take no room that roles of this one have, and prevent no restore.
func TestRequiredRoles_RestoreIntoMany(t *testing.T) {
	t.Parallel()
	backup, s := New(Options{}), New(Options{})
	for _, x := range []*State{backup, s} {
		mustApply(t, x, rolesVersion())
	}
	for i := range 3 {
		onlyIneligible(t, backup, fmt.Sprint("theirs", i))
	}
	id := newSession(t, s, "a")
	for i := range MaxRoles - 2 {
		role := fmt.Sprint("r", i)
		mustApply(t, s, campaignWith(role, id, func(*RoleCampaign) {}), resign(role, id))
	}
	mustApply(t, backup, Command{Kind: KindClusterInit, ClusterInit: &ClusterInit{ClusterID: "c-2"}})
	merged, err := mergeBackup(s.Snapshot(), snapshotOf(t, backup))
	if err != nil {
		t.Fatal(err)
	}
	_, first := merged.view.Role("theirs0")
	if _, third := merged.view.Role("theirs2"); merged.view.Roles() != MaxRoles || !first || third {
		t.Errorf("%d roles, the first mark %v, the third %v", merged.view.Roles(), first, third)
	}
}

// Of required roles those make room first that no session ever held, in order of their names.
func TestRequiredRoles_NeverHeldEvicted(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, rolesVersion())
	id := newSession(t, s, "a")
	var cmds []Command
	for i := range MaxRoles {
		cmds = append(cmds, campaignWith(fmt.Sprintf("r%05d", i), id, func(c *RoleCampaign) {
			c.Ineligible, c.Required = i%2 == 0, true
		}))
	}
	mustApply(t, s, cmds...)
	mustApply(t, s, end(CauseExpired, id))
	if n := s.View().Roles(); n != MaxRoles {
		t.Fatalf("%d roles", n)
	}
	requiredRole(t, s, "more", newSession(t, s, "b"))
	for i := range MaxRoles {
		if role := fmt.Sprintf("r%05d", i); isRequired(s, role) != (i%2 != 0 || i >= 2*roleEvictionBatch) {
			t.Fatalf("%s is required: %v", role, isRequired(s, role))
		}
	}
	checkCounts(t, s)
}
