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

// becomeSubreaper, killChildren and reapGroup need Linux.
func becomeSubreaper()           {}
func killChildren(*checkCommand) {}
func reapGroup(int)              {}
