package main

import (
	"os"
	"runtime/debug"
	"syscall"
)

// crashBySignal has a panic, a fatal error and SIGABRT end this process by SIGABRT, with the stacks of all goroutines.
// The Go runtime would exit with 2, which says that the configuration is wrong: systemd would not start the node again.
// GOTRACEBACK cannot lower that. No core file is written, since it would hold keys, unless GOTRACEBACK=crash asks for
// one.
func crashBySignal() {
	if os.Getenv("GOTRACEBACK") != "crash" {
		var core syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_CORE, &core) == nil {
			core.Cur = min(1, core.Max) // 1: no program of core_pattern gets it either (core(5))
			_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &core)
		}
	}
	debug.SetTraceback("crash")
}
