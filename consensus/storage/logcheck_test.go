package storage

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// An installed restore has the term of its leader. A deposed leader's entries stay behind it until the next append, and
// the node may stop before that.
func TestEntriesOfADeposedLeaderBehindARestore(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := guardDir(t, path)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 5); err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(1, 10, 3, 100))
	mustStore(t, g.Log(), entries(11, 6, 4, 100))
	makeSnapshot(t, g, 13, 5)
	killed := copyDir(t, path)

	i, err := Inspect(copyDir(t, killed))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if i.LastIndex != 16 || i.LastTerm != 4 || i.SnapshotTerm != 5 {
		t.Errorf("last entry %d of term %d, snapshot of term %d", i.LastIndex, i.LastTerm, i.SnapshotTerm)
	}
	g = guardDir(t, killed)
	checkLogHolds(t, g.Log(), terms(1, 10, 3, 11, 16, 4))
	if err := g.Log().DeleteRange(14, 16); err != nil { // the leader of term 5 continues
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(14, 2, 5, 100))
	checkLogHolds(t, guardDir(t, copyDir(t, killed)).Log(), terms(1, 10, 3, 11, 13, 4, 14, 15, 5))
}

// The vote file's term is at least that of the newest snapshot, also if older entries come behind it.
func TestTermOfASnapshotBeforeOlderEntries(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := guardDir(t, path)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 4); err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(1, 16, 4, 100))
	makeSnapshot(t, g, 13, 5)
	_, err := Open(Options{Dir: copyDir(t, path), Logger: hclog.NewNullLogger()})
	var damaged *DamagedError
	if !errors.As(err, &damaged) || !strings.Contains(damaged.What, "its term is 4, the log's is 5") {
		t.Errorf("opened with %v", err)
	}
}
