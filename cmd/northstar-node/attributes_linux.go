package main

import "syscall"

// childAttributes puts a child into its own process group, so that Ctrl-C of the terminal does not reach it early.
// The kernel kills the child when this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
