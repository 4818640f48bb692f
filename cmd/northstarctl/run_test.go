package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
	"northstar/chaos/ports"
	"northstar/chaos/testenv"
	"northstar/client"
	"northstar/node"
)

var testTimeout = testenv.Slowdown() * 20 * time.Second // for steps that are fast on an idle machine

// oneNode runs a cluster of one node in this process until the test ends. It has a leader when oneNode returns.
func oneNode(t *testing.T) (endpoint string, c *client.Client) {
	t.Helper()
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Default()
	cfg.ID, cfg.DataDir, cfg.Disk.Reserve = "n1", t.TempDir(), 1<<20
	cfg.RaftAddr, cfg.HTTPAddr = addrs[0], addrs[1]
	cfg.InitialCluster = node.InitialCluster{{ID: "n1", RaftAddress: addrs[0], HTTPAddress: addrs[1]}}
	env := node.Env{WatchdogInterval: -1, Notify: func(string) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		n, err := node.New(cfg, env)
		if err == nil {
			err = n.Run(ctx)
		}
		if err != nil {
			t.Errorf("node: %v", err)
		}
	})
	endpoint = "http://" + addrs[1]
	c, err = client.New(client.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		running.Wait()
	})
	// A command that reaches no node fails.
	if err := eventually(func() error { _, err := c.Leader(t.Context()); return err }); err != nil {
		t.Fatal(err)
	}
	return endpoint, c
}

// eventually repeats f until it succeeds.
func eventually(f func() error) error {
	deadline := time.Now().Add(testTimeout)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// runner is northstarctl run as a process.
type runner struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of the command, on stdout
	stderr bytes.Buffer
}

// startRun starts northstarctl run with a shell script as its command. endpoint "": with the default endpoint.
func startRun(t *testing.T, endpoint string, script string, flags ...string) *runner {
	t.Helper()
	return startRunAs(t, nil, endpoint, script, flags...)
}

// startRunAs is startRun as another user.
func startRunAs(t *testing.T, user *syscall.SysProcAttr, endpoint string, script string, flags ...string) *runner {
	t.Helper()
	args := append([]string{"run"}, flags...)
	if endpoint != "" {
		args = append(args, "--endpoints", endpoint)
	}
	r := &runner{t: t, cmd: exec.Command("/proc/self/exe",
		append(args, "--", "/bin/sh", "-c", script)...), lines: make(chan string, 100)}
	r.cmd.Env = append(os.Environ(), asProgram+"=yes", "NORTHSTAR_TOKEN=ns_secret")
	r.cmd.Stderr, r.cmd.SysProcAttr = &r.stderr, user
	out, w, err := os.Pipe() // not StdoutPipe, which Wait closes
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout = w
	err = r.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.lines)
		defer out.Close()
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
		for range r.lines { // until the command has exited too
		}
		if t.Failed() {
			t.Logf("stderr:\n%s", r.stderr.String())
		}
	})
	return r
}

// line returns the rest of the next line with this prefix.
func (r *runner) line(prefix string) string {
	r.t.Helper()
	select {
	case l, ok := <-r.lines:
		rest, found := strings.CutPrefix(l, prefix)
		if !ok || !found {
			r.t.Fatalf("the command says %q (%v), want %q", l, ok, prefix)
		}
		return strings.TrimSpace(rest)
	case <-time.After(testTimeout):
		r.t.Fatalf("the command does not say %q", prefix)
	}
	return ""
}

func (r *runner) pid(prefix string) int {
	r.t.Helper()
	pid, err := strconv.Atoi(r.line(prefix))
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

func (r *runner) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// exit waits for the end of the program.
func (r *runner) exit(want int) {
	r.t.Helper()
	late := time.AfterFunc(testTimeout, func() { _ = r.cmd.Process.Kill() })
	_ = r.cmd.Wait()
	if !late.Stop() {
		r.t.Fatal("it does not end")
	}
	if got := exitStatus(r.cmd.ProcessState); got != want {
		r.t.Errorf("exit %d, want %d", got, want)
	}
}

// awaitExit waits until a process has exited.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	if err := eventually(func() error {
		if !alive(pid) {
			return nil
		}
		return fmt.Errorf("process %d is alive", pid)
	}); err != nil {
		t.Fatal(err)
	}
}

