package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/ports"
)

var (
	rowPattern     = regexp.MustCompile(`(n\d) +│ +(\d+) +│ (127\.0\.0\.1:\d+) +│ (127\.0\.0\.1:\d+)`)
	dirPattern     = regexp.MustCompile(`data, logs (\S+)`)
	electedPattern = regexp.MustCompile(`leader elected: (n\d) in (\d+) ms`)
	nextPattern    = regexp.MustCompile(`leader (elected: |changed: n\d to )(n\d)`)
	eventPattern   = regexp.MustCompile(`(?m)^[\d:.]+  n\d: \S`)
	restartPattern = regexp.MustCompile(`(n\d) restarted, pid (\d+)`)
)

// startDev runs a demo cluster on free ports.
func startDev(t *testing.T, args ...string) (*server, map[string]int) {
	t.Helper()
	base := "0"
	if !slices.Contains(args, "--etcd") { // the ports of the etcd API are fixed, except with 0
		// With 0, outgoing connections of other tests may take the port of a node that does not run for a moment.
		base = freePorts(t, 6)
	}
	d := &server{t: t, id: "dev", args: append([]string{"dev", "--base-port", base},
		args...), extraEnvironment: []string{"TMPDIR=" + t.TempDir(), "NORTHSTAR_JOIN=127.0.0.1:1"}}
	d.start()
	eventually(t, "a leader is elected", func() bool { return electedPattern.MatchString(d.stdout.String()) })
	pids := map[string]int{}
	for _, m := range rowPattern.FindAllStringSubmatch(d.stdout.String(), -1) {
		pids[m[1]], _ = strconv.Atoi(m[2])
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output:\n%s", d.stdout.String())
		}
	})
	return d, pids
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := stat[strings.LastIndexByte(string(stat), ')')+1:]
	return len(rest) > 1 && rest[1] != 'Z'
}

// TestDev_Etcd: with --etcd each node serves etcd clients at the address that is shown.
func TestDev_Etcd(t *testing.T) {
	t.Parallel()
	d, _ := startDev(t, "--etcd")
	m := regexp.MustCompile(`etcdctl --endpoints (\S+) `).FindStringSubmatch(d.stdout.String())
	if m == nil {
		t.Fatal("no address of the etcd API is shown")
	}
	addresses := strings.Split(m[1], ",")
	if len(addresses) != 3 {
		t.Errorf("addresses: %v", addresses)
	}
	for _, address := range addresses {
		eventually(t, address+" is healthy", func() bool {
			return get("http://"+address+"/health", nil) == http.StatusOK
		})
	}
}

func TestDev_ElectsRestartsAndCleansUp(t *testing.T) {
	t.Parallel()
	d, pids := startDev(t)
	out := d.stdout.String()
	if len(pids) != 3 {
		t.Fatalf("the table shows %d nodes", len(pids))
	}
	for _, m := range rowPattern.FindAllStringSubmatch(out, -1) {
		eventually(t, m[1]+" knows the leader",
			func() bool { return get("http://"+m[3]+"/leader", nil) == http.StatusOK })
	}
	if !strings.Contains(out, "dashboard  http://127.0.0.1:") {
		t.Error("no dashboard")
	}
	dir := dirPattern.FindStringSubmatch(out)[1]
	if _, err := os.Stat(filepath.Join(dir, "n1.log")); err != nil {
		t.Error(err)
	}

	// SIGKILL of the leader is a real crash.
	var known apiv1.Leader
	eventually(t, "the leader is known", func() bool {
		return get("http://"+rowPattern.FindStringSubmatch(out)[3]+"/leader", &known) == http.StatusOK
	})
	first := known.LeaderID
	before := len(d.stdout.String())
	if err := syscall.Kill(pids[first], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leader is reported", func() bool {
		next := nextPattern.FindStringSubmatch(d.stdout.String()[before:])
		return next != nil && next[2] != first
	})
	exited := fmt.Sprintf("%s (pid %d) exited: signal: killed", first, pids[first])
	eventually(t, "the crash is reported", func() bool { return strings.Contains(d.stdout.String(), exited) })
	eventually(t, "an event of a node is shown", func() bool { return eventPattern.MatchString(d.stdout.String()) })
	eventually(t, "the dead node is restarted", func() bool { return restartPattern.MatchString(d.stdout.String()) })
	again := restartPattern.FindStringSubmatch(d.stdout.String())
	if again[1] != first {
		t.Errorf("restarted %s, killed %s", again[1], first)
	}
	pids[first], _ = strconv.Atoi(again[2])

	d.signal(syscall.SIGINT)
	if code := d.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for id, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) is still there", id, pid)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
}

func TestDev_KillsChildrenOnExit(t *testing.T) {
	t.Parallel()
	d, pids := startDev(t, "--nodes", "1")
	d.signal(syscall.SIGKILL)
	d.exit()
	eventually(t, "the child has ended", func() bool { return !alive(pids["n1"]) })
}

func TestDev_SecondSignal(t *testing.T) {
	t.Parallel()
	d, pids := startDev(t)
	dir := dirPattern.FindStringSubmatch(d.stdout.String())[1]
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // they cannot exit on their own
	}
	d.signal(syscall.SIGINT)
	eventually(t, "it is stopping", func() bool { return strings.Contains(d.stdout.String(), "stopping") })
	eventually(t, "another signal ends it", func() bool {
		_ = d.cmd.Process.Signal(syscall.SIGINT) // it may have exited
		select {
		case <-d.ended:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
	for id, pid := range pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) is still there", id, pid)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
}

// freePorts returns the first of n consecutive ports that are free.
func freePorts(t *testing.T, n int) string {
	t.Helper()
	addrs, err := ports.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestDev_KeepsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	port := freePorts(t, 2)
	for _, want := range []string{"", "200 1"} {
		d := &server{t: t, id: "dev", args: []string{"dev", "--nodes", "1", "--base-port", port, "--data-dir", dir}}
		d.start()
		eventually(t, "a leader is elected", func() bool { return electedPattern.MatchString(d.stdout.String()) })
		n := &server{t: t, http: rowPattern.FindStringSubmatch(d.stdout.String())[3]}
		if want == "" {
			eventually(t, "a write", func() bool { return put(t, n, "a", "1") == http.StatusOK })
		} else if got := read(n, "a"); got != want {
			t.Errorf("after a restart: %s", got)
		}
		d.signal(syscall.SIGTERM)
		if code := d.exit(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestDev_RejectsOtherAddresses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, membersFile), []byte("n1=127.0.0.1:1@127.0.0.1:2"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := invoke(t, nil, "dev", "--nodes", "1", "--base-port", freePorts(t, 2), "--data-dir", dir)
	if code != exitUsage ||
		!strings.Contains(stderr, "was created with other addresses") || !strings.Contains(stderr, "127.0.0.1:2") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
