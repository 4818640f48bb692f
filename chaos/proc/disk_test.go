package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// onDisk, set in the environment, makes this program ExecOnDisk.
const onDisk = "NORTHSTAR_TEST_ON_DISK"

// A sync takes longer by the delay, and as long as a stall. A process whose sync waits can be killed.
func TestDisk(t *testing.T) {
	t.Parallel()
	if socket := os.Getenv(onDisk); socket != "" {
		t.Fatal(ExecOnDisk(socket, []string{"sync", os.Getenv(onDisk + "_FILE")}))
	}
	n := &Node{ID: "n1"}
	c := &Cluster{Dir: t.TempDir(), Nodes: []*Node{n}}
	d, err := c.AttachDisk(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(c.Dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDisk$")
		// It removes none of its temporary files.
		cmd.Env = append(os.Environ(), onDisk+"="+n.Wrapper[0], onDisk+"_FILE="+file, "TMPDIR="+c.Dir)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	const delay = 300 * time.Millisecond
	d.Delay(delay)
	at := time.Now()
	if err := start().Wait(); err != nil {
		t.Skip(err) // no seccomp, or no program sync
	}
	if took := time.Since(at); took < delay {
		t.Errorf("a delayed sync took %v", took)
	}
	d.Delay(0)
	d.Stall()
	at = time.Now()
	stalled := start()
	time.AfterFunc(delay, d.Resume)
	if err := stalled.Wait(); err != nil || time.Since(at) < delay {
		t.Errorf("a stalled sync took %v: %v", time.Since(at), err)
	}
	d.Stall()
	stalled = start()
	time.AfterFunc(delay, func() { _ = stalled.Process.Kill() })
	if err := stalled.Wait(); err == nil || time.Since(at) < delay {
		t.Errorf("a stalled sync ended after %v: %v", time.Since(at), err)
	}
}
