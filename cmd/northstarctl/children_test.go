package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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
