package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/chaos/testenv"
)

// contents is the whole content of a data directory, as a node sees it.
type contents struct {
	entries   map[uint64]raft.Log
	term      uint64
	voteTerm  uint64
	candidate string
	snapshots []string // the combined content of the newest snapshot and the log
	identity  string
}

// readContents opens a copy of a data directory and reads all of it.
func readContents(path string) (c contents, err error) {
	d, err := Open(Options{Dir: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	c.entries = map[uint64]raft.Log{}
	first, _ := d.Log().FirstIndex()
	last, _ := d.Log().LastIndex()
	for i := first; i <= last && i > 0; i++ {
		var e raft.Log
		if err := d.Log().GetLog(i, &e); err != nil {
			return c, err
		}
		if err := verifyChecksum(i, &e); err != nil {
			return c, err
		}
		e.AppendedAt = instant(e.AppendedAt)
		c.entries[i] = e
	}
	if c.term, err = d.Stable().GetUint64([]byte(keyCurrentTerm)); err != nil {
		return c, err
	}
	if c.voteTerm, err = d.Stable().GetUint64([]byte(keyLastVoteTerm)); err != nil {
		return c, err
	}
	cand, err := d.Stable().Get([]byte(keyLastVoteCand))
	if err != nil {
		return c, err
	}
	c.candidate = string(cand)
	if c.snapshots, err = readSnapshots(d); err != nil {
		return c, err
	}
	identity, err := d.Load("identity.json")
	c.identity = string(identity)
	return c, err
}

// instant returns t as a point in time. The encoding of a time has bits, such as those of the zone, that do
// not change the point.
func instant(t time.Time) time.Time { return time.Unix(t.Unix(), int64(t.Nanosecond())).UTC() }

func readSnapshots(d *Dir) (all []string, err error) {
	metas, err := d.Snapshots().List()
	if err != nil {
		return nil, err
	}
	for _, m := range metas {
		m, r, err := d.Snapshots().Open(m.ID)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("%+v %x", *m, b))
	}
	return all, nil
}

// sampleDir makes a data directory with two snapshots, a compacted log that
// begins before the older snapshot, a rewritten suffix, a vote, an identity.
func sampleDir(t testing.TB) string {
	t.Helper()
	path := t.TempDir()
	g := guardDir(t, path)
	stable := g.Stable()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(stable.SetUint64([]byte(keyCurrentTerm), 4))
	check(stable.SetUint64([]byte(keyLastVoteTerm), 4))
	check(stable.Set([]byte(keyLastVoteCand), []byte("127.0.0.1:7700")))
	mustStore(t, g.Log(), entries(1, 30, 2, 100))
	makeSnapshot(t, g, 20, 2)
	mustStore(t, g.Log(), entries(31, 30, 2, 50))
	makeSnapshot(t, g, 40, 2)
	check(g.Log().DeleteRange(1, 15))
	check(g.Log().DeleteRange(51, 60))
	mustStore(t, g.Log(), entries(51, 9, 3, 300))
	mustStore(t, g.Log(), entries(60, 1, 3, 9000))
	for i := range uint64(5) {
		mustStore(t, g.Log(), entries(61+i, 1, 4, 20))
	}
	check(g.Save("identity.json", []byte(`{"node_id":"n1","cluster_id":"0123456789abcdef"}`)))
	check(g.Close())
	return path
}

func makeSnapshot(t testing.TB, g *Guarded, index, term uint64) {
	t.Helper()
	_, trans := raft.NewInmemTransport("127.0.0.1:7700")
	conf := raft.Configuration{Servers: []raft.Server{
		{ID: "n1", Address: "127.0.0.1:7700"},
		{ID: "n2", Address: "127.0.0.1:7702"},
	}}
	sink, err := g.Snapshots().Create(1, index, term, conf, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write(bytes.Repeat([]byte{byte(index)}, 3000)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// checkDamaged checks the outcome of a damage: Open returns an error, or nothing is lost. An older snapshot
// in place of the newer one is no loss if Open has found that the log begins before its end.
func checkDamaged(t *testing.T, what, path string, want contents) (failed bool) {
	t.Helper()
	got, err := readContents(path)
	if err != nil {
		if len(err.Error()) > 700 || bytes.Contains([]byte(err.Error()), []byte("goroutine")) {
			t.Errorf("%s: no clear error: %v", what, err)
		}
		return true
	}
	if len(got.snapshots) < len(want.snapshots) && reflect.DeepEqual(got.snapshots, want.snapshots[1:]) ||
		reflect.DeepEqual(got.snapshots, want.snapshots[:1]) {
		got.snapshots = want.snapshots
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: opened with other content: %+v", what, got)
	}
	return false
}

func TestDamagedFiles(t *testing.T) {
	sample := sampleDir(t)
	want, err := readContents(copyDir(t, sample))
	if err != nil {
		t.Fatalf("undamaged: %v", err)
	}
	if len(want.entries) != 50 || len(want.snapshots) != 2 {
		t.Fatalf("sample holds %d entries, %d snapshots", len(want.entries), len(want.snapshots))
	}
	err = filepath.WalkDir(sample, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == lockName {
			return err
		}
		rel, _ := filepath.Rel(sample, path)
		t.Run(rel, func(t *testing.T) { damageFile(t, sample, rel, want) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func damageFile(t *testing.T, sample, rel string, want contents) {
	sound, err := os.ReadFile(filepath.Join(sample, rel))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(rel))))
	flips, cuts := 30, 8
	if exhaustive() {
		flips, cuts = 1000, 100
	}
	errorsSeen := 0
	try := func(what string, content []byte) {
		dir := copyDir(t, sample)
		if content == nil {
			err = os.Remove(filepath.Join(dir, rel))
		} else {
			err = os.WriteFile(filepath.Join(dir, rel), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if checkDamaged(t, what, dir, want) {
			errorsSeen++
		}
		_ = os.RemoveAll(dir)
	}
	for range flips {
		b := bytes.Clone(sound)
		at := rng.IntN(len(b) * 8)
		b[at/8] ^= 1 << (at % 8)
		try(fmt.Sprintf("bit %d of byte %d flipped", at%8, at/8), b)
	}
	for i := range cuts {
		n := rng.IntN(len(sound))
		if i < 3 {
			n = []int{0, 1, len(sound) - 1}[i]
		}
		try(fmt.Sprintf("cut to %d bytes", n), bytes.Clone(sound[:n]))
	}
	for range cuts {
		b := bytes.Clone(sound)
		from := rng.IntN(len(b))
		clear(b[from:min(len(b), from+1+rng.IntN(4096))])
		try(fmt.Sprintf("zeroed from %d", from), b)
	}
	if rel != "identity.json" { // its absence is for the caller to handle
		try("removed", nil)
	}
	t.Logf("%d bytes; %d damages met an error", len(sound), errorsSeen)
}

// exhaustive reports whether the tests of damage try every case, which takes minutes. Otherwise they try
// samples, always the same ones.
func exhaustive() bool { return os.Getenv("NORTHSTAR_EXHAUSTIVE") != "" }

// TestEveryBitOfTheLog flips the bits of a log file and of its journal, one at a time. It compares the content that
// passes the checks with the sound content.
func TestEveryBitOfTheLog(t *testing.T) {
	path := t.TempDir()
	g := guardDir(t, path)
	mustStore(t, g.Log(), entries(1, 20, 1, 150))
	mustStore(t, g.Log(), entries(21, 20, 2, 150))
	if err := g.Log().DeleteRange(31, 40); err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(31, 3, 3, 150))
	mustStore(t, g.Log(), entries(34, 1, 3, 150))
	file, err := os.ReadFile(filepath.Join(path, logName))
	if err != nil {
		t.Fatal(err)
	}
	journal, err := os.ReadFile(filepath.Join(path, journalName))
	if err != nil {
		t.Fatal(err)
	}
	want, err := decodeFile(bytes.NewReader(file), journal)
	if err != nil || len(want) != 34 {
		t.Fatalf("%d entries, %v", len(want), err)
	}
	used := touched{r: bytes.NewReader(file), bytes: map[int]bool{}}
	if _, err := decodeFile(used, journal); err != nil {
		t.Fatal(err)
	}
	tried, passed := 0, 0
	flip := func(content []byte, bit int) {
		content[bit/8] ^= 1 << (bit % 8)
		got, err := decodeFile(bytes.NewReader(file), journal)
		content[bit/8] ^= 1 << (bit % 8)
		tried++
		if err == nil && len(got) > 0 && slices.Min(slices.Collect(maps.Keys(got))) > 1 {
			err = errors.New("the first entries are missing") // as checkContinuity finds
		}
		if err == nil {
			passed++
			if !reflect.DeepEqual(got, want) {
				t.Errorf("bit %d of byte %d of page %d: other content passes", bit%8, bit/8%4096, bit/8/4096)
			}
		}
	}
	step := 33 / testenv.Repeats(3)
	if exhaustive() {
		step = 1
	}
	for bit := 0; bit < len(file)*8; bit += step {
		if used.bytes[bit/8] {
			flip(file, bit)
		}
	}
	end := int(g.storage.(*Dir).log.journal.off) + sectorSize // with the sector behind the last record
	for bit := 0; bit < end*8; bit += step {
		flip(journal, bit)
	}
	t.Logf("%d of %d flips change nothing", passed, tried)
}

// touched records which bytes are read.
type touched struct {
	r     *bytes.Reader
	bytes map[int]bool
}

func (r touched) ReadAt(b []byte, off int64) (int, error) {
	for i := range b {
		r.bytes[int(off)+i] = true
	}
	return r.r.ReadAt(b, off)
}

func (r touched) Size() int64 { return r.r.Size() }

type sizedReader interface {
	io.ReaderAt
	Size() int64
}

// decodeFile reads all entries of a log file as Open and GetLog would.
func decodeFile(file sizedReader, journal []byte) (map[uint64]raft.Log, error) {
	all := map[uint64]raft.Log{}
	content, err := checkBolt(file, file.Size(), func(index uint64, value func() ([]byte, error)) error {
		b, err := value()
		if err != nil {
			return err
		}
		e, err := decodeEntry(b)
		if err == nil {
			err = verifyChecksum(index, &e)
		}
		e.AppendedAt = instant(e.AppendedAt)
		all[index] = e
		return err
	})
	if err != nil {
		return nil, err
	}
	tail, left, err := checkTail(content)
	maps.DeleteFunc(all, func(index uint64, _ raft.Log) bool { return !left.has(index) }) // an unfinished deletion
	if err != nil || !tail.journal {
		return all, err
	}
	journaled, err := decodeJournal(journal, tail.txid)
	for _, e := range journaled {
		if err := verifyChecksum(e.Index, &e); err != nil {
			return nil, err
		}
		e.AppendedAt = instant(e.AppendedAt)
		all[e.Index] = e
	}
	return all, err
}

// TestOlderMetaPage: Open detects that bbolt would fall back to its previous meta page, which undoes an
// acknowledged write.
func TestOlderMetaPage(t *testing.T) {
	sample := sampleDir(t)
	file, err := os.ReadFile(filepath.Join(sample, logName))
	if err != nil {
		t.Fatal(err)
	}
	newest, err := newestMeta(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	file[int(newest.txid%2)*4096+pageHeadSize+metaSize-8] ^= 1 // its checksum
	dir := copyDir(t, sample)
	if err := os.WriteFile(filepath.Join(dir, logName), file, 0o600); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); !errors.As(err, &damaged) {
		t.Fatalf("got %v", err)
	}
}

// FuzzCheckBolt checks that the log checker neither panics nor runs without end on any input.
func FuzzCheckBolt(f *testing.F) {
	file, err := os.ReadFile(filepath.Join(sampleDir(f), logName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file, uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, b []byte, at uint32, patch []byte) {
		b = bytes.Clone(b)
		if len(b) > 0 {
			copy(b[int(at)%len(b):], patch)
		}
		_, _ = decodeFile(bytes.NewReader(b), nil)
	})
}
