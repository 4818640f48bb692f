package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/sassoftware/go-rpmutils"
)

// TestDeb installs the package into an empty root directory with dpkg, whose scripts run, and starts the command line
// of its unit there as the user that it made.
func TestDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs dpkg, and root for a root directory")
	}
	root := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "tmp", "run"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"var/lib/dpkg/status", "etc/passwd", "etc/group"} {
		if err := os.WriteFile(filepath.Join(root, path), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	deb := asset(t, "-linux-"+runtime.GOARCH+".deb")
	command(t, "", "dpkg", "--root="+root, "--force-script-chrootless", "--force-architecture", "-i", deb)
	checkInstalled(t, root)
	uid, gid := owner(t, root)
	startUnit(t, root, uid, gid)

	// An upgrade leaves a changed configuration, removal leaves the data.
	config := filepath.Join(root, "etc/northstar/northstar.toml")
	if err := os.WriteFile(config, []byte("data-dir = \"/var/lib/northstar\"\nid = \"mine\"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	command(t, "", "dpkg", "--root="+root, "--force-script-chrootless", "--force-architecture", "-i", deb)
	if text, err := os.ReadFile(config); err != nil || !strings.Contains(string(text), "mine") {
		t.Errorf("the configuration was replaced: %v\n%s", err, text)
	}
	// A removed configuration does not come back, and the upgrade needs none.
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	command(t, "", "dpkg", "--root="+root, "--force-script-chrootless", "--force-architecture", "-i", deb)
	if _, err := os.Stat(config); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the removed configuration: %v", err)
	}
	command(t, "", "dpkg", "--root="+root, "--force-script-chrootless", "-r", "northstar")
	if _, err := os.Stat(filepath.Join(root, "usr/bin", server)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "var/lib/northstar")); err != nil || len(entries) == 0 {
		t.Errorf("the data went with the package: %v", err)
	}
}

// installedPaths are what every package installs.
var installedPaths = []string{
	"usr/bin/northstar-node", "usr/bin/northstarctl", "usr/lib/systemd/system/northstar.service",
	"usr/lib/sysusers.d/northstar.conf", "etc/northstar/northstar.toml", "usr/share/man/man1/northstarctl.1.gz",
	"usr/share/man/man8/northstar-node.8.gz", "usr/share/bash-completion/completions/northstarctl",
	"usr/share/fish/vendor_completions.d/northstarctl.fish", "usr/share/doc/northstar/LICENSE",
	"usr/share/doc/northstar/prometheus/prometheus.yml", "usr/share/doc/northstar/prometheus/alerts.yml",
	"usr/share/doc/northstar/prometheus/alertmanager.yml", "usr/share/doc/northstar/grafana/northstar.json",
}

func checkInstalled(t *testing.T, root string) {
	t.Helper()
	for _, path := range installedPaths {
		st, err := os.Stat(filepath.Join(root, path))
		if err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
	checkVersion(t, command(t, "", filepath.Join(root, "usr/bin", server), "version"), server)
}

// owner returns the user northstar of a root directory, who owns the group of the configuration.
func owner(t *testing.T, root string) (uid, gid int) {
	t.Helper()
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(line, ":")
		if fields[0] != "northstar" {
			continue
		}
		uid, err1 := strconv.Atoi(fields[2])
		gid, err2 := strconv.Atoi(fields[3])
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(root, "etc/northstar/northstar.toml"))
		if err != nil {
			t.Fatal(err)
		}
		if s := st.Sys().(*syscall.Stat_t); int(s.Gid) != gid || st.Mode().Perm() != 0o640 {
			t.Errorf("the configuration belongs to group %d, want %d; its mode is %v", s.Gid, gid, st.Mode())
		}
		return uid, gid
	}
	t.Fatalf("there is no user northstar:\n%s", passwd)
	return 0, 0
}

