package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// holdDirEnv names the data directory that this test binary, started as
// another process, opens and holds.
const holdDirEnv = "NORTHSTAR_TEST_HOLD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdDirEnv); dir != "" {
		holdDir(dir)
		return
	}
	if dir := os.Getenv(writeDirEnv); dir != "" {
		writeDir(dir)
		return
	}
	os.Exit(m.Run())
}

func holdDir(dir string) {
	d, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
	if err != nil {
		_, _ = os.Stdout.WriteString(err.Error() + "\n")
		return
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = d.Close()
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holdDirEnv+"="+dir)
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = holder.Process.Kill(), holder.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	var locked *LockedError
	_, err = Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
	if !errors.As(err, &locked) || !strings.Contains(err.Error(), dir) ||
		!strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(in.Close(), holder.Wait()); err != nil {
		t.Fatal(err)
	}
	openDir(t, dir)
}

func TestOpenAgainAfterClose(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		d := openDir(t, dir)
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(dir)
	if err != nil || !st.IsDir() {
		t.Fatal(err)
	}
}

func TestOpenCreatesPrivateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "data")
	openDir(t, dir)
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// TestSnapshotsArePrivate: other users read no snapshot, also where they may read the data directory, or an earlier
// build has made the folder.
func TestSnapshotsArePrivate(t *testing.T) {
	for name, mode := range map[string]os.FileMode{"new": 0, "of an earlier build": 0o755} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, snapshotsName)
			if mode != 0 {
				if err := errors.Join(os.Mkdir(path, mode), os.Chmod(path, mode)); err != nil {
					t.Fatal(err)
				}
			}
			openDir(t, dir)
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) == 0 {
				t.Fatal(err)
			}
			for _, e := range entries {
				if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
				}
			}
		})
	}
}

// TestCannotOpen: the error for an unusable directory names it.
func TestCannotOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "sub"), "/proc/northstar"} {
		if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); err == nil ||
			!strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if os.Geteuid() == 0 {
		t.Log("running as root: a directory without write permission is not tried")
		return
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); err == nil ||
		!strings.Contains(err.Error(), "not writable") {
		t.Errorf("got %v", err)
	}
}

// TestSmallFileKeepsItsOwner: root changes the directory of another user's node, as northstar-node recover does. The
// node can still read it.
func TestSmallFileKeepsItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can own files of others")
	}
	const user, group = 12345, 23456
	path := filepath.Join(t.TempDir(), "identity.json")
	if err := saveFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, user, group); err != nil {
		t.Skipf("owners cannot be changed here: %v", err)
	}
	if err := saveFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Uid != user || st.Gid != group {
		t.Errorf("the owner is %d:%d, error %v; want %d:%d", st.Uid, st.Gid, err, user, group)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "new" {
		t.Errorf("%q, error %v", content, err)
	}
}

// TestCrashWhileCreating crashes at each step of the creation of a directory.
func TestCrashWhileCreating(t *testing.T) {
	for _, names := range [][]string{
		{},
		{logName + tempSuffix},
		{logName},
		{logName, voteName + tempSuffix},
		{logName, voteName},
	} {
		dir, full := t.TempDir(), t.TempDir()
		if err := openDir(t, full).Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(full, strings.TrimSuffix(name, tempSuffix)))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		mustStore(t, guardDir(t, dir).Log(), entries(1, 1, 1, 10))
	}
}

// TestUnfinishedSnapshots: the next opening removes snapshots that were never completed.
func TestUnfinishedSnapshots(t *testing.T) {
	dir := t.TempDir()
	g := guardDir(t, dir)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(1, 30, 1, 10))
	makeSnapshot(t, g, 10, 1)
	makeSnapshot(t, g, 20, 1)
	if _, err := g.Snapshots().Create(1, 30, 1, raft.Configuration{}, 1, nil); err != nil {
		t.Fatal(err)
	}
	sums, err := filepath.Glob(filepath.Join(dir, snapshotsName, "1-20-*", snapshotSum))
	if err != nil || len(sums) != 1 {
		t.Fatal(sums, err)
	}
	if err := errors.Join(os.Remove(sums[0]), g.Close()); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, dir)
	metas, err := d.Snapshots().List()
	if err != nil || len(metas) != 1 || metas[0].Index != 10 {
		t.Errorf("%+v, %v", metas, err)
	}
	left, err := os.ReadDir(filepath.Join(dir, snapshotsName))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestSnapshotSink: a snapshot exists after its Close, and neither before nor after Cancel. Old snapshots are
