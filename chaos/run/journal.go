package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// journal is a file with a line for each run of a test package that has ended. A later command continues after them, so
// that many runs can be made in pieces.
type journal struct {
	path string
	key  string // begins the lines of runs of the same sources in the same way
}

// ended is a line of a journal.
type ended struct {
	pkg, result string
	wall, cpu   time.Duration
	failed      string // tests, separated by commas
}

// revision names the sources in dir. Sources that differ from their commit have no name: runs of them do not count
// later.
func revision(ctx context.Context, dir string) string {
	git := func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	head := git("rev-parse", "--short=12", "HEAD")
	if head == "" || git("status", "--porcelain", "--untracked-files=no") != "" {
		return ""
	}
	return head
}

// read returns the runs with the journal's key. A journal without one has none.
func (j journal) read() (all []ended, err error) {
	if j.path == "" || j.key == "" {
		return nil, nil
	}
	file, err := os.Open(j.path)
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
		if len(f) != 7 || f[1] != j.key {
			continue
		}
		e := ended{pkg: f[2], result: f[3], failed: f[6]}
		e.wall, err = time.ParseDuration(f[4])
		if err == nil {
			e.cpu, err = time.ParseDuration(f[5])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", j.path, err)
		}
		all = append(all, e)
	}
	return all, lines.Err()
}

// write appends a run that ended at a time.
func (j journal) write(e ended, at time.Time) error {
	if j.path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(j.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(j.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	key := j.key
	if key == "" {
		key = "changed"
	}
	_, err = fmt.Fprintf(file, "%s\t%s\t%s\t%s\t%v\t%v\t%s\n", at.UTC().Format(time.RFC3339), key, e.pkg, e.result,
		e.wall.Round(time.Millisecond), e.cpu.Round(time.Millisecond), e.failed)
	return errors.Join(err, file.Close())
}
