package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	server = "northstar-node"
	client = "northstarctl"
)

// checkOut sets r.source to a clone without tags. Go puts the nearest tag into a program, so a release that is built
// before its tag would differ from one that is built later, or in a shallow clone. A work tree with changes is built in
// its place. remove removes the clone.
func (r *release) checkOut(ctx context.Context) (remove func() error, err error) {
	if r.changed {
		r.source = r.root
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "northstar-release-")
	if err != nil {
		return nil, err
	}
	r.source = dir
	if _, err := r.output(ctx, "git", "clone", "--quiet", "--no-tags", r.root, dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return func() error { return os.RemoveAll(dir) }, nil
}

// programs builds the programs that a platform gets.
func (r *release) programs(ctx context.Context, system, arch string) ([]file, error) {
	names := []string{server, client}
	if system != "linux" {
		names = names[1:]
	}
	dir, err := os.MkdirTemp("", "northstar-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := r.compile(ctx, dir, system, arch, names); err != nil {
		return nil, err
	}
	var files []file
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o755, data})
	}
	return files, nil
}

// compile builds programs into dir. Nothing of this machine gets into them: neither paths nor settings from the
// environment.
func (r *release) compile(ctx context.Context, dir, system, arch string, names []string) error {
	ldflags := fmt.Sprintf("-s -w -X %s/node.Version=%s -X main.version=%s", r.module, r.version, r.version)
	args := []string{"build", "-trimpath", "-buildvcs=true", "-ldflags", ldflags, "-o", dir + string(filepath.Separator)}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.source
	cmd.Env = append(os.Environ(),
		"GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0",
		"GOFIPS140=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// guides are what the programs tell of themselves: shell completions and man pages.
func (r *release) guides(ctx context.Context) ([]file, error) {
	dir, err := os.MkdirTemp("", "northstar-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := r.compile(ctx, dir, runtime.GOOS, runtime.GOARCH, []string{server, client}); err != nil {
		return nil, err
	}
	ask := func(name string) func(...string) (string, error) {
		return func(args ...string) (string, error) {
			cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
			cmd.Env = []string{"COLUMNS=80"}
			out, err := cmd.Output()
			if err != nil {
				return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
			}
			return string(out), nil
		}
	}
	var files []file
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := ask(client)("completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, file{"completions/" + shell, 0o644, []byte(text)})
	}
	for name, section := range map[string]string{server: "8", client: "1"} {
		page, err := manPage(manual{name: name, section: section, version: r.version, date: r.time}, ask(name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{"man/" + name + "." + section, 0o644, page})
	}
	sortFiles(files)
	return files, nil
}
