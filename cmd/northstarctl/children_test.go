package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
	"northstar/client"
)

// Processes that CMD or a check has left behind do not stay zombies when they exit. CMD's exit code is reported.
func testRunOrphans(t *testing.T, endpoint string, _ *client.Client) {
	const leave200 = `i=0; while [ $i -lt 200 ]; do (setsid true &); i=$((i+1)); done`
	checked := filepath.Join(t.TempDir(), "checked")
	r := startRun(t, endpoint, leave200+`; trap 'exit 7' USR1; echo pid $$; sleep 1000 & wait`,
		"--role", "orphans", "--ttl", "5m", "--check-interval", "20ms", "--check-timeout", "1m",
		"--check", fmt.Sprintf(`[ -e %s ] || { %s; sleep 1; : > %[1]s; }`, checked, leave200))
	shim := parentOf(t, r.pid("pid"))
	if err := eventually(func() error { _, err := os.Stat(checked); return err }); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []int{shim, r.cmd.Process.Pid} {
		if err := eventually(func() error {
			if n := zombies(parent); n > 0 {
				return fmt.Errorf("process %d has %d zombies", parent, n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	r.signal(syscall.SIGUSR1)
	r.exit(7)
}

// zombies counts the children of a process that have exited and were not waited for.
func zombies(parent int) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		stat, _ := os.ReadFile(f) // the process may have ended
		_, rest, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", parent)) {
			n++
		}
	}
	return n
}

// asRoot in the environment makes the test binary a command that runs as root, as after sudo. It is setuid then.
const asRoot = "NORTHSTARCTL_TEST_AS_ROOT"

func runAsRoot() {
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("root", os.Getpid())
	select {}
}

// A command that run may not signal outlives the lease. run says so, starts no second one, and keeps the role.
func testRunOtherUser(t *testing.T, endpoint string, _ *client.Client) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a setuid program")
	}
	const noUser = 65534
	ttl := testenv.Slowdown() * time.Second // the command must be able to start within it
	r := startRunAs(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: noUser, Gid: noUser}}, endpoint,
		"exec env "+asRoot+"=yes "+setuidCopy(t)+" 2>/dev/null", "--role", "other", "--ttl", ttl.String())
	said := r.line("")
	if why, failed := strings.CutPrefix(said, "error"); failed {
		t.Skip("no setuid program can run here:", why) // nosuid, or no-new-privileges
	}
	root, err := strconv.Atoi(strings.TrimPrefix(said, "root "))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(root, syscall.SIGKILL)
		awaitExit(t, root)
	})
	evict(t, endpoint, "other")
	r.exit(exitFailed)
	if !alive(root) {
		t.Fatal("the command has ended")
	}
	want := fmt.Sprintf("processes %d cannot be ended: operation not permitted", root)
	// On a slow machine the lease may have been lost before that command began.
	if _, then, found := strings.Cut(r.stderr.String(), want); !found || strings.Contains(then, "elected for role") {
		t.Errorf("said %q, want %q and no election after it", r.stderr.String(), want)
	}
}

// A shell starts a process, and replaces itself by run: the process outlives the tenure.
func testRunEarlierChildren(t *testing.T, endpoint string, _ *client.Client) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; "+
		"exec "+exe+" run --role earlier --endpoints "+endpoint+" -- true")
	cmd.Env = append(os.Environ(), asProgram+"=yes")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	sidecar, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	if !alive(sidecar) {
		t.Error("run has ended a process that it did not start")
	}
	_ = syscall.Kill(sidecar, syscall.SIGKILL)
}

// setuidCopy returns a copy of this binary that any user may run, as root.
func setuidCopy(t *testing.T) string {
	dir, err := os.MkdirTemp("", "northstarctl-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "command")
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close(), os.Chmod(name, 0o755|os.ModeSetuid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return name
}

// orphaned in the environment makes TestKillOrphans_NotPermitted do its work, in a process without other children.
const orphaned = "NORTHSTARCTL_TEST_ORPHANED"

func TestKillOrphans_NotPermitted(t *testing.T) {
	t.Parallel()
	if os.Getenv(orphaned) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), orphaned+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	refuse := func(int, syscall.Signal) error { return syscall.EPERM }
	err := (&ownChildren{kill: refuse}).killOrphans()
	want := []string{strconv.Itoa(cmd.Process.Pid)}
	if left := (*outlivedError)(nil); !errors.As(err, &left) || !slices.Equal(left.pids, want) ||
		!errors.Is(left.cause, syscall.EPERM) {
		t.Errorf("left: %v, want %v", err, want)
	}
	if err := (&ownChildren{}).killOrphans(); err != nil || alive(cmd.Process.Pid) {
		t.Errorf("killed: %v, alive %t", err, alive(cmd.Process.Pid))
	}
}
