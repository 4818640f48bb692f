package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func elect(role string, since uint64) Command {
	return Command{Kind: KindRoleElect, RoleElect: &RoleElect{Roles: []ElectableRole{{role, since}}}}
}

// sessionOf starts a session with a TTL and returns its ID.
func sessionOf(t *testing.T, s *State, ttl time.Duration) string {
	t.Helper()
	c := create("")
	c.SessionCreate.TTL = ttl
	r := apply(s, c)[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Session.ID
}

// clusterOf returns a cluster whose only member supports the version of this build.
func clusterOf(t *testing.T, id string) *State {
	t.Helper()
	s := New(Options{})
	mustApply(t, s, Command{Kind: KindClusterInit, ClusterInit: &ClusterInit{
		ClusterID: id, Generation: cluster.Generation{Number: 1},
		Members: []cluster.Member{{ID: "n1", Reads: CommandVersion}},
	}})
	return s
}

// restored replaces a state with a backup.
func restored(t *testing.T, s *State, backup []byte) {
	t.Helper()
	restoredAt(t, time.Time{}, s, backup)
}

func wantLockDelays(t *testing.T, s *State, want map[string]time.Duration) {
	t.Helper()
	v := s.View()
	for name, d := range want {
		r, ok := v.Role(name)
		if !ok {
			r = &Role{Name: name}
		}
		if r.LockDelay != d || r.Held() || r.RevokedFrom != "" {
			t.Errorf("%s has lock delay %v, want %v: %+v", name, r.LockDelay, d, r)
		}
	}
}

// wantElected checks that a new session is elected only after the lock delay, with a token greater than least.
func wantElected(t *testing.T, s *State, role string, least uint64) {
	t.Helper()
	id := sessionOf(t, s, MinSessionTTL)
	r := campaign(t, s, role, id)
	if r.Held() {
		t.Fatalf("%s has no lock delay: %+v", role, r)
	}
	wantCode(t, apply(s, Command{
		Kind: KindPut, Put: &Put{Key: "k"},
		Fence: &FencingToken{Role: role, Token: least},
	})[0].Err, cluster.CodeFenced)
	mustApply(t, s, elect(role, r.StateRevision+1), elect(role, r.StateRevision-1))
	if now, _ := s.View().Role(role); now.Held() {
		t.Fatalf("%s: elected for a different vacancy", role)
	}
	since, _ := s.View().ClusterLockDelay()
	mustApply(t, s, elect("", since))
	if now, _ := s.View().Role(role); now.Held() {
		t.Fatalf("%s: elected by the end of the cluster's lock delay", role)
	}
	restore(t, s, snapshotOf(t, s))
	mustApply(t, s, elect(role, r.StateRevision))
	if now, _ := s.View().Role(role); now.Current.Session != id || now.Current.Token <= least || now.LockDelay != 0 {
		t.Fatalf("%s after token %d: %+v", role, least, now)
	}
	wantCode(t, apply(s, Command{
		Kind: KindPut, Put: &Put{Key: "k"},
		Fence: &FencingToken{Role: role, Token: least},
	})[0].Err, cluster.CodeFenced)
}

// A restore sets a lock delay for a role's holder, or for the session from which it was revoked, and for no other
// session.
func TestRestore_SetsLockDelay(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	past := sessionOf(t, s, time.Hour)
	campaign(t, s, "past", past)
	backup := snapshotOf(t, s)
	mustApply(t, s, resign("past", past), end(CauseSessionEnded, past))
	a, b, c := sessionOf(t, s, time.Minute), sessionOf(t, s, 2*time.Second), sessionOf(t, s, time.Hour)
	token := campaign(t, s, "held", a).Current.Token
	campaign(t, s, "held", c)
	campaign(t, s, "revoked", b)
	campaign(t, s, "revoked", c)
	mustApply(t, s, revoking("revoked", ""))
	mustApply(t, s, campaignWith("ineligible", c, func(p *RoleCampaign) { p.Wait, p.Ineligible = true, true }))
	restored(t, s, backup)
	want := map[string]time.Duration{"held": time.Minute, "revoked": 2 * time.Second, "past": 0, "ineligible": 0}
	wantLockDelays(t, s, want)
	if v := s.View(); v.version < lockDelayVersion || v.Sessions() != 0 || v.clusterLockDelay != 0 {
		t.Fatalf("version %d, %d sessions, %v", v.version, v.Sessions(), v.clusterLockDelay)
	}
	restored(t, s, backup) // once more, while they wait
	wantLockDelays(t, s, want)
	wantElected(t, s, "held", token)
	wantLockDelays(t, s, map[string]time.Duration{"revoked": 2 * time.Second})
}

// A backup of another cluster, or of changes that this one never saw, names holders that may still act. That
// cluster may have been lost a moment ago.
func TestRestore_LockDelayOfBackupHolders(t *testing.T) {
	t.Parallel()
	lost, s := clusterOf(t, "lost"), clusterOf(t, "c")
	for range 20 {
		mustApply(t, lost, put("k", "v"))
	}
	a, b := sessionOf(t, lost, time.Minute), sessionOf(t, lost, 2*time.Second)
	token := campaign(t, lost, "only-there", a).Current.Token
	campaign(t, lost, "both", b)
	campaign(t, lost, "revoked", a)
	mustApply(t, lost, revoking("revoked", ""))
	campaign(t, lost, "candidates-only", a)
	mustApply(t, lost, resign("candidates-only", a))
	campaign(t, s, "both", sessionOf(t, s, 5*time.Second))
	restored(t, s, snapshotOf(t, lost))
	wantLockDelays(t, s, map[string]time.Duration{
		"only-there": time.Minute, "both": 5 * time.Second,
		"revoked": time.Minute, "candidates-only": 0,
	})
	wantElected(t, s, "only-there", token)

	older := clusterOf(t, "lost") // than the backup, and of the same cluster
	restored(t, older, snapshotOf(t, lost))
	wantLockDelays(t, older, map[string]time.Duration{"only-there": time.Minute, "both": 2 * time.Second})
}

// A restore is refused if some member could not read the result: that member would have to stop.
func TestRestore_LockDelayNeedsCommandVersion(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	mustApply(t, s, member("n2"), patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(lockDelayVersion - 1))}))
	backup := snapshotOf(t, s)
	restored(t, s, backup)
	a := sessionOf(t, s, time.Minute)
	campaign(t, s, "r", a)
	if _, err := mergeBackup(s.Snapshot(), backup); err == nil || !strings.Contains(err.Error(), "upgrade") {
		t.Fatalf("merged: %v", err)
	}
	mustApply(t, s, patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(lockDelayVersion))}))
	restored(t, s, backup)
	wantLockDelays(t, s, map[string]time.Duration{"r": time.Minute})
}

