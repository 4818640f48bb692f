package state

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// goOn has a cluster give out so many more revisions.
func goOn(s *State, revisions uint64) {
	v := *s.View()
	v.revision += revisions
	s.view.Store(&v)
}

// restoredAt replaces a state with a backup, on a leader whose clock shows now.
func restoredAt(t *testing.T, now time.Time, s *State, backup []byte) {
	t.Helper()
	merged, err := mergeBackupAt(now, s.Snapshot(), backup)
	if err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	restore(t, s, raw.Bytes())
}

// tokenOf elects a new session after the lock delays, and returns its token.
func tokenOf(t *testing.T, s *State, role string) uint64 {
	t.Helper()
	id := sessionOf(t, s, MinSessionTTL)
	r := campaign(t, s, role, id)
	since, _ := s.View().ClusterLockDelay()
	mustApply(t, s, elect("", since), elect(role, r.StateRevision))
	if r, _ = s.View().Role(role); r.Current.Session != id {
		t.Fatalf("%+v", r)
	}
	return r.Current.Token
}

// A cluster that is lost has gone on after its last backup. No token of the cluster into which the backup is restored
// is one that the lost cluster can have given out, and so it is with revisions.
func TestRestore_TokensAreAboveThoseOfALostCluster(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		now   time.Time // of the restore
		after uint64    // revisions after the backup
		then  []Command
	}{
		"a few million writes":               {now: now, after: 1 << 21},
		"… and a clock that is not set":      {after: 1 << 21},
		"as many as a generation has":        {now: now, after: 1 << revisionBits},
		"… and a clock that is not set, too": {after: 1 << revisionBits},
		"a recovery":                         {then: []Command{waiting(2)}},
		"recoveries":                         {now: now, then: []Command{waiting(2), waiting(3), waiting(4), waiting(5)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost, s := clusterOf(t, "lost"), clusterOf(t, "new")
			mustApply(t, lost, put("k", "v"))
			backup := snapshotOf(t, lost)
			goOn(lost, tt.after)
			mustApply(t, lost, tt.then...)
			seen := tokenOf(t, lost, "r")
			restoredAt(t, tt.now, s, backup)
			if _, err := s.Feed().Cursor("", seen); !cluster.IsCode(err, cluster.CodeHistoryCompacted) {
				t.Errorf("a watch goes on from a revision of the lost cluster: %v", err)
			}
			token := tokenOf(t, s, "r")
			if token <= seen {
				t.Errorf("token %d after %d", token, seen)
			}
			mustApply(t, s, waiting(NextGeneration(1, s.View().Revision())))
			if next := tokenOf(t, s, "r"); next <= token {
				t.Errorf("token %d after %d and a recovery", next, token)
			}
		})
	}
}

// One backup may be restored again and again: each new cluster may be lost, too.
func TestRestore_SameBackupAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	lost := clusterOf(t, "lost")
	backup := snapshotOf(t, lost)
	seen := tokenOf(t, lost, "r")
	for range 3 {
		s := clusterOf(t, "new")
		restoredAt(t, now, s, backup)
		goOn(s, 1<<30)
		token := tokenOf(t, s, "r")
		if token <= seen {
			t.Errorf("token %d after %d", token, seen)
		}
		now, seen = now.Add(time.Hour), token
	}

	mustApply(t, lost, Command{Kind: KindPut, Now: now.UnixNano(), Put: &Put{Key: "k", Value: []byte("v")}})
	for chain := range 3 { // a cluster that was restored has a revision that is ahead of its time, and is lost twice
		s := clusterOf(t, "restored")
		restoredAt(t, now, s, snapshotOf(t, lost))
		mustApply(t, s, Command{Kind: KindPut, Now: now.UnixNano(), Put: &Put{Key: "k", Value: []byte("v")}})
		backup, seen := snapshotOf(t, s), tokenOf(t, s, "r")
		for range 3 {
			now = now.Add(time.Hour)
			next := clusterOf(t, "next")
			restoredAt(t, now, next, backup)
			goOn(next, 1<<30)
			token := tokenOf(t, next, "r")
			if token <= seen {
				t.Errorf("chain %d: token %d after %d", chain, token, seen)
			}
			seen = token
		}
		lost = s
	}

	standby := clusterOf(t, "standby") // restores again and again what the other cluster has saved
	for range 10_000 {
		merged, err := mergeBackupAt(now, standby.Snapshot(), backup)
		if err != nil {
			t.Fatal(err)
		}
		standby.view.Store(merged.view)
		now = now.Add(10 * time.Hour)
	}
	if used := standby.View().Revision() >> revisionBits; used > MaxGeneration/8 {
		t.Errorf("11 years of restores took the revisions of %d generations", used)
	}
}

