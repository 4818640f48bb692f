// Command release builds what users install: archives, deb and rpm packages, a container image, an SBOM and checksums.
// The same commit, version and Go toolchain give the same bytes.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	version := flags.String("version", "", "`version` of the release, such as v0.1.0")
	root := flags.String("root", "../..", "the repository")
	out := flags.String("out", "../../out/release", "where the files go; what is there is removed")
	platforms := flags.String("platforms", strings.Join(allPlatforms, ","), "what to build for")
	changes := flags.Bool("allow-changes", false, "build although the work tree has changes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r, err := newRelease(ctx, *root, *out, *version)
	if err != nil {
		return err
	}
	if r.changed && !*changes {
		return errors.New("the work tree has changes: commit them, since a release names its commit")
	}
	return r.build(ctx, strings.Split(*platforms, ","))
}

// allPlatforms are the platforms of a release. Those of Linux get both programs, the others the client.
var allPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// release is one release being built.
type release struct {
	root, out string
	source    string    // where the programs are built
	version   string    // with its v
	module    string    // path of the main module
	commit    string    // full hash
	changed   bool      // whether the work tree differs from the commit
	time      time.Time // of the commit: every file in the release has it
}

// versions are those that Go modules, Debian and RPM all sort alike. A hyphen begins a pre-release.
var versions = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$`)

func newRelease(ctx context.Context, root, out, version string) (*release, error) {
	if !versions.MatchString(version) {
		return nil, fmt.Errorf("version must be of the form v1.2.3 or v1.2.3-rc.1 (got %q)", version)
	}
	r := &release{version: version}
	var err error
	if r.root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	if r.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if r.module, err = r.output(ctx, "go", "list", "-m"); err != nil {
		return nil, err
	}
	line, err := r.output(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return nil, err
	}
	commit, seconds, _ := strings.Cut(line, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, err
	}
	r.commit, r.time = commit, time.Unix(unix, 0).UTC()
	status, err := r.output(ctx, "git", "status", "--porcelain")
	r.changed = status != ""
	return r, err
}

// output runs a command in the repository and returns its standard output without the space around it.
func (r *release) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// build builds the release for the platforms into r.out.
func (r *release) build(ctx context.Context, platforms []string) (err error) {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	remove, err := r.checkOut(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	guides, err := r.guides(ctx)
	if err != nil {
		return err
	}
	var images []platformImage
	var modules sbom
	for _, platform := range platforms {
		system, arch, ok := strings.Cut(platform, "/")
		if !ok || !slices.Contains(allPlatforms, platform) {
			return fmt.Errorf("platform must be one of %s (got %q)", strings.Join(allPlatforms, ", "), platform)
		}
		fmt.Println("building for", platform)
		programs, err := r.programs(ctx, system, arch)
		if err != nil {
			return err
		}
		if err := modules.add(programs); err != nil {
			return err
		}
		if err := r.archive(system, arch, programs, guides); err != nil {
			return err
		}
		if system != "linux" {
			continue
		}
		if err := r.packages(arch, programs, guides); err != nil {
			return err
		}
		img, err := r.image(arch, programs)
		if err != nil {
			return err
		}
		images = append(images, platformImage{arch, img})
	}
	if err := r.writeImages(images); err != nil {
		return err
	}
	if err := r.chart(); err != nil {
		return err
	}
	if err := r.writeSBOM(modules); err != nil {
		return err
	}
	return r.checksums()
}

// name returns the name of a file of the release. It has no underscore before the version, unlike Debian's own names,
// so that all files of one release have one form.
func (r *release) name(suffix string) string { return "northstar-" + r.version + suffix }

// path returns where a file of the release goes.
func (r *release) path(suffix string) string { return filepath.Join(r.out, r.name(suffix)) }

// checksums writes SHA256SUMS, in the form that sha256sum --check reads.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// file is a file or, with a mode that says so, a directory of an archive, a package or an image.
type file struct {
	path string // relative to where it is unpacked, with slashes
	mode os.FileMode
	data []byte
}

// sortFiles sorts files by path, so that a directory comes before its contents.
func sortFiles(files []file) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
}