// A member that was added and never started supports no version that is known. It prevents no restore with a version
// that is in the log, and takes no lock delay away.
func TestRestore_MemberThatNeverStarted(t *testing.T) {
	t.Parallel()
	newest := Limits{StateBytes: 1 << 30, SessionsPerIdentity: 7, KeysPerSession: 7}.Change(true)
	s, lost := clusterOf(t, "c"), clusterOf(t, "lost")
	mustApply(t, lost, newest)
	foreign := snapshotOf(t, lost)
	mustApply(t, s, member("n4"))
	if _, err := mergeBackup(s.Snapshot(), foreign); err == nil || !strings.Contains(err.Error(), "command version 9") {
		t.Fatalf("the log has no version 9: %v", err)
	}
	mustApply(t, s, newest)
	campaign(t, s, "r", sessionOf(t, s, time.Minute))
	restored(t, s, snapshotOf(t, s))
	wantLockDelays(t, s, map[string]time.Duration{"r": time.Minute})
	restored(t, s, foreign)
	if d := s.View().clusterLockDelay; d != minRecoveryLockDelay {
		t.Errorf("a backup of another cluster: every role has lock delay %v", d)
	}
}

// A restore is refused if the result has more roles than a snapshot may have.
func TestRestoreOfTooManyRoles(t *testing.T) {
	t.Parallel()
	full := func(name string) *State {
		s := clusterOf(t, name)
		a := sessionOf(t, s, time.Minute)
		var cmds []Command
		for i := range MaxRoles {
			cmds = append(cmds, campaignWith(fmt.Sprint(name, i), a, func(*RoleCampaign) {}))
		}
		mustApply(t, s, cmds...)
		return s
	}
	s := full("a")
	if _, err := mergeBackup(s.Snapshot(), snapshotOf(t, full("b"))); err == nil {
		t.Fatal("merged")
	}
	restored(t, s, snapshotOf(t, s))
}

func waiting(number uint64) Command {
	c := recovery(number, "n1")
	c.Recovery.LockDelay = true
	return c
}