// alive reports whether a process runs and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

// parentOf returns the parent of a process.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	parent, err := strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

func evict(t *testing.T, endpoint, role string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodDelete, endpoint+"/admin/roles/"+role, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		t.Fatalf("evict: %d %s", res.StatusCode, body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// vacant waits until a role is vacant for one of these reasons.
func vacant(t *testing.T, c *client.Client, role string, causes ...string) {
	t.Helper()
	if err := eventually(func() error {
		h, err := c.RoleHistory(t.Context(), role)
		switch {
		case err != nil:
			return err
		case len(h.Items) == 0 || h.Items[0].EndedAt == nil:
			return fmt.Errorf("role %s: %+v", role, h.Items)
		case !slices.Contains(causes, h.Items[0].Cause):
			return fmt.Errorf("role %s ended: %s, want %v", role, h.Items[0].Cause, causes)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The scripts wait with the shell's read, so that a trap acts immediately. Stubborn ones end only with SIGKILL.
const (
	willing  = `trap 'echo TERM; exit 9' TERM; echo pid $$; sh -c 'echo child $$; exec sleep 1000' & wait`
	stubborn = `trap '' TERM; echo pid $$; while :; do sleep 1000; done`
)

func TestRun(t *testing.T) {
	endpoint, c := oneNode(t)
	for name, test := range map[string]func(t *testing.T, endpoint string, c *client.Client){
		"environment and exit code": testRunEnvironment,
		"signals":                   testRunSignals,
		"orphans":                   testRunOrphans,
		"command of another user":   testRunOtherUser,
		"earlier children":          testRunEarlierChildren,
		"waiting":                   testRunWaiting,
		"evicted":                   testRunEvicted,
		"lost while ending":         testRunLostWhileEnding,
		"killed":                    testRunKilled,
		"paused":                    testRunPaused,
		"shim killed":               testRunShimKilled,
		"shim paused":               testRunShimPaused,
		"restart":                   testRunRestart,
		"check":                     testRunCheck,
		"check beside restarts":     testRunCheckBesideRestarts,
		"not eligible":              testRunNotEligible,
		"unreachable":               testRunUnreachable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, endpoint, c)
		})
	}
}

func testRunEnvironment(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, `echo $NORTHSTAR_ROLE/$NORTHSTAR_FENCING_TOKEN/$NORTHSTAR_SESSION/$NORTHSTAR_TOKEN; exit 7`,
		"--role", "env")
	fields := strings.Split(r.line(""), "/")
	r.exit(7)
	h, err := c.RoleHistory(t.Context(), "env")
	if err != nil || len(h.Items) != 1 {
		t.Fatalf("%+v, %v", h, err)
	}
	if it := h.Items[0]; fields[0] != "env" ||
		fields[1] != strconv.FormatUint(it.Token, 10) || fields[2] != it.SessionID || it.EndedAt == nil ||
		fields[3] != "" {
		t.Errorf("environment %q of tenure %+v", fields, it)
	}
	for script, want := range map[string]int{`true`: 0, `kill -9 $$`: 137, `kill -TERM $$`: 143} {
		startRun(t, endpoint, script, "--role", "env").exit(want)
	}
	broken := filepath.Join(t.TempDir(), "broken") // executable by its mode, but not for the kernel
	if err := os.WriteFile(broken, []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{
		"--role env -- /does/not/exist": exitNotFound, "--role env -- no-such-program": exitNotFound,
		"--role env -- /etc/passwd": exitNotExecutable, "--role env -- " +
			broken: exitNotExecutable,
		"--role env": exitUsage, "-- true": exitUsage, "--role env --stop-timeout 4s -- true": exitUsage,
		"--role env --ttl 100ms -- true":        exitUsage,
		"--role env --check-failures 0 -- true": exitUsage, "--role env --check-timeout 0s -- true": exitUsage,
		"--role env --metrics-addr nohost -- true": exitFailed,
		"--role env --restart often -- true":       exitUsage, "--role env --takeover-delay=-1s -- true": exitUsage,
		"--role env --no-such-flag -- true": exitUsage, "--role env --lock-key 7 -- true": exitUsage,
	} {
		cmd := exec.Command("/proc/self/exe", append([]string{"--endpoints", endpoint, "run"},
			strings.Fields(args)...)...)
		cmd.Env = append(os.Environ(), asProgram+"=yes")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != want || !strings.Contains(string(out), "northstarctl: ") {
			t.Errorf("run %s: %v, want exit %d: %s", args, err, want, out)
		}
	}
}

func testRunSignals(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint,
		`trap 'echo USR1' USR1; trap 'echo TERM; exit 9' TERM; while :; do sh -c 'echo child $$; exec sleep 1000' & wait; done`, "--role", "signals")
	first := r.pid("child")
	r.signal(syscall.SIGUSR1)
	r.line("USR1")
	awaitExit(t, first) // it got the signal too
	child := r.pid("child")
	r.signal(syscall.SIGTERM)
	r.line("TERM")
	r.exit(9)
	awaitExit(t, child)
	vacant(t, c, "signals", "session_ended")

	// A command that exits ends all processes that it has started.
	r = startRun(t, endpoint,
		`sleep 1000 & echo child $!; setsid sh -c 'echo escaped $$; exec sleep 1000' & wait $!; exit 3`, "--role", "signals")
	child = r.pid("child")
	escaped := r.pid("escaped")
	if err := syscall.Kill(parentOf(t, child), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.exit(137)
	for _, pid := range []int{child, escaped} {
		if alive(pid) {
			t.Errorf("process %d outlives run", pid)
		}
	}
}

func testRunWaiting(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, willing, "--role", "waiting")
	r.line("pid")
	second := startRun(t, endpoint, willing, "--role", "waiting", "--name", "second")
	waiting := func(n int) error {
		role, err := c.GetRole(t.Context(), "waiting")
		if err == nil && len(role.Candidates) != n {
			err = fmt.Errorf("%d candidates, want %d", len(role.Candidates), n)
		}
		return err
	}
	if err := eventually(func() error { return waiting(1) }); err != nil {
		t.Fatal(err)
	}
	second.signal(syscall.SIGTERM)
	second.exit(exitDone)
	if err := eventually(func() error { return waiting(0) }); err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGINT) // the shell does not trap this signal
	r.exit(130)
}

// run goes on when no node can be reached, and says so.
func testRunUnreachable(t *testing.T, _ string, _ *client.Client) {
	cmd := exec.Command("/proc/self/exe", "--endpoints", "127.0.0.1:1", "run", "--role", "unreachable", "--", "true")
	cmd.Env = append(os.Environ(), asProgram+"=yes")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	said := ""
	for s := bufio.NewScanner(stderr); !strings.Contains(said, "--endpoints") && s.Scan(); {
		said += s.Text() + "\n"
	}
	if !strings.Contains(said, "no endpoint is reachable") || !strings.Contains(said, "trying again") {
		t.Errorf("said %q", said)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v, want 0", err)
	}
}

// Without --eligible, run is no candidate, also when the role is vacant.
func testRunNotEligible(t *testing.T, endpoint string, c *client.Client) {
	cmd := exec.Command("/proc/self/exe", "--endpoints", endpoint, "run", "--role", "standby", "--", "true")
	cmd.Env = append(os.Environ(), asProgram+"=yes", "NORTHSTAR_RUN_ELIGIBLE=false")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || line != "northstarctl: not eligible for role standby: waiting for a signal\n" {
		t.Fatalf("%q, %v", line, err)
	}
	second := startRun(t, endpoint, `echo elected`, "--role", "standby")
	second.line("elected")
	second.exit(0)
	if h, err := c.RoleHistory(t.Context(), "standby"); err != nil || len(h.Items) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} { // the first one ends nothing
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v, want 0", err)
	}
}

