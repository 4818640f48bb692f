//go:build !linux

package main

import (
	"os"
	"syscall"
)

// commandAttributes puts a command into its own process group.
func commandAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// waitChildExit waits for a child.
func waitChildExit(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_, _ = p.Wait()
	}
}

// becomeSubreaper, killOrphans, reap and reapGroup need Linux.
func (*ownChildren) becomeSubreaper()   {}
func (*ownChildren) killOrphans() error { return nil }
func (*ownChildren) reap()              {}
func reapGroup(int)                     {}
