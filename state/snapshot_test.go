package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	s := richState(t)
	raw := snapshotOf(t, s)
	back := New(Options{})
	mustApply(t, back, put("old", "state")) // goes away
	restore(t, back, raw)
	if got := snapshotOf(t, back); !bytes.Equal(got, raw) {
		t.Fatal("the snapshot of what was restored differs")
	}
	a, b := s.View(), back.View()
	if a.Fingerprint() != b.Fingerprint() || a.version != b.version ||
		!reflect.DeepEqual(a.Members(), b.Members()) || !reflect.DeepEqual(a.Elections(), b.Elections()) {
		t.Fatal("restored state differs")
	}
	// A change that is the present state of its key shares memory with the key again.
	h := &b.history.changes
	it, _ := b.keys.get("e")
	if h.at(h.end-1).item != it {
		t.Error("the history has its own copy of the value")
	}
	restore(t, New(Options{}), snapshotOf(t, New(Options{})))
}

// Snapshots outlive the build: this build must read those of any earlier build.
func TestSnapshotGolden(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "snapshot_v1.bin")
	if *update {
		if err := os.WriteFile(path, snapshotOf(t, richState(t)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{})
	restore(t, s, golden)
	if s.View().Fingerprint() != richState(t).View().Fingerprint() {
		t.Error("the golden snapshot is read differently, or snapshots are written differently")
	}
}

// Reading any damaged snapshot fails and changes nothing.
func TestSnapshotDamage(t *testing.T) {
	t.Parallel()
	raw := snapshotOf(t, richState(t))
	s := New(Options{})
	mustApply(t, s, put("old", "state"))
	before := s.View()
	refuse := func(what string, b []byte) {
		t.Helper()
		if _, err := s.ReadFrom(bytes.NewReader(b)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := Inspect(bytes.NewReader(b)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s: Inspect returns %v", what, err)
		}
		if s.View() != before {
			t.Fatalf("%s: the state has changed", what)
		}
	}
	for i := range raw {
		refuse(fmt.Sprintf("cut after %d bytes", i), raw[:i])
		flipped := bytes.Clone(raw)
		flipped[i] ^= 1 << (i % 8)
		refuse(fmt.Sprintf("flipped bit in byte %d", i), flipped)
	}
	refuse("one byte more", append(bytes.Clone(raw), 0))
	refuse("twice", append(bytes.Clone(raw), raw...))
}

func TestSnapshotReadError(t *testing.T) {
	t.Parallel()
	raw := snapshotOf(t, richState(t))
	broken := errors.New("broken pipe")
	for _, n := range []int{0, 5, len(raw) / 2, len(raw)} {
		r := io.MultiReader(bytes.NewReader(raw[:n]), errReader{broken})
		if _, err := New(Options{}).ReadFrom(r); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestSnapshotWriteError(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for i := range 100 {
		mustApply(t, s, put(fmt.Sprint(i), strings.Repeat("x", 10_000)))
	}
	size := len(snapshotOf(t, s))
	for _, room := range []int{0, 11, size / 2, size - 1} {
		w := &fullWriter{room: room}
		if n, err := s.Snapshot().WriteTo(w); !errors.Is(err, errFull) || n > int64(room) {
			t.Errorf("room for %d: wrote %d, %v", room, n, err)
		}
	}
}

var errFull = errors.New("full")

type fullWriter struct{ room int }

func (w *fullWriter) Write(b []byte) (int, error) {
	if len(b) > w.room {
		return 0, errFull
	}
	w.room -= len(b)
	return len(b), nil
}

// reframe writes sections with correct checksums but any content.
func reframe(records map[section][]record) []byte {
	var b bytes.Buffer
	f := newFrameWriter(&b)
	for s := sectionMeta; ; s++ {
		for _, rec := range records[s] {
			f.record(s, rec)
		}
		if s == sectionEnd {
			f.flush()
			return b.Bytes()
		}
	}
}

// emptyRecord returns a snapshot with one record, without content, in a section.
func emptyRecord(s section) []byte {
	empty := rawRecord(func(*codec) {})
	return reframe(map[section][]record{sectionMeta: {empty}, s: {empty}, sectionEnd: {endRecord{}}})
}

// A checksum only proves that the bytes are those written. The content is checked too, because a snapshot may come
// from an untrusted source.
func TestSnapshotContentIsChecked(t *testing.T) {
	t.Parallel()
	end := []record{endRecord{}}
	head := func(v View, keys, bytes, changes uint64) []record {
		return []record{rawRecord(func(e *codec) {
			e.putNumber(4, v.revision)
			e.putNumber(9, uint64(v.version))
			e.putNumber(10, v.history.floor)
			e.putNumber(13, keys)
			e.putNumber(14, bytes)
			e.putNumber(15, changes)
		})}
	}
	key := func(k string, rev uint64) *Item {
		return &Item{Key: k, Revision: rev, CreateRevision: rev, Version: 1}
	}
	change := func(k string, rev uint64, current bool) record {
		return rawRecord(func(e *codec) {
			key(k, rev).fields(e)
			boolean(e, 17, &current)
		})
	}
	type sections = map[section][]record
	good := sections{
		1: head(View{revision: 9}, 2, 2, 1), 4: {key("a", 3), key("b", 4)}, 5: {change("b", 4, true)},
		255: end,
	}
	restore(t, New(Options{}), reframe(good))
	for s := sectionMeta + 1; s <= sectionLast; s++ {
		_, err := New(Options{}).ReadFrom(bytes.NewReader(emptyRecord(s)))
		if s != sectionElections && !errors.Is(err, ErrDamaged) { // an empty election does no harm
			t.Errorf("empty record in section %d: %v", s, err)
		}
	}
	for name, c := range map[string]sections{
		"no meta":              {255: end},
		"two metas":            {1: append(head(View{}, 0, 0, 0), head(View{}, 0, 0, 0)...), 255: end},
		"key without meta":     {4: {key("a", 1)}, 255: end},
		"revision too high":    {1: head(View{revision: 1 << 53}, 0, 0, 0), 255: end},
		"floor too high":       {1: head(View{revision: 1, history: historyAfter(2)}, 0, 0, 0), 255: end},
		"key missing":          {1: head(View{revision: 9}, 2, 1, 0), 4: {key("a", 3)}, 255: end},
		"keys out of order":    {1: head(View{revision: 9}, 2, 2, 0), 4: {key("b", 3), key("a", 4)}, 255: end},
		"key twice":            {1: head(View{revision: 9}, 2, 2, 0), 4: {key("a", 3), key("a", 4)}, 255: end},
		"key of no revision":   {1: head(View{revision: 9}, 1, 1, 0), 4: {key("a", 0)}, 255: end},
		"key of the future":    {1: head(View{revision: 9}, 1, 1, 0), 4: {key("a", 10)}, 255: end},
		"empty key":            {1: head(View{revision: 9}, 1, 0, 0), 4: {key("", 1)}, 255: end},
		"not UTF-8":            {1: head(View{revision: 9}, 1, 1, 0), 4: {key("\xff", 1)}, 255: end},
		"change of the future": {1: head(View{revision: 9}, 0, 0, 1), 5: {change("a", 10, false)}, 255: end},
		"change out of order": {
			1: head(View{revision: 9}, 0, 0, 2), 5: {change("a", 5, false), change("a", 5, false)},
			255: end,
		},
		"change before floor": {
			1: head(View{revision: 9, history: historyAfter(5)}, 0, 0, 1),
			5: {change("a", 5, false)}, 255: end,
		},
		"change of no key": {1: head(View{revision: 9}, 0, 0, 1), 5: {change("a", 5, true)}, 255: end},
		"change missing":   {1: head(View{revision: 9}, 0, 0, 1), 255: end},
		"unknown section":  {1: head(View{}, 0, 0, 0), 77: end, 255: end},
		"idem twice": {
			1: {rawRecord(func(e *codec) { e.putNumber(16, 2) })},
			6: {&idempotencyEntry{key: "k"}, &idempotencyEntry{key: "k"}}, 255: end,
		},
		"members out of order": {
			1: {rawRecord(func(e *codec) { e.putNumber(17, 2) })},
			2: {&memberRecord{ID: "b"}, &memberRecord{ID: "a"}}, 255: end,
		},
	} {
		if _, err := New(Options{}).ReadFrom(bytes.NewReader(reframe(c))); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var b bytes.Buffer
	empty := make([]byte, frameHeader)
	empty[0] = byte(sectionEnd)
	binary.LittleEndian.PutUint32(empty[5:], frameSum(newFrameWriter(&b).crc, empty))
	b.Write(empty)
	if _, err := New(Options{}).ReadFrom(&b); !errors.Is(err, ErrDamaged) {
		t.Errorf("only an empty frame: %v", err)
	}
	b.Reset()
	f := newFrameWriter(&b)
	for _, s := range []section{sectionMeta, sectionIdempotency, sectionMembers, sectionEnd} {
		f.record(s, rawRecord(func(e *codec) {
			if s == sectionMeta {
				e.putNumber(16, 1)
				e.putNumber(17, 1)
			}
		}))
	}
	f.flush()
	if _, err := New(Options{}).ReadFrom(&b); !errors.Is(err, ErrDamaged) {
		t.Errorf("sections out of order: %v", err)
	}
	newer := sections{1: head(View{version: CommandVersion + 1}, 0, 0, 0), 77: end, 255: end}
	var unknown *UnknownCommandError
	if _, err := New(Options{}).ReadFrom(bytes.NewReader(reframe(newer))); !errors.As(err, &unknown) ||
		unknown.Version != CommandVersion+1 {
		t.Errorf("newer: %v", err)
	}
}

// A frame is not valid in another snapshot or at another place.
func TestSnapshotFramesAreChained(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	for i := range 40 {
		mustApply(t, s, put(fmt.Sprintf("%03d", i), strings.Repeat("x", 10_000)))
	}
	raw := snapshotOf(t, s)
	head := len(snapshotMagic) + 4
	frames := [][]byte{}
	for rest := raw[head:]; len(rest) > 0; {
		n := frameHeader + int(uint32(rest[1])|uint32(rest[2])<<8|uint32(rest[3])<<16)
		frames = append(frames, rest[:n])
		rest = rest[n:]
	}
	if len(frames) < 6 {
		t.Fatalf("only %d frames", len(frames))
	}
	for i := 1; i+1 < len(frames); i++ {
		var dropped, swapped []byte
		for j := range frames {
			if j != i {
				dropped = append(dropped, frames[j]...)
			}
			k := j
			if j == i {
				k = i + 1
			} else if j == i+1 {
				k = i
			}
			swapped = append(swapped, frames[k]...)
		}
		for _, b := range [][]byte{dropped, swapped} {
			if _, err := New(Options{}).ReadFrom(bytes.NewReader(append(bytes.Clone(raw[:head]),
				b...))); !errors.Is(err,
				ErrDamaged) {
				t.Errorf("frame %d: %v", i, err)
			}
		}
	}
}

// Writing needs a buffer, not a copy of the state.
func TestSnapshotMemory(t *testing.T) {
	s := New(Options{})
	value := bytes.Repeat([]byte("x"), MaxValue)
	for i := range 64 {
		mustApply(t, s, Command{Kind: KindPut, Put: &Put{Key: fmt.Sprint(i), Value: value}})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n, err := s.Snapshot().WriteTo(io.Discard); err != nil || n < 64*MaxValue {
		t.Fatal(n, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*MaxValue {
		t.Errorf("%d bytes were allocated", took)
	}
}

// A frame of an excessive size is rejected before memory is allocated for it.
func TestSnapshotFrameIsBounded(t *testing.T) {
	raw := snapshotOf(t, richState(t))
	raw[len(snapshotMagic)+4+1+3] = 0x3f // the length's highest byte: 1 GB
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := New(Options{}).ReadFrom(bytes.NewReader(raw)); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8*MaxValue {
		t.Errorf("%d bytes were allocated", took)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	s := richState(t)
	raw := snapshotOf(t, s)
	info, err := Inspect(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	v := s.View()
	if info.ClusterID != "c-1" || info.Generation.RecoveryID != "r" || info.CommandVersion != 1 ||
		info.Revision != 15 || info.AppliedIndex != v.AppliedIndex() || info.AppliedTerm != 1 || info.Keys != 4 ||
		info.Bytes != v.bytes ||
		info.Changes != 7 || info.IdempotencyKeys != 2 || len(info.Members) != 2 || info.Size != int64(len(raw)) ||
		len(info.SHA256) != 64 {
		t.Fatalf("got %+v", info)
	}
}

// mergeBackup merges a backup on a node without a usable clock.
func mergeBackup(current *Snapshot, backup []byte) (*Snapshot, error) {
	return mergeBackupAt(time.Time{}, current, backup)
}

func mergeBackupAt(now time.Time, current *Snapshot, backup []byte) (*Snapshot, error) {
	b, err := ReadBackup(bytes.NewReader(backup))
	if err != nil {
		return nil, err
	}
	return MergeBackup(current, b, now)
}

func TestMergeBackup(t *testing.T) {
	t.Parallel()
	old := New(Options{})
	mustApply(t, old, Command{
		Kind:        KindClusterInit,
		ClusterInit: &ClusterInit{ClusterID: "old", Roster: map[cluster.NodeID]string{"x": "ix"}},
	})
	for range 50 {
		mustApply(t, old, put("kept", "from backup"))
	}
	mustApply(t, old, withIdempotency(put("other", ""), "old-idem", "f"),
		Command{Kind: KindSettings, Settings: &SettingsChange{PausedUntil: 7}})
	backup := snapshotOf(t, old)

	s := richState(t)
	upgraded(t, s)
	done := withIdempotency(put("e", ""), "e", "f")
	mustApply(t, s, done)
	watching, ahead := cursor(t, s, "", 0), cursor(t, s, "", 1<<50)
	merged, err := mergeBackup(s.Snapshot(), backup)
	if err != nil {
		t.Fatal(err)
	}
	before := s.View()
	var b bytes.Buffer
	if _, err := merged.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	restore(t, s, b.Bytes())

	v := s.View()
	if it, ok := v.Get("kept"); !ok || it.Revision != 50 || it.CreateRevision != 1 || it.Version != 50 ||
		v.keys.len() != 2 {
		t.Errorf("keys: %+v, %d", it, v.keys.len())
	}
	if v.ClusterID() != "c-1" || v.Generation() != before.Generation() ||
		!reflect.DeepEqual(v.Members(), before.Members()) || len(v.Elections()) != 1 ||
		v.AppliedIndex() != before.AppliedIndex() {
		t.Errorf("identity: %s, members %+v", v.ClusterID(), v.Members())
	}
	if v.Settings().PausedUntil != 7 || v.epoch != before.epoch+1 {
		t.Errorf("settings %+v, epoch %d", v.Settings(), v.epoch)
	}
	if v.Revision() <= 51 || v.Revision() <= before.Revision() || v.history.floor != v.Revision() {
		t.Errorf("revision %d, compacted %d", v.Revision(), v.history.floor)
	}
	if r := apply(s, done, withIdempotency(put("f", ""), "old-idem", "f")); r[0].Revision != before.Revision() ||
		r[1].Revision != v.Revision()+1 {
		t.Errorf("idempotency: %+v", r)
	}

	// Every watch ends, and none can be resumed from before.
	for _, c := range []*Cursor{watching, ahead} {
		_, err = c.Next(t.Context(), 1)
		wantCode(t, err, cluster.CodeHistoryCompacted)
	}
	_, err = s.Feed().Cursor("", before.Revision())
	wantCode(t, err, cluster.CodeHistoryCompacted)
	wantNext(t, cursor(t, s, "", v.Revision()), 1, fmt.Sprintf("%d:f", v.Revision()+1))

	if merged, err = mergeBackup(New(Options{}).Snapshot(), backup); err != nil ||
		merged.view.version != lockDelayVersion {
		t.Errorf("version %d, %v", merged.view.version, err)
	}
	highest := reframe(map[section][]record{
		1:   {rawRecord(func(e *codec) { e.putNumber(4, maxRevision-1) })},
		255: {endRecord{}},
	})
	restore(t, New(Options{}), highest)
	if _, err := mergeBackup(s.Snapshot(), highest); !errors.Is(err, ErrDamaged) {
		t.Errorf("a revision that is too high: %v", err)
	}
	for n := range backup {
		if _, err := mergeBackup(s.Snapshot(), backup[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
}

// FuzzReadSnapshot: garbage never panics and never changes the state. A snapshot that was read is written as a
// snapshot of the same state.
func FuzzReadSnapshot(f *testing.F) {
	raw := snapshotOf(f, richState(f))
	f.Add(raw)
	f.Add(snapshotOf(f, New(Options{})))
	f.Add(raw[:len(raw)/2])
	f.Add([]byte(snapshotMagic))
	for s := sectionMeta + 1; s <= sectionLast; s++ {
		f.Add(emptyRecord(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		// Half of the inputs get correct checksums.
		for _, b := range [][]byte{raw, rechecksum(raw)} {
			s := New(Options{})
			before := s.View()
			_, err := s.ReadFrom(bytes.NewReader(b))
			_, inspectErr := Inspect(bytes.NewReader(b))
			if err != nil {
				if s.View() != before {
					t.Fatal("a refused snapshot changed the state")
				}
				continue
			}
			if inspectErr != nil {
				t.Fatalf("readable, but Inspect returns %v", inspectErr)
			}
			again := New(Options{})
			restore(t, again, snapshotOf(t, s))
			if again.View().Fingerprint() != s.View().Fingerprint() {
				t.Fatal("changed by writing and reading")
			}
		}
	})
}

// rechecksum corrects the checksums of all frames.
func rechecksum(raw []byte) []byte {
	var b bytes.Buffer
	f := newFrameWriter(&b)
	for rest := raw[min(len(raw), len(snapshotMagic)+4):]; len(rest) >= frameHeader; {
		n := min(len(rest), frameHeader+int(uint32(rest[1])|uint32(rest[2])<<8|uint32(rest[3])<<16))
		f.section = section(rest[0])
		f.enc.buf = append(f.enc.buf, rest[frameHeader:n]...)
		f.flush()
		rest = rest[n:]
	}
	return b.Bytes()
}

// fullDisk accepts the first write only.
type fullDisk struct{ writes int }

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.writes++; d.writes > 1 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

// A write error stops the writer: it does not visit the rest of the state.
func TestWriteRecords_StopsAtWriteError(t *testing.T) {
	t.Parallel()
	f := newFrameWriter(&fullDisk{})
	visited := 0
	keys := func(yield func(*Item) bool) {
		for range 1000 {
			if visited++; !yield(&Item{Key: "k", Value: make([]byte, frameFull)}) {
				return
			}
		}
	}
	writeRecords(f, sectionKeys, keys)
	if f.err == nil || visited > 2 {
		t.Errorf("%d records visited, error %v", visited, f.err)
	}
	writeRecords(f, sectionRoles, mapped(keys, func(it *Item) *Role { return &Role{Name: it.Key} }))
	if visited > 3 {
		t.Errorf("%d records visited after the error", visited)
	}
}
