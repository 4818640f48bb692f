package consensus

import (
	"encoding/json"
	"os"
	"testing"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// identity.json of the build before, after a recovery, decodes and encodes to the same text.
func TestIdentityOfTheBuildBefore(t *testing.T) {
	want, err := os.ReadFile("testdata/identity-f89d65c.json")
	if err != nil {
		t.Fatal(err)
	}
	var f identityFile
	if err := json.Unmarshal(want, &f); err != nil {
		t.Fatal(err)
	}
	if f.Recovery == nil || len(f.Recovery.Servers) != 4 ||
		f.Recovery.Servers[0] != (cluster.Server{ID: "n1", Address: "127.0.0.1:27701", Suffrage: cluster.Voter}) {
		t.Errorf("recovery: %+v", f.Recovery)
	}
	got, err := json.MarshalIndent(&f, "", "  ")
	if err != nil || string(got)+"\n" != string(want) {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestRestoreToUndo: a node that has gone to a later term may have acknowledged entries after the restore.
func TestRestoreToUndo(t *testing.T) {
	t.Parallel()
	end := raftnode.LogPosition{Index: 13, Term: 5}
	f := identityFile{AbandonedRestore: end, AbandonedFor: 7}
	for term, want := range map[uint64]raftnode.LogPosition{6: end, 7: end, 8: {}} {
		if got := f.restoreToUndo(term); got != want {
			t.Errorf("in term %d: %+v, want %+v", term, got, want)
		}
	}
}

// TestAbandonRestore: a message of an earlier leader, which comes late, does not make the record one for its term.
func TestAbandonRestore(t *testing.T) {
	t.Parallel()
	first, second := raftnode.LogPosition{Index: 13, Term: 5}, raftnode.LogPosition{Index: 13, Term: 6}
	var f identityFile
	for i, s := range []struct {
		end         raftnode.LogPosition
		leader      uint64
		changed     bool
		recordedFor uint64
	}{
		{first, 7, true, 7},
		{first, 7, false, 7},
		{first, 6, false, 7},
		{first, 8, true, 8},
		{second, 7, true, 7},
	} {
		if got := f.abandonRestore(s.end, s.leader); got != s.changed || f.AbandonedRestore != s.end ||
			f.AbandonedFor != s.recordedFor {
			t.Errorf("step %d: %t, %+v of term %d", i, got, f.AbandonedRestore, f.AbandonedFor)
		}
	}
}