// startUnit runs the unit's ExecStart in a root directory until it reports READY=1, and stops it as systemd does.
func startUnit(t *testing.T, root string, uid, gid int) {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/northstar.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(unit), "\nExecStart=")
	line, _, _ = strings.Cut(line, "\n")
	data := filepath.Join(root, "var/lib/northstar") // what StateDirectory makes
	if err := errors.Join(os.MkdirAll(data, 0o700), os.Chown(data, uid, gid), os.Chmod(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	startNode(t, root, strings.Fields(line), nil, uid, gid)
}

// startNode runs a node's command line with root as its root directory until it is ready, and ends it by SIGTERM.
func startNode(t *testing.T, root string, argv, env []string, uid, gid int) {
	t.Helper()
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(root, "tmp/notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	if err := os.Chmod(filepath.Join(root, "tmp/notify"), 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	raft, http := freePort(t), freePort(t)
	cmd.Env = []string{
		"NOTIFY_SOCKET=/tmp/notify", "NORTHSTAR_ID=n1", "NORTHSTAR_HTTP_ADDR=" + http, "NORTHSTAR_RAFT_ADDR=" + raft,
		"NORTHSTAR_INITIAL_CLUSTER=n1=" + raft + "@" + http,
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
	}
	if err := ready.SetReadDeadline(time.Now().Add(50 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		ready.SetReadDeadline(time.Now()) // there is no more to read
	}()
	got := make([]byte, 4096)
	for {
		n, err := ready.Read(got)
		if err != nil {
			cancel()
			t.Fatalf("%s is not ready: %v, %v\n%s", argv[0], err, <-ended, log.String())
		}
		if slices.Contains(strings.Split(string(got[:n]), "\n"), "READY=1") {
			break
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
}

// freePort returns an address of the loopback interface without a listener.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestRPM reads the package's header and its files. Nothing is installed: rpm is not on every machine.
func TestRPM(t *testing.T) {
	f, err := os.Open(asset(t, "-linux-"+runtime.GOARCH+".rpm"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rpm, err := rpmutils.ReadRpm(f)
	if err != nil {
		t.Fatal(err)
	}
	nevra, err := rpm.Header.GetNEVRA()
	if err != nil || nevra.Name != "northstar" || nevra.Version != "0.1.0~rc.1" {
		t.Errorf("%v, error %v", nevra, err)
	}
	for tag, want := range map[int]string{
		rpmutils.POSTIN: "systemd-sysusers", rpmutils.PREUN: "systemctl disable --now", rpmutils.LICENSE: "MPL-2.0",
		rpmutils.BUILDHOST: "localhost",
	} {
		if text, err := rpm.Header.GetString(tag); err != nil || !strings.Contains(text, want) {
			t.Errorf("tag %d is %q, error %v; want %q", tag, text, err, want)
		}
	}
	root := t.TempDir()
	if err := rpm.ExpandPayload(root); err != nil {
		t.Fatal(err)
	}
	// The library unpacks files without their modes.
	files, err := rpm.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		want := 0o644
		switch {
		case strings.HasPrefix(f.Name(), "/usr/bin/"):
			want = 0o755
		case f.Name() == "/etc/northstar":
			want = 0o750
		case strings.HasPrefix(f.Name(), "/etc/"):
			want = 0o640
		}
		if got := f.Mode() & 0o777; got != want {
			t.Errorf("%s has the mode %o, want %o", f.Name(), got, want)
		}
		if err := os.Chmod(filepath.Join(root, f.Name()), os.FileMode(want)); err != nil {
			t.Fatal(err)
		}
	}
	checkInstalled(t, root)
	if _, err := os.Stat(filepath.Join(root, "usr/share/zsh/site-functions/_northstarctl")); err != nil {
		t.Error(err)
	}
}

// TestImage reads the image back, unpacks it and runs its entry point as its user.
func TestImage(t *testing.T) {
	tag, err := name.NewTag("northstar:" + testVersion)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(asset(t, "-image-linux-"+runtime.GOARCH+".tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Config.User != "65532:65532" || cfg.Architecture != runtime.GOARCH || cfg.OS != "linux" {
		t.Errorf("user %q, %s/%s", cfg.Config.User, cfg.OS, cfg.Architecture)
	}
	root := t.TempDir()
	unpack(t, mutate.Extract(img), root)
	entry := cfg.Config.Entrypoint[0]
	checkVersion(t, command(t, "", filepath.Join(root, entry), "version"), server)
	checkVersion(t, command(t, "", filepath.Join(root, filepath.Dir(entry), client), "version"), client)
	if os.Geteuid() != 0 {
		t.Skip("needs root for a root directory")
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	startNode(t, root, slices.Concat(cfg.Config.Entrypoint, cfg.Config.Cmd), cfg.Config.Env, imageUser,
		imageUser)
}

// TestImageIndex checks that the layout for registries has the same images as the archives for runtimes.
func TestImageIndex(t *testing.T) {
	f, err := os.Open(asset(t, "-image.oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	unpack(t, f, dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	outer, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(outer.Manifests) != 1 || outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != testVersion {
		t.Fatalf("the layout has not one image: %+v", outer.Manifests)
	}
	index, err = index.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) == 0 {
		t.Error("the image has no platform")
	}
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := tarball.ImageFromPath(asset(t, "-image-linux-"+m.Platform.Architecture+".tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := configOf(t, img), configOf(t, archive); a != b {
			t.Errorf("%s: configuration %v in the index, %v in the archive", m.Platform.Architecture, a, b)
		}
	}
}

func configOf(t *testing.T, img v1.Image) v1.Hash {
	t.Helper()
	hash, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}
