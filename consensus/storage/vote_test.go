package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newVote(t testing.TB) (*voteFile, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), voteName)
	if err := saveFile(path, newVoteFile()); err != nil {
		t.Fatal(err)
	}
	v, err := openVote(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.close() })
	return v, path
}

func drawRecord(t *rapid.T, seq uint64) voteRecord {
	r := voteRecord{seq: seq, hasTerm: rapid.Bool().Draw(t, "hasTerm"), hasVote: rapid.Bool().Draw(t, "hasVote")}
	if r.hasTerm {
		r.currentTerm = rapid.Uint64().Draw(t, "term")
	}
	if r.hasVote {
		r.voteTerm = rapid.Uint64().Draw(t, "voteTerm")
		r.candidate = rapid.SliceOfN(rapid.Byte(), 0, maxCandidate).Draw(t, "candidate")
	}
	return r
}

// TestVoteTornWrite cuts the write of a record short at any byte. A read returns the previous record or the
// new one.
func TestVoteTornWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seq := rapid.Uint64Range(1, 1<<60).Draw(t, "seq")
		older, before, next := drawRecord(t, seq-1), drawRecord(t, seq), drawRecord(t, seq+1)
		file := make([]byte, 2*slotSize)
		slot := func(s uint64) []byte { return file[s%2*slotSize:][:slotSize] }
		copy(slot(seq-1), older.slot())
		copy(slot(seq), before.slot())
		n := rapid.IntRange(0, slotSize).Draw(t, "written")
		copy(slot(seq+1), next.slot()[:n])
		got, err := readVote(file)
		if err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		want := before
		if got.seq == seq+1 {
			want = next
		}
		if !got.same(want) || got.seq != want.seq {
			t.Fatalf("after %d bytes: got %+v, want %+v", n, got, want)
		}
		if n == slotSize && got.seq != seq+1 {
			t.Fatal("a complete record does not count")
		}
	})
}

// TestVoteTornSectors writes any subset of the new block's sectors.
func TestVoteTornSectors(t *testing.T) {
	older := voteRecord{seq: 6, hasTerm: true, currentTerm: 6}
	before := voteRecord{seq: 7, hasTerm: true, currentTerm: 7, hasVote: true, voteTerm: 7, candidate: []byte("a")}
	next := voteRecord{seq: 8, hasTerm: true, currentTerm: 8, hasVote: true, voteTerm: 8, candidate: []byte("b")}
	for mask := range 1 << 8 {
		block := older.slot()
		for s := range 8 {
			if mask&(1<<s) != 0 {
				copy(block[s*512:][:512], next.slot()[s*512:])
			}
		}
		got, err := readVote(append(block, before.slot()...))
		if err != nil || !got.same(before) && !got.same(next) {
			t.Fatalf("sectors %08b: %+v, %v", mask, got, err)
		}
	}
}

// TestVoteDamage overwrites a region at rest. A small region changes nothing. A larger one is an error, and
// never returns the previous record.
func TestVoteDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seq := rapid.Uint64Range(0, 1<<60).Draw(t, "seq")
		before, last := drawRecord(t, seq), drawRecord(t, seq+1)
		file := make([]byte, 2*slotSize)
		copy(file[seq%2*slotSize:], before.slot())
		copy(file[(seq+1)%2*slotSize:], last.slot())
		garbage := rapid.SliceOfN(rapid.Byte(), 1, 2*slotSize).Draw(t, "garbage")
		at := rapid.IntRange(0, len(file)-1).Draw(t, "at")
		copy(file[at:], garbage)
		got, err := readVote(file)
		if err == nil && (!got.same(last) || got.seq != last.seq) {
			t.Fatalf("got %+v, want %+v", got, last)
		}
		if err != nil && len(garbage) < copyOffset-512 {
			t.Fatalf("%d bytes at %d: %v", len(garbage), at, err)
		}
	})
}

func FuzzReadVote(f *testing.F) {
	f.Add(newVoteFile())
	f.Add(append(voteRecord{seq: 8}.slot(), voteRecord{seq: 7, hasVote: true, candidate: []byte("x")}.slot()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readVote(b)
		if err != nil {
			return
		}
		again, ok := readSlot(r.slot())
		if !ok || !again.same(r) || again.seq != r.seq {
			t.Fatalf("%+v reads back as %+v", r, again)
		}
	})
}