// After a recovery every role has a lock delay, known or not. It covers each session that the lost nodes may have
// elected.
func TestRecovery_SetsLockDelay(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	a, b, c := sessionOf(t, s, time.Hour), sessionOf(t, s, 20*time.Second), sessionOf(t, s, 40*time.Second)
	campaign(t, s, "short", b)
	token := campaign(t, s, "queued", b).Current.Token
	campaign(t, s, "queued", c)
	campaign(t, s, "vacant", b)
	mustApply(t, s, resign("vacant", b))
	mustApply(t, s, campaignWith("ineligible", c, func(p *RoleCampaign) { p.Wait, p.Ineligible = true, true }),
		put("k", "v"))
	mustApply(t, s, end(CauseSessionEnded, a)) // not part of any election
	mustApply(t, s, waiting(2))
	wantLockDelays(t, s, map[string]time.Duration{
		"short": 20 * time.Second, "queued": 40 * time.Second, "vacant": 0,
		"ineligible": 40 * time.Second,
	})
	since, all := s.View().ClusterLockDelay()
	if all != 40*time.Second || since != s.View().epoch {
		t.Fatalf("cluster lock delay %v since %d", all, since)
	}

	d := sessionOf(t, s, MinSessionTTL)
	for _, role := range []string{"unknown", "vacant", "queued"} {
		if r := campaign(t, s, role, d); r.Held() || s.View().LockDelay(r) < all {
			t.Fatalf("%s has no lock delay: %+v", role, r)
		}
	}
	for _, role := range []string{"unknown", "vacant", "short"} { // not before that of all is over
		r, _ := s.View().Role(role)
		mustApply(t, s, elect(role, r.StateRevision))
	}
	mustApply(t, s, elect("", since-1), elect("", since+1))
	restore(t, s, snapshotOf(t, s))
	if _, d := s.View().ClusterLockDelay(); d != all {
		t.Fatalf("cluster lock delay %v", d)
	}
	mustApply(t, s, elect("", since))
	for role, held := range map[string]bool{"unknown": true, "vacant": true, "queued": false} {
		if r, _ := s.View().Role(role); r.Held() != held || held && r.Current.Token <= firstRevision(2) {
			t.Errorf("%s: %+v", role, r)
		}
	}
	if since, d := s.View().ClusterLockDelay(); since != 0 || d != 0 {
		t.Fatalf("cluster lock delay %v since %d", d, since)
	}
	if r := campaign(t, s, "another", d); !r.Held() {
		t.Fatalf("%+v", r)
	}
	wantElected(t, s, "ineligible", token)
}

// The lock delay of the cluster is at least 10 s and at most a minute.
func TestRecovery_LockDelayIsBounded(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		MinSessionTTL: 10 * time.Second, 30 * time.Second: 30 * time.Second, MaxSessionTTL: time.Minute,
	} {
		s := clusterOf(t, "c")
		campaign(t, s, "r", sessionOf(t, s, ttl))
		mustApply(t, s, waiting(2))
		if _, d := s.View().ClusterLockDelay(); d != want {
			t.Errorf("TTL %v: cluster lock delay %v, want %v", ttl, d, want)
		}
		wantLockDelays(t, s, map[string]time.Duration{"r": ttl})
	}
}

// The log of an older build is applied as that build did. The lock delay needs a newer version.
func TestRecovery_WithoutLockDelay(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	campaign(t, s, "r", sessionOf(t, s, time.Minute))
	mustApply(t, s, recovery(2, "n1"))
	if r := campaign(t, s, "r", sessionOf(t, s, time.Minute)); !r.Held() || s.View().version != 1 {
		t.Fatalf("%+v, version %d", r, s.View().version)
	}
	if a, b := recovery(2, "n1"), waiting(2); a.MinVersion() != 1 || b.MinVersion() != lockDelayVersion {
		t.Fatalf("versions %d and %d", a.MinVersion(), b.MinVersion())
	}
	raw, err := EncodeBatch([]Command{waiting(2)})
	if err != nil {
		t.Fatal(err)
	}
	if cmds, err := DecodeBatch(raw); err != nil || !cmds[0].Recovery.LockDelay {
		t.Fatalf("%+v, %v", cmds, err)
	}
}

// A role with a lock delay is not evicted.
func TestLockDelayedRolesAreNotEvicted(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	campaign(t, s, "held", sessionOf(t, s, time.Minute))
	restored(t, s, snapshotOf(t, s))
	a := sessionOf(t, s, time.Minute)
	cmds := []Command{campaignWith("first", a, func(*RoleCampaign) {}), resign("first", a)}
	for i := range MaxRoles - 1 {
		cmds = append(cmds, campaignWith(fmt.Sprint("role", i), a, func(*RoleCampaign) {}))
	}
	mustApply(t, s, cmds...)
	if _, known := s.View().Role("first"); known || s.View().Roles() != MaxRoles {
		t.Fatalf("%d roles", s.View().Roles())
	}
	wantLockDelays(t, s, map[string]time.Duration{"held": time.Minute})
}
