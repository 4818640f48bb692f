package pg

import "syscall"

// endWithParent has the kernel end the server, with its backends, when the thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