// removed.
func TestSnapshotSink(t *testing.T) {
	d := openDir(t, t.TempDir())
	_, trans := raft.NewInmemTransport("a:1")
	listed := func(want ...uint64) {
		t.Helper()
		metas, err := d.Snapshots().List()
		got := []uint64{}
		for _, m := range metas {
			got = append(got, m.Index)
		}
		if err != nil || len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
			t.Fatalf("listed %v, %v; want %v", got, err, want)
		}
	}
	const last = RetainSnapshots + 1
	for i := uint64(1); i <= last+1; i++ {
		sink, err := d.Snapshots().Create(1, i, 1, raft.Configuration{}, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		if i > last {
			if err := errors.Join(sink.Cancel(), sink.Close(), sink.Cancel()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if m, r, err := d.Snapshots().Open(sink.ID()); err == nil {
			t.Fatalf("an open snapshot exists: %+v %v", m, r)
		}
		if err := errors.Join(sink.Close(), sink.Cancel(), sink.Close()); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			listed(1)
		}
	}
	listed(5, 4, 3, 2)
	if _, _, err := d.Snapshots().Open("../snapshots"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name with a path: %v", err)
	}
}

// TestDamagedSnapshotNeedsLog: an older snapshot replaces a damaged one only if the log begins early enough.
func TestDamagedSnapshotNeedsLog(t *testing.T) {
	for name, test := range map[string]struct {
		compactTo uint64
		damage    []string // indexes of snapshots
		ok        bool
		first     uint64 // of the remaining snapshots
	}{
		"older one and log":   {15, []string{"40"}, true, 20},
		"log begins too late": {25, []string{"40"}, false, 0},
		"older one damaged":   {35, []string{"20"}, true, 40},
		"both, compacted":     {10, []string{"20", "40"}, false, 0},
		"both, whole log":     {0, []string{"20", "40"}, true, 0},
		"ahead of the log":    {15, []string{"60"}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g := guardDir(t, dir)
			if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
				t.Fatal(err)
			}
			mustStore(t, g.Log(), entries(1, 50, 1, 10))
			makeSnapshot(t, g, 20, 1)
			makeSnapshot(t, g, 40, 1)
			if test.damage[0] == "60" { // as a leader's snapshot is installed
				makeSnapshot(t, g, 60, 1)
			}
			mustDelete(t, g.Log(), 1, test.compactTo)
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			for _, index := range test.damage {
				states, err := filepath.Glob(filepath.Join(dir, snapshotsName, "1-"+index+"-*", snapshotState))
				if err != nil || len(states) != 1 {
					t.Fatal(states, err)
				}
				flipByte(t, states[0], 100)
			}
			d, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
			if !test.ok {
				var damaged *DamagedError
				if !errors.As(err, &damaged) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.Close() }()
			metas, err := d.Snapshots().List()
			if err != nil || (len(metas) > 0) != (test.first > 0) || len(metas) > 0 && metas[0].Index != test.first {
				t.Errorf("%+v, %v", metas, err)
			}
		})
	}
}

// TestDamagedSnapshotsAreFew: a disk that damages one snapshot after another is not filled by what was set aside.
func TestDamagedSnapshotsAreFew(t *testing.T) {
	dir := t.TempDir()
	g := guardDir(t, dir)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(1, 50, 1, 10))
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	for index := uint64(10); index <= 40; index += 10 {
		g := guardDir(t, dir)
		makeSnapshot(t, g, index, 1)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		states, err := filepath.Glob(filepath.Join(dir, snapshotsName, "1-*", snapshotState))
		if err != nil || len(states) != 1 {
			t.Fatal(states, err)
		}
		flipByte(t, states[0], 100)
		d, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		newest, err := filepath.Glob(filepath.Join(dir, damagedName, fmt.Sprintf("1-%d-*", index)))
		if err != nil || len(newest) != 1 {
			t.Errorf("the snapshot was not set aside: %v, %v", newest, err)
		}
	}
	kept, err := os.ReadDir(filepath.Join(dir, damagedName))
	if err != nil || len(kept) != maxArchives {
		t.Errorf("%d damaged snapshots are kept, %v", len(kept), err)
	}
}

func flipByte(t *testing.T, path string, at int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMissingFile: Open does not recreate a file that a directory once had.
func TestMissingFile(t *testing.T) {
	for _, name := range []string{logName, voteName} {
		dir := t.TempDir()
		g := guardDir(t, dir)
		mustStore(t, g.Log(), entries(1, 1, 1, 10))
		if err := errors.Join(g.Stable().SetUint64([]byte(keyCurrentTerm), 1), g.Close(),
			os.Remove(filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
		var damaged *DamagedError
		if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); !errors.As(err, &damaged) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestVoteBehindLog: a vote file that is older than the log is rejected.
func TestVoteBehindLog(t *testing.T) {
	dir := t.TempDir()
	g := guardDir(t, dir)
	mustStore(t, g.Log(), entries(1, 1, 5, 10))
	if err := errors.Join(g.Stable().SetUint64([]byte(keyCurrentTerm), 4), g.Close()); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); !errors.As(err, &damaged) {
		t.Errorf("got %v", err)
	}
}

func TestSmallFiles(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	if _, err := d.Load("identity.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, content := range []string{"first", "", "line\nline\n"} {
		if err := d.Save("identity.json", []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Load("identity.json"); err != nil || string(got) != content {
			t.Errorf("%q, %v; want %q", got, err, content)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", logName, voteName, lockName, "x.tmp", ".hidden"} {
		if d.Save(name, nil) == nil {
			t.Errorf("%q was saved", name)
		}
		if _, err := d.Load(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("load %q: %v", name, err)
		}
	}
	if err := d.Save("large", make([]byte, maxSmallFile)); err == nil {
		t.Error("a file too large to load was saved")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"+tempSuffix))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
