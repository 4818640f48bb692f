package pg

import "syscall"

// endWithParent has the kernel send a signal to the process when the thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
