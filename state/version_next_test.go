//go:build northstar_next

package state

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// A backup that some member cannot read yet is not restored: that member would have to stop.
func TestMergeBackupOfNewerVersion(t *testing.T) {
	t.Parallel()
	newer := New(Options{})
	note := Command{Kind: KindNote}
	note.Note = &Note{}
	mustApply(t, newer, note)
	backup := snapshotOf(t, newer)

	s := New(Options{})
	mustApply(t, s, member("n1"), member("n2"), member("n3"), remove("n3"),
		patch(MemberPatch{ID: "n1", SupportedVersion: ptr(CommandVersion)}),
		patch(MemberPatch{ID: "n2", SupportedVersion: ptr(CommandVersion - 1)}))
	if _, err := mergeBackup(s.Snapshot(), backup); err == nil {
		t.Fatal("merged")
	}
	mustApply(t, s, patch(MemberPatch{ID: "n2", SupportedVersion: ptr(CommandVersion)}))
	if _, err := mergeBackup(s.Snapshot(), backup); err != nil {
		t.Fatal(err)
	}
}

func TestNextVersionNote(t *testing.T) {
	t.Parallel()
	cmds := []Command{put("a", "x"), {Kind: KindNote}}
	cmds[1].Note = &Note{Text: "hi"}
	raw, err := EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, noteBytes(t)) {
		t.Fatalf("the constant is out of date: %s", hex.EncodeToString(raw))
	}
	s := New(Options{})
	cmds, err = DecodeBatch(raw)
	if err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, cmds[0])
	if v := s.View().version; v != 1 {
		t.Fatalf("version %d before the note", v)
	}
	mustApply(t, s, cmds[1])
	if v := s.View().version; v != CommandVersion {
		t.Fatalf("version %d after the note", v)
	}
}
