package main

import "syscall"

// childAttributes puts a child into a process group of its own, so that the
// terminal's Ctrl-C does not reach it before its turn, and lets it die with
// this process.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
