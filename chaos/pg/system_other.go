//go:build !linux

package pg

import "syscall"

// endWithParent does nothing: a process that is killed leaves its server here.
func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// freeMemory does nothing: a killed server leaves its shared memory here.
func freeMemory(string) error { return nil }
