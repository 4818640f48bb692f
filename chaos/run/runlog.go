package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// runLog is a file with a line for each run of a test package that has ended. A later command continues after them, so
// that many runs can be made in pieces.
type runLog struct{ path string }

// ended is a line of a run log.
type ended struct {
	pkg, result string
	key         string // of the sources, and the flags that change what a run is; empty: the sources have no name
	wall, cpu   time.Duration
	failed      string // tests, separated by commas
}

// committed is a file of a commit.
type committed struct{ path, object string }

// committedFiles returns the files of the commit in dir, and nil when files differ from it. Runs of such sources do not
// count later.
func committedFiles(ctx context.Context, dir string) (all []committed) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		return string(out), err
	}
	if changed, err := git("status", "--porcelain", "--untracked-files=no"); err != nil || changed != "" {
		return nil
	}
	list, err := git("ls-tree", "-r", "-z", "--format=%(objectname) %(path)", "HEAD")
	if err != nil {
		return nil
	}
	for entry := range strings.SplitSeq(list, "\x00") {
		if object, path, ok := strings.Cut(entry, " "); ok {
			all = append(all, committed{path, object})
		}
	}
	return all
}

// sourcesKey names the files that a run of the tests in a directory of the module depends on. Those are all files, but
// for tests and papers in other directories. It returns "" without any files.
func sourcesKey(all []committed, dir string) string {
	if len(all) == 0 {
		return ""
	}
	hash := sha256.New()
	for _, f := range all {
		elsewhere := path.Dir(f.path) != dir
		if elsewhere && (strings.HasSuffix(f.path, "_test.go") || strings.HasSuffix(f.path, ".md")) {
			continue
		}
		_, _ = fmt.Fprintf(hash, "%s %s\x00", f.object, f.path)
	}
	return hex.EncodeToString(hash.Sum(nil)[:6])
}

// read returns the runs of sources with a name.
func (r runLog) read() (all []ended, err error) {
	if r.path == "" {
		return nil, nil
	}
	file, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f := strings.Split(lines.Text(), "\t")
		if len(f) != 7 || f[1] == "changed" {
			continue
		}
		e := ended{key: f[1], pkg: f[2], result: f[3], failed: f[6]}
		e.wall, err = time.ParseDuration(f[4])
		if err == nil {
			e.cpu, err = time.ParseDuration(f[5])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.path, err)
		}
		all = append(all, e)
	}
	return all, lines.Err()
}

// write appends a run that ended at a time.
func (r runLog) write(e ended, at time.Time) error {
	if r.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	key := cmp.Or(e.key, "changed")
	_, err = fmt.Fprintf(file, "%s\t%s\t%s\t%s\t%v\t%v\t%s\n", at.UTC().Format(time.RFC3339), key, e.pkg, e.result,
		e.wall.Round(time.Millisecond), e.cpu.Round(time.Millisecond), e.failed)
	return errors.Join(err, file.Close())
}
