package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// panicEnv has the test binary panic as a node would.
const panicEnv = "NORTHSTAR_TEST_PANIC"

func panicInGoroutine() {
	crashBySignal()
	go func() { panic("as a node would") }()
	select {}
}

// wantAborted wants an end by SIGABRT without a core file: exit code 2 would say that the configuration is wrong.
func wantAborted(t *testing.T, p *os.ProcessState) {
	t.Helper()
	if s := p.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGABRT || s.CoreDump() {
		t.Errorf("%v, want an end by SIGABRT without a core file", p)
	}
}

// TestWatchdogEndsNode: systemd ends a node that hangs by SIGABRT, and starts it again for that.
func TestWatchdogEndsNode(t *testing.T) {
	t.Parallel()
	n := &server{t: t, id: "n1", args: []string{
		"run", "--id", "n1", "--data-dir", t.TempDir(), "--raft-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
		"--join", "127.0.0.1:1", "--disk-reserve", "1MiB",
	}}
	n.start()
	eventually(t, "it runs", func() bool { return strings.Contains(n.stderr.String(), "join failed") })
	n.signal(syscall.SIGABRT)
	n.exit()
	wantAborted(t, n.cmd.ProcessState)
	if log := n.stderr.String(); !strings.Contains(log, "goroutine ") {
		t.Errorf("no stacks in\n%s", tail(log))
	}
}

func TestPanicEndsBySignal(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"", "none"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(cleanEnv(os.Environ()), panicEnv+"=1", "GOTRACEBACK="+level)
		out, _ := cmd.CombinedOutput()
		if !strings.Contains(string(out), "panic: as a node would") {
			t.Errorf("it says\n%.2000s", out)
		}
		wantAborted(t, cmd.ProcessState)
	}
}
