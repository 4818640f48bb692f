//go:build !linux

package main

import "syscall"

// childAttributes puts a child into a process group of its own, so that the
// terminal's Ctrl-C does not reach it before its turn.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