func TestVoteStore(t *testing.T) {
	v, path := newVote(t)
	term, voteTerm, cand := []byte(keyCurrentTerm), []byte(keyLastVoteTerm), []byte(keyLastVoteCand)
	for _, get := range []func() error{
		func() error { _, err := v.GetUint64(term); return err },
		func() error { _, err := v.GetUint64(voteTerm); return err },
		func() error { _, err := v.Get(cand); return err },
	} {
		if err := get(); err == nil || err.Error() != "not found" {
			t.Errorf("nothing recorded: %v", err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(v.SetUint64(term, 7))
	must(v.SetUint64(voteTerm, 7))
	if _, err := v.GetUint64(voteTerm); err == nil {
		t.Error("LastVoteTerm shows before LastVoteCand is recorded")
	}
	must(v.Set(cand, []byte("a:1")))
	must(v.SetUint64(voteTerm, 8)) // a vote that is never completed
	must(v.SetUint64(term, 9))

	again, err := openVote(path)
	must(err)
	defer func() { _ = again.close() }()
	want := voteRecord{hasTerm: true, currentTerm: 9, hasVote: true, voteTerm: 7, candidate: []byte("a:1")}
	if !again.durable.same(want) {
		t.Errorf("reopened: %+v, want %+v", again.durable, want)
	}

	seq := v.durable.seq
	must(v.SetUint64(term, 9))
	if v.durable.seq != seq {
		t.Error("an unchanged term is written again")
	}
	for what, err := range map[string]error{
		"unknown number": v.SetUint64([]byte("Other"), 1),
		"unknown bytes":  v.Set([]byte("Other"), nil),
		"long candidate": v.Set(cand, make([]byte, maxCandidate+1)),
	} {
		if err == nil || strings.Contains(err.Error(), "not found") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := v.Get([]byte("Other")); err == nil || err.Error() == "not found" {
		t.Errorf("unknown key: %v", err)
	}
}

// Term and vote are one record: after a cut at any byte, both are there or neither.
func TestVoteWithItsTerm(t *testing.T) {
	v, path := newVote(t)
	if err := v.SetUint64([]byte(keyCurrentTerm), 7); err != nil {
		t.Fatal(err)
	}
	seq, before := v.durable.seq, v.durable
	if err := v.RecordVote(8, 8, []byte("a:1")); err != nil {
		t.Fatal(err)
	}
	want := voteRecord{hasTerm: true, currentTerm: 8, hasVote: true, voteTerm: 8, candidate: []byte("a:1")}
	if v.durable.seq != seq+1 || !v.durable.same(want) {
		t.Errorf("%+v after record %d, want %+v", v.durable, seq, want)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	slot := file[(seq+1)%2*slotSize:][:slotSize]
	whole := append([]byte(nil), slot...)
	for n := range slotSize {
		clear(slot)
		copy(slot, whole[:n])
		got, err := readVote(file)
		if err == nil && !got.same(before) && !got.same(want) {
			t.Fatalf("cut after %d bytes: %+v", n, got)
		}
	}
	// The library records the same vote once more: nothing is written.
	if err := v.SetUint64([]byte(keyLastVoteTerm), 8); err != nil {
		t.Fatal(err)
	}
	if err := v.Set([]byte(keyLastVoteCand), []byte("a:1")); err != nil || v.durable.seq != seq+1 {
		t.Errorf("record %d, %v", v.durable.seq, err)
	}
	if err := v.RecordVote(9, 9, make([]byte, maxCandidate+1)); err == nil {
		t.Error("a candidate that does not fit was taken")
	}
}

func TestVoteSetNeedsTerm(t *testing.T) {
	v, _ := newVote(t)
	if err := v.Set([]byte(keyLastVoteCand), []byte("a:1")); err == nil {
		t.Error("a candidate without a term was recorded")
	}
}

// TestVoteBroken: after a failed write nothing more is recorded.
func TestVoteBroken(t *testing.T) {
	v, path := newVote(t)
	_ = v.file.Close()
	first := v.SetUint64([]byte(keyCurrentTerm), 3)
	if first == nil {
		t.Fatal("a write to a closed file succeeded")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	v.file = f
	if err := v.SetUint64([]byte(keyCurrentTerm), 3); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after a failed write: %v", err)
	}
	if _, err := v.GetUint64([]byte(keyCurrentTerm)); err == nil {
		t.Error("a term that was not recorded shows")
	}
}
