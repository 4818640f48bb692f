package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// fillDir makes a directory with entries, a vote, a snapshot and a small file.
func fillDir(t *testing.T, dir string) {
	t.Helper()
	d, err := Open(Options{Dir: dir, Reserve: 1 << 20, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	g, _ := guardOver(d)
	conf := raft.Configuration{Servers: []raft.Server{
		{ID: "n1", Address: "a:1"},
		{ID: "n2", Address: "b:1", Suffrage: raft.Nonvoter},
	}}
	mustStore(t, g.Log(), append(entries(1, 20, 3, 10), &raft.Log{
		Index: 21, Term: 3, Type: raft.LogConfiguration,
		Data: raft.EncodeConfiguration(conf),
	}))
	err = errors.Join(
		g.Stable().SetUint64([]byte(keyCurrentTerm), 5), g.Stable().SetUint64([]byte(keyLastVoteTerm),
			4), g.Stable().Set([]byte(keyLastVoteCand), []byte("b:1")),
		writeSnapshot(g, 10), g.Save("identity.json", []byte("old")),
	)
	if err = errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
}

// filesOf returns the content of every file under dir, by name.
func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// After an interruption at any step, the next opening finishes. None of the old data is left in its place,
// none of it is lost, and the new file exists.
func TestSetAside(t *testing.T) {
	move := func(t *testing.T, dir string, names ...string) {
		t.Helper()
		to := filepath.Join(dir, asideName, "gen-1")
		if err := os.MkdirAll(to, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(to, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := []string{logName, journalName, voteName, snapshotsName, "identity.json"}
	tests := map[string]func(t *testing.T, dir string){
		"announced":      func(*testing.T, string) {},
		"one file moved": func(t *testing.T, dir string) { move(t, dir, logName) },
		"identity moved": func(t *testing.T, dir string) { move(t, dir, "identity.json", voteName) },
		"all moved":      func(t *testing.T, dir string) { move(t, dir, all...) },
		"new file half written": func(t *testing.T, dir string) {
			move(t, dir, all...)
			write(t, dir, "identity.json.tmp",
				"half")
		},
		"new file written": func(t *testing.T, dir string) {
			move(t, dir, all...)
			if err := saveChecksummed(dir, "identity.json", []byte("new")); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, crash := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fillDir(t, dir)
			old := filesOf(t, dir)
			d := openDir(t, dir)
			err := errors.Join(d.SetAside("gen-1", "identity.json", []byte("new")), d.Close())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{logName, journalName} { // an opening writes to them
				if old[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			crash(t, dir)
			for range 2 {
				d = openDir(t, dir)
				if last, _ := d.Log().LastIndex(); last != 0 {
					t.Errorf("the new log ends at %d", last)
				}
				if list, _ := d.Snapshots().List(); len(list) != 0 {
					t.Errorf("%d snapshots", len(list))
				}
				if term, err := d.Stable().GetUint64([]byte(keyCurrentTerm)); err == nil {
					t.Errorf("the new vote file is of term %d", term)
				}
				if b, err := d.Load("identity.json"); err != nil || string(b) != "new" {
					t.Errorf("identity %q, %v", b, err)
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			kept := filesOf(t, filepath.Join(dir, asideName, "gen-1"))
			for name, content := range old {
				if isInfrastructure(name) {
					continue
				}
				if !bytes.Equal(kept[name], content) {
					t.Errorf("%s is not kept as it was", name)
				}
			}
		})
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// At most two archives are kept, the newest.
func TestSetAsideIsBounded(t *testing.T) {
	dir := t.TempDir()
	fillDir(t, dir)
	for i := range 4 {
		d := openDir(t, dir)
		if err := errors.Join(d.SetAside(fmt.Sprintf("gen-%d", i), "identity.json", fmt.Append(nil, i)),
			d.Close()); err != nil {
			t.Fatal(err)
		}
		if err := openDir(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1_700_000_000+int64(i), 0)
		if err := os.Chtimes(filepath.Join(dir, asideName, fmt.Sprintf("gen-%d", i)), at, at); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadDir(filepath.Join(dir, asideName))
	if err != nil || len(kept) != 2 || kept[0].Name() != "gen-2" || kept[1].Name() != "gen-3" {
		t.Errorf("%v, %v", kept, err)
	}
}

func TestSetAsideRefusesNames(t *testing.T) {
	d := openDir(t, t.TempDir())
	for _, name := range []string{"", "..", "a/b", ".hidden", logName, pendingResetName} {
		if d.SetAside(name, "identity.json", nil) == nil || d.SetAside("gen", name, nil) == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	fillDir(t, dir)
	before := filesOf(t, dir)
	l, err := Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	if l.CurrentTerm != 5 || l.VotedTerm != 4 || l.VotedFor != "b:1" || l.SnapshotIndex != 10 || l.SnapshotTerm != 3 ||
		l.LastIndex != 21 || l.LastTerm != 3 {
		t.Errorf("%+v", l)
	}
	if len(l.Configuration.Servers) != 2 || l.Configuration.Servers[1].ID != "n2" {
		t.Errorf("%+v", l.Configuration)
	}
	if b, err := l.Load("identity.json"); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
	var locked *LockedError
	if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); !errors.As(err, &locked) {
		t.Errorf("opened while it is looked at: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range filesOf(t, dir) {
		if !bytes.Equal(before[name], content) {
			t.Errorf("%s has changed", name)
		}
		delete(before, name)
	}
	if len(before) > 0 {
		t.Errorf("files are gone: %v", before)
	}
	d := openDir(t, dir)
	if _, err := Inspect(dir); !errors.As(err, &locked) {
		t.Errorf("looked at while it is open: %v", err)
	}
	if err := errors.Join(d.SetAside("gen", "identity.json", nil), d.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); err == nil {
		t.Error("a directory that is to be set aside was shown")
	}
	empty := t.TempDir()
	if _, err := Inspect(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
	if files := filesOf(t, empty); len(files) != 0 {
		t.Errorf("an empty directory has now %d files", len(files))
	}
}
