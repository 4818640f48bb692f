package pg

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKilledServerLeavesNoMemory: the shared memory of a server that was killed goes with its files.
func TestKilledServerLeavesNoMemory(t *testing.T) {
	s, err := Start(t.Context())
	if errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range s.processes() { // one of them may wait for long before it finds its parent dead
		if pid != s.cmd.Process.Pid {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // it may end just now
		}
	}
	if err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-s.ended
	id, found := memoryID(filepath.Join(s.data(), "postmaster.pid"))
	if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &unix.SysvShmDesc{}); !found || err != nil {
		t.Errorf("the killed server has left no shared memory (ID %d, found %t): %v", id, found, err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	// The kernel frees it when the server's other processes have ended, too: Stop has killed them.
	for deadline := time.Now().Add(startLimit); ; time.Sleep(time.Millisecond) {
		if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &unix.SysvShmDesc{}); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("shared memory %d is left", id)
		}
	}
}