// The revision of a time grows by half a million a second, and leaves half of a generation's revisions.
func TestRevisionAt(t *testing.T) {
	t.Parallel()
	start := time.Unix(revisionEpoch, 0)
	for _, d := range []time.Duration{0, secondsPerGeneration * time.Second, 20 * 365 * 24 * time.Hour} {
		for i := range 5 {
			at := start.Add(d + time.Duration(i-3)*time.Second)
			a, b := revisionAt(at), revisionAt(at.Add(time.Second))
			if at.Before(start) && a != 0 || !at.Before(start) && b < a+1<<19 {
				t.Errorf("%v: %d, a second later %d", at, a, b)
			}
			if room := 1<<revisionBits - a%(1<<revisionBits); room < 1<<(revisionBits-1) {
				t.Errorf("%v: %d leaves %d", at, a, room)
			}
		}
	}
}

// A restore of the cluster's own past leaves its numbers where they are.
func TestRestore_OwnPastTakesFewRevisions(t *testing.T) {
	t.Parallel()
	s := clusterOf(t, "c")
	backup := snapshotOf(t, s)
	mustApply(t, s, put("k", "v"))
	before := s.View().Revision()
	restoredAt(t, time.Now(), s, backup)
	if took := s.View().Revision() - before; took != restoreRevisionGap {
		t.Errorf("it took %d revisions", took)
	}
	if _, d := s.View().ClusterLockDelay(); d != 0 {
		t.Errorf("roles that nobody can hold have a lock delay of %v", d)
	}
}

// Revisions stay below 2^53 and leave room for a recovery, also with a wrong clock and a very high revision in the
// backup. A restore that would go beyond is refused.
func TestRestore_RevisionsAreBounded(t *testing.T) {
	t.Parallel()
	late := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	writeAt := func(s *State) {
		mustApply(t, s, Command{Kind: KindPut, Now: late.UnixNano(), Put: &Put{Key: "k", Value: []byte("v")}})
	}
	s, other := clusterOf(t, "c"), clusterOf(t, "other")
	writeAt(other)
	restoredAt(t, late, s, snapshotOf(t, other))
	if r := s.View().Revision(); r > maxRevision/4 {
		t.Errorf("revision %d", r)
	}
	fits := 0
	for ; fits < MaxGeneration; fits++ { // one lost cluster after another
		next := clusterOf(t, string(rune('a'+fits%2)))
		writeAt(s)
		merged, err := mergeBackupAt(late, next.Snapshot(), snapshotOf(t, s))
		if err != nil {
			if !strings.Contains(err.Error(), "revision") {
				t.Error(err)
			}
			break
		}
		s.view.Store(merged.view)
	}
	last := s.View().Revision()
	if next := NextGeneration(1, last); fits < 1000 || next > MaxGeneration || firstRevision(next) <= last {
		t.Errorf("after %d restores and revision %d: generation %d", fits, last, next)
	}
}

// A role that was vacant in the backup, or unknown, may have been won in the lost cluster after it. So every role has a
// lock delay, as after a recovery.
func TestRestore_LockDelayOfLaterHolders(t *testing.T) {
	t.Parallel()
	lost := clusterOf(t, "lost")
	campaign(t, lost, "held", sessionOf(t, lost, 40*time.Second))
	s := clusterOf(t, "new")
	restoredAt(t, time.Now(), s, snapshotOf(t, lost))
	since, all := s.View().ClusterLockDelay()
	if all != 40*time.Second || since != s.View().epoch {
		t.Fatalf("cluster lock delay %v since %d", all, since)
	}
	if r := campaign(t, s, "unknown", sessionOf(t, s, MinSessionTTL)); r.Held() {
		t.Errorf("%+v", r)
	}
	empty := clusterOf(t, "new")
	restoredAt(t, time.Now(), empty, snapshotOf(t, clusterOf(t, "lost")))
	if _, d := empty.View().ClusterLockDelay(); d != minRecoveryLockDelay {
		t.Errorf("cluster lock delay %v", d)
	}
	older := clusterOf(t, "new") // with a member that cannot read it
	mustApply(t, older, member("n2"), patch(MemberPatch{ID: "n2", SupportedVersion: ptr(uint32(lockDelayVersion - 1))}))
	restoredAt(t, time.Now(), older, snapshotOf(t, clusterOf(t, "lost")))
	if _, d := older.View().ClusterLockDelay(); d != 0 {
		t.Errorf("cluster lock delay %v", d)
	}
}
