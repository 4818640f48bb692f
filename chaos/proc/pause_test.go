package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Pause stops a running node with SIGSTOP, and returns when all its threads are stopped. SIGCONT resumes the node.
func (n *Node) Pause() error {
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		running, err := n.runningThreads()
		if err != nil || running == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %d threads still run after SIGSTOP", n.ID, running)
		}
		time.Sleep(time.Millisecond)
	}
}

func (n *Node) runningThreads() (int, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", n.Cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	running := 0
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		// The state is the first field after the command name, in brackets.
		if f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(f) == 0 || f[0][0] != 'T' {
			running++
		}
	}
	return running, nil
}
