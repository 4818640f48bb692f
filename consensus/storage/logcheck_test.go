package storage

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
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

// A node that stopped while it deleted entries has them in its file. The next opening deletes them, so an operator who
// looks at the stopped node must not see them.
func TestInspect_UnfinishedDeletion(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := guardDir(t, path)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 5); err != nil {
		t.Fatal(err)
	}
	configuration := func(index, term uint64, id raft.ServerID) []*raft.Log {
		return []*raft.Log{{Index: index, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(
			raft.Configuration{Servers: []raft.Server{{ID: id, Address: "a"}}})}}
	}
	mustStore(t, g.Log(), configuration(1, 3, "good"))
	mustStore(t, g.Log(), entries(2, 4, 3, 10))
	mustStore(t, g.Log(), configuration(6, 4, "deposed"))
	announced := tail{last: 5, untaggedTx: 1, from: 6, to: 6, journal: true}
	if err := g.storage.(*Dir).log.storeInBolt(nil, announced); err != nil {
		t.Fatal(err)
	}
	i, err := Inspect(copyDir(t, path)) // as after a crash before the deletion
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if i.LastIndex != 5 || i.LastTerm != 3 || i.Configuration.Servers[0].ID != "good" {
		t.Errorf("last entry %d of term %d, servers %v; want 5, 3, [good]", i.LastIndex, i.LastTerm,
			i.Configuration.Servers)
	}
	if last, err := openDir(t, copyDir(t, path)).Log().LastIndex(); err != nil || last != 5 {
		t.Errorf("opened: the last entry is %d, %v", last, err)
	}
}
