//go:build !linux

package main

import (
	"os"
	"syscall"
)

// commandAttributes puts a command into a process group of its own.
func commandAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitEnd waits for a child.
func awaitEnd(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_, _ = p.Wait()
	}
}

// inheritOrphans and endChildren need Linux.
func inheritOrphans() {}
func endChildren()    {}
