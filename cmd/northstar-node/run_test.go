package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