// A command that is to end when its role is lost: run exits with the command's code.
func testRunLostWhileEnding(t *testing.T, endpoint string, _ *client.Client) {
	r := startRun(t, endpoint, `trap 'echo TERM' TERM; echo pid $$; while :; do sleep 1000 & wait; done`, "--role", "ending",
		"--ttl", "5m", "--stop-timeout", "10ms")
	r.line("pid")
	r.signal(syscall.SIGTERM)
	r.line("TERM")
	evict(t, endpoint, "ending")
	r.exit(137)
}

func testRunEvicted(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, `echo token $NORTHSTAR_FENCING_TOKEN; `+willing, "--role", "evicted")
	first := r.pid("token")
	pid := r.pid("pid")
	child := r.pid("child")
	evict(t, endpoint, "evicted")
	r.line("TERM")
	second := r.pid("token")
	r.line("pid")
	r.line("child")
	if second <= first || alive(pid) || alive(child) {
		t.Errorf("token %d after %d; the first command lives: %v, its child: %v", second, first, alive(pid),
			alive(child))
	}
	r.signal(syscall.SIGTERM)
	r.line("TERM")
	r.exit(9)
}

// The shim stops the command and releases the role, long before the TTL.
func testRunKilled(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, stubborn, "--role", "killed", "--ttl", "5m", "--stop-timeout", "100ms")
	pid := r.pid("pid")
	r.signal(syscall.SIGKILL)
	r.exit(137)
	vacant(t, c, "killed", "session_ended")
	if alive(pid) {
		t.Error("the role is free while the command runs")
	}
}

