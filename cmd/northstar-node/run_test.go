package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"northstar/consensus/storage"
	"northstar/node"
)

// chaos/proc tests running nodes from outside.

func wantNoTrace(t *testing.T, stderr string) {
	t.Helper()
	if strings.Contains(stderr, "goroutine ") || strings.Contains(stderr, "panic:") {
		t.Errorf("a panic trace:\n%s", stderr)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	unwritable := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(unwritable, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := []string{"--raft-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--disk-reserve", "1MiB"}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{
			"nothing to begin with", append(
				free, "--data-dir", t.TempDir(),
			), exitUsage,
			"northstar-node: the data directory is empty: set initial-cluster for a new cluster, or join or " +
				"discover for a running one",
		},
		{"port in use", []string{
			"--data-dir", t.TempDir(), "--raft-addr", taken.Addr().String(),
		}, exitFailed, "northstar-node: raft-addr: listen tcp " + taken.Addr().String()},
		{"data dir is a file", append(free, "--data-dir", unwritable), exitFailed, "northstar-node: "},
		{"token file that may still come", append(
			free, "--data-dir", t.TempDir(), "--auth-tokens", "/nowhere",
		), exitFailed, "northstar-node: auth.tokens = \"/nowhere\": open /nowhere: no such file"},
		{"that and a wrong value", append(
			free, "--data-dir", t.TempDir(), "--auth-tokens", "/nowhere", "--priority", "999",
		), exitUsage, "northstar-node: auth.tokens = \"/nowhere\": open /nowhere: no such file"},
		{
			"parent is a file", append(free, "--data-dir", filepath.Join(unwritable, "x")), exitFailed,
			"northstar-node: ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := invoke(t, nil, append([]string{"run", "--id", "n1"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, want %d; %q, want %q", code, c.code, stderr, c.want)
			}
			wantNoTrace(t, stderr)
		})
	}
}

// A node that is built again after a recovery, and is told to stop meanwhile, has stopped cleanly.
func TestStopDuringARestart(t *testing.T) {
	t.Parallel()
	stop, signal := context.WithCancel(t.Context())
	defer signal()
	runs := 0
	err := repeat(stop, func() error {
		if runs++; runs == 2 {
			signal()
		}
		return fmt.Errorf("run: %w", node.ErrRestart)
	})
	if err != nil || runs != 2 {
		t.Errorf("%v after %d runs", err, runs)
	}
	broken := errors.New("broken")
	if err := repeat(stop, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("another error: %v", err)
	}
}

// The second signal ends a node that is still opening its data.
func TestRunNode_ForcedWhileOpening(t *testing.T) {
	t.Parallel()
	cfg := node.Default()
	cfg.ID, cfg.DataDir, cfg.RaftAddr, cfg.HTTPAddr = "n1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	opening, release := make(chan struct{}), make(chan struct{})
	hung := errors.New("hung disk")
	env := node.Env{WatchdogInterval: -1, OpenStorage: func(storage.Options) (storage.Storage, error) {
		close(opening)
		<-release
		return nil, hung
	}}
	now, second := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		c := runCommand{node.Flags{Config: cfg}}
		p := &commandEnv{graceful: t.Context(), immediate: now, stdout: io.Discard, stderr: io.Discard}
		ended <- c.runNode(p, env)
	}()
	<-opening
	second()
	if err := <-ended; err == nil || err.Error() != "forced exit on second signal" {
		t.Errorf("%v", err)
	}
	close(release)
}

// A panic at the start of a node is one line and an exit code, not a trace.
func TestRunNode_PanicWhileOpening(t *testing.T) {
	t.Parallel()
	cfg := node.Default()
	cfg.ID, cfg.DataDir, cfg.RaftAddr, cfg.HTTPAddr = "n1", t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	env := node.Env{WatchdogInterval: -1, OpenStorage: func(storage.Options) (storage.Storage, error) {
		panic("bad page")
	}}
	var stderr strings.Builder
	c := runCommand{node.Flags{Config: cfg}}
	p := &commandEnv{graceful: t.Context(), immediate: t.Context(), stdout: io.Discard, stderr: &stderr}
	code, said := report(&stderr, c.runNode(p, env)), stderr.String()
	const want = "northstar-node: internal error: bad page (northstar/cmd/northstar-node.TestRunNode_PanicWhileOpening"
	if code != exitFailed || !strings.HasPrefix(said, want) || strings.Count(said, "\n") != 1 {
		t.Errorf("exit code %d, want %d; %q, want %q", code, exitFailed, said, want)
	}
}

// A signal ends the commands that run no node, also where they wait for a file.
func TestCheckConfig_Signal(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cert")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, id: "check-config", args: []string{
		"check-config", "--id", "n1", "--data-dir", t.TempDir(),
		"--tls-cert", file, "--tls-key", file, "--tls-ca", file,
	}}
	s.start()
	w, err := os.OpenFile(file, os.O_WRONLY, 0) // returns when the command reads it
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s.signal(syscall.SIGTERM)
	s.exit()
	if got, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || got.Signal() != syscall.SIGTERM {
		t.Errorf("ended by %v, want SIGTERM", s.cmd.ProcessState)
	}
}
