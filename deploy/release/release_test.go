package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const testVersion = "v0.1.0-rc.1"

// builds are directories with releases of the same commit, which TestMain removes.
var builds string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "northstar-release-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	builds = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// host is the platform of this machine, with Linux's programs.
var host = "linux/" + runtime.GOARCH

// released builds a release of this work tree once and returns its directory: for this machine, or for all platforms
// when NORTHSTAR_RELEASE is "full".
var released = sync.OnceValues(func() (string, error) {
	args := []string{"-version", testVersion, "-out", filepath.Join(builds, "first"), "-allow-changes"}
	if !fullRelease() {
		args = append(args, "-platforms", host)
	}
	return filepath.Join(builds, "first"), run(context.Background(), args)
})

func fullRelease() bool { return os.Getenv("NORTHSTAR_RELEASE") == "full" }

func firstRelease(t *testing.T) string {
	t.Helper()
	dir, err := released()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func asset(t *testing.T, suffix string) string {
	t.Helper()
	return filepath.Join(firstRelease(t), "northstar-"+testVersion+suffix)
}

// TestReproducible builds the same commit in two clones with other paths, the second with a tag and, when the whole
// release is tested, with an empty build cache.
func TestReproducible(t *testing.T) {
	var sums []string
	from := "../.." // whose commit may change meanwhile
	for i, name := range []string{"a", "another/clone"} {
		clone := filepath.Join(t.TempDir(), name)
		command(t, "", "git", "clone", "-q", from, clone)
		if i == 1 {
			command(t, clone, "git", "tag", testVersion)
		}
		from = clone
		args := []string{"-version", testVersion, "-root", clone, "-out", filepath.Join(t.TempDir(), "out")}
		if fullRelease() {
			if i == 1 {
				t.Setenv("GOCACHE", t.TempDir())
			}
		} else {
			args = append(args, "-platforms", host)
		}
		if err := run(t.Context(), args); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(args[5], "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(text))
	}
	if sums[0] != sums[1] {
		t.Errorf("two builds differ:\n%s\n%s", sums[0], sums[1])
	}
	if n := strings.Count(sums[0], "\n"); n < 6 {
		t.Errorf("only %d files:\n%s", n, sums[0])
	}
}

func TestChangedTreeIsRefused(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "clone")
	command(t, "", "git", "clone", "-q", "../..", clone)
	if err := os.WriteFile(filepath.Join(clone, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"-version", testVersion, "-root", clone, "-out", t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "the work tree has changes") {
		t.Errorf("error %v", err)
	}
	for _, version := range []string{"", "1.0.0", "v1", "v1.0.0+x", "v1.0.0 "} {
		if _, err := newRelease(t.Context(), clone, t.TempDir(), version); err == nil {
			t.Errorf("version %q is taken", version)
		}
	}
}

func TestChecksums(t *testing.T) {
	dir := firstRelease(t)
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{"SHA256SUMS": true}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s has another checksum", name)
		}
		listed[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !listed[e.Name()] {
			t.Errorf("%s has no checksum", e.Name())
		}
	}
}

// TestArchive unpacks the archive and asks its programs for their versions.
func TestArchive(t *testing.T) {
	suffix := "-linux-" + runtime.GOARCH
	f, err := os.Open(asset(t, suffix+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unpack(t, z, dir)
	top := filepath.Join(dir, "northstar-"+testVersion+suffix)
	for _, path := range []string{
		"LICENSE", "README.md", "northstar.toml", "northstar.service", "prometheus/alerts.yml", "grafana/northstar.json",
		"prometheus/prometheus.yml", "prometheus/alertmanager.yml",
		"completions/bash", "completions/zsh", "completions/fish", "man/northstarctl.1", "man/northstar-node.8",
	} {
		if st, err := os.Stat(filepath.Join(top, path)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
	checkVersion(t, command(t, "", filepath.Join(top, server), "version"), server)
	checkVersion(t, command(t, "", filepath.Join(top, client), "version"), client)
}

// checkVersion checks that a program tells the version, its commit with its date, and the Go that built it.
func checkVersion(t *testing.T, out, name string) {
	t.Helper()
	commit, date, _ := strings.Cut(strings.TrimSpace(command(t, "", "git", "log", "-1", "--format=%H %ct")), " ")
	seconds, err := strconv.ParseInt(date, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		name + " " + testVersion + "\n", "commit " + commit,
		"date " + time.Unix(seconds, 0).UTC().Format(time.RFC3339) + "\n", runtime.Version(),
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s version has no %q:\n%s", name, want, out)
		}
	}
}

// TestManPages checks that both pages name every command, and that troff has nothing to say of them.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Open(asset(t, "-linux-"+runtime.GOARCH+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	unpack(t, z, dir)
	top := filepath.Join(dir, "northstar-"+testVersion+"-linux-"+runtime.GOARCH)
	for page, wants := range map[string][]string{
		"man/northstarctl.1": {".SS kv put", ".SS members add", ".B \\-\\-if\\-absent", "Only if the key does not exist."},
		"man/northstar-node.8": {
			".SS run", ".SS check\\-config", ".B \\-\\-data\\-dir", "SIGTERM",
		},
	} {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s has no %q", page, want)
			}
		}
		if _, err := exec.LookPath("groff"); err != nil {
			continue
		}
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", filepath.Join(top, page))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("groff: %v\n%.2000s", err, out)
		}
	}
}

func TestSBOM(t *testing.T) {
	text, err := os.ReadFile(asset(t, ".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"bomFormat": "CycloneDX"`, `"pkg:golang/github.com/hashicorp/raft@v1.`, `"pkg:golang/std@1.`,
		`"alg": "SHA-256"`, testVersion,
	} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the SBOM has no %s", want)
		}
	}
}

// TestChart checks that the chart has the release's version, and all of its files.
func TestChart(t *testing.T) {
	dir := t.TempDir()
	command(t, dir, "tar", "-xzf", asset(t, "-chart.tgz"))
	text, err := os.ReadFile(filepath.Join(dir, "northstar/Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nversion: 0.1.0-rc.1\n", "\nappVersion: v0.1.0-rc.1\n", "\napiVersion: v2\n"} {
		if !strings.Contains("\n"+string(text), want) {
			t.Errorf("Chart.yaml has no line %q:\n%s", want, text)
		}
	}
	want := command(t, "../helm/northstar", "find", ".", "-type", "f")
	got := command(t, filepath.Join(dir, "northstar"), "find", ".", "-type", "f")
	if len(strings.Fields(got)) != len(strings.Fields(want)) || !strings.Contains(got, "templates/statefulset.yaml") {
		t.Errorf("the files are\n%swant\n%s", got, want)
	}
}

// unpack unpacks a tar into dir.
func unpack(t *testing.T, r io.Reader, dir string) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 && h.Uid != imageUser {
			t.Errorf("%s belongs to %d", h.Name, h.Uid)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, h.FileInfo().Mode()); err != nil {
				t.Fatal(err)
			}
		} else {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, h.FileInfo().Mode()); err != nil {
				t.Fatal(err)
			}
		}
		if os.Geteuid() == 0 {
			if err := os.Lchown(path, h.Uid, h.Gid); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// command runs a command to its end and returns what it wrote.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