// A paused run renews nothing; its command ends before another process is elected. On a busy machine, the start of a
// command takes a second.
func testRunPaused(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, stubborn, "--role", "paused", "--ttl", "4s")
	pid := r.pid("pid")
	next := startRun(t, endpoint, fmt.Sprintf(`kill -0 %d 2>/dev/null && echo overlap || echo alone`, pid), "--role",
		"paused", "--takeover-delay", "0s")
	if err := eventually(func() error {
		role, err := c.GetRole(t.Context(), "paused")
		if err == nil && len(role.Candidates) != 1 {
			err = fmt.Errorf("%d candidates", len(role.Candidates))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.signal(syscall.SIGSTOP)
	next.line("alone")
	next.exit(0)
	vacant(t, c, "paused", "session_ended", "resigned")
	r.signal(syscall.SIGCONT)
	r.line("pid") // elected again
	r.signal(syscall.SIGKILL)
}

// The same with a PostgreSQL server instead of the cluster.
func TestRunPostgres(t *testing.T) {
	t.Parallel()
	server, err := pg.Start(t.Context())
	if errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	flags := []string{"--role", "job", "--postgres", server.DSN(), "--takeover-delay", "0s"}
	r := startRun(t, "", `echo $NORTHSTAR_ROLE; echo token $NORTHSTAR_FENCING_TOKEN; `+stubborn,
		append(flags, "--ttl", "1m", "--stop-timeout", "100ms")...)
	r.line("job")
	first := r.pid("token")
	pid := r.pid("pid")
	next := startRun(t, "", fmt.Sprintf(
		`echo token $NORTHSTAR_FENCING_TOKEN; kill -0 %d 2>/dev/null && echo overlap || echo alone; exit 7`, pid,
	), flags...)
	r.signal(syscall.SIGKILL) // the shim releases the role, a minute before the TTL ends
	if second := next.pid("token"); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	next.line("alone")
	next.exit(7)
	startRun(t, "", `true`, "--role", "job", "--postgres", "postgres://host:port").exit(exitUsage)
	testRunLockKey(t, server.DSN())
}

// The key of the advisory lock can be that of an application's own election.
func testRunLockKey(t *testing.T, dsn string) {
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	free := func() (free bool) {
		if err := conn.QueryRow(t.Context(), "SELECT pg_try_advisory_lock($1)", int64(0x464F52470001)).Scan(&free); err != nil {
			t.Fatal(err)
		}
		return free
	}
	r := startRun(t, "", willing, "--role", "scheduler", "--postgres", dsn, "--lock-key", "0x464F52470001")
	r.line("pid")
	r.line("child")
	if free() {
		t.Error("the lock with that key is free while the role is held")
	}
	r.signal(syscall.SIGTERM)
	r.line("TERM")
	r.exit(9)
	if err := eventually(func() error {
		if !free() {
			return errors.New("the lock is held after the end of run")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func testRunShimKilled(t *testing.T, endpoint string, c *client.Client) {
	r := startRun(t, endpoint, stubborn, "--role", "shim", "--ttl", "5m")
	pid := r.pid("pid")
	if err := syscall.Kill(parentOf(t, pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.exit(exitFailed)
	awaitExit(t, pid)
	vacant(t, c, "shim", "session_ended")
}

// If the shim does not act, run kills it and the command.
func testRunShimPaused(t *testing.T, endpoint string, c *client.Client) {
	ttl := testenv.Slowdown() * 1500 * time.Millisecond // the command must be able to start within it
	r := startRun(t, endpoint, stubborn, "--role", "asleep", "--ttl", ttl.String())
	pid := r.pid("pid")
	if err := syscall.Kill(parentOf(t, pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	evict(t, endpoint, "asleep")
	r.line("pid") // elected again
	if alive(pid) {
		t.Error("two commands run")
	}
	r.signal(syscall.SIGKILL)
}

func testRunRestart(t *testing.T, endpoint string, c *client.Client) {
	script := fmt.Sprintf(`echo token $NORTHSTAR_FENCING_TOKEN; [ -e %[1]s ] && exit 0; : > %[1]s; exit 4`,
		filepath.Join(t.TempDir(), "ran"))
	r := startRun(t, endpoint, script, "--role", "restart", "--restart", "on-failure")
	if a, b := r.pid("token"), r.pid("token"); a != b {
		t.Errorf("tokens %d and %d of one tenure", a, b)
	}
	r.exit(exitDone)
}

// The command ends before the lease, and when the parent asks for it.
func TestManagedProcess(t *testing.T) {
	t.Parallel()
	now := time.Duration(0)
	p := &managedProcess{
		shimConfig: shimConfig{Deadline: 1000, Stop: 200, Kill: 50}, now: func() time.Duration { return now },
	}
	if at, kill := p.nextAction(); at != 750 || kill {
		t.Errorf("next: %d, %v", at, kill)
	}
	for name, tc := range map[string]struct {
		until, since, killAt time.Duration
	}{
		"role lost early": {1000, 100, 300},
		"role lost late":  {1000, 900, 950},
		"lease over":      {1000, 2000, 950},
	} {
		p := &managedProcess{
			shimConfig: shimConfig{Deadline: tc.until, Stop: 200, Kill: 50}, stopping: true, killAt: tc.since + 200,
		}
		if at, kill := p.nextAction(); at != tc.killAt || !kill {
			t.Errorf("%s: %d, %v; want %d", name, at, kill, tc.killAt)
		}
	}
}

// A signal that came before run reads signals ends it, too.
func TestRun_SignalledBefore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	args := []string{"run", "--role", "early", "--no-eligible", "--", "true"}
	var stderr bytes.Buffer
	if code := run(ctx, args, strings.NewReader(""), io.Discard, &stderr); code != exitDone || stderr.Len() > 0 {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

// A signal that main's context has noticed, and that did not reach run's own channel, ends the wait for the role.
func TestSupervisor_Interrupted(t *testing.T) {
	t.Parallel()
	interrupted := make(chan struct{})
	close(interrupted)
	for _, eligible := range []bool{false, true} {
		s := &supervisor{
			runCmd: &runCmd{Role: "early", Eligible: eligible}, a: &app{ctx: t.Context(), stderr: io.Discard},
			elector: waiting{}, interrupted: interrupted,
		}
		if l, err := s.campaign(t.Context()); l != nil || err != nil {
			t.Errorf("eligible %t: %v, %v", eligible, l, err)
		}
	}
}

// waiting is an elector that is never elected.
type waiting struct{ client.Elector }

func (waiting) Campaign(ctx context.Context) (*client.Leadership, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
