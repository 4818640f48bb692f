package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killWait is how long to wait for killed processes. Only a broken disk or driver takes longer.
const killWait = 2 * time.Second

// commandAttributes puts a command into its own process group, and makes the kernel kill it if its shim is killed.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitChildExit returns when a child has exited. The process ID stays reserved until Wait.
func waitChildExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// becomeSubreaper makes this process the parent of its orphaned descendants.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // exists since Linux 3.4

// killOrphans kills every orphan that this process has, and their children, which become its own.
func (o *ownChildren) killOrphans() {
	for deadline := time.Now().Add(killWait); time.Now().Before(deadline); {
		if !o.killRound() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// killRound kills the present orphans, and reports whether there were any.
func (o *ownChildren) killRound() (any bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range o.orphans() {
		any = true
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // otherwise in the next round
	}
	return any
}

// reap waits for the orphans that have exited.
func (o *ownChildren) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range o.orphans() {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // no effect on one that runs
	}
}

// orphans lists the children that this process has not started. The caller holds mu.
func (o *ownChildren) orphans() []int {
	return slices.DeleteFunc(children(), func(pid int) bool { return slices.Contains(o.pids, pid) })
}

// reapGroup waits for the killed processes of a group that are children of this one.
func reapGroup(group int) {
	for {
		if _, err := unix.Wait4(-group, nil, 0, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}

// children lists the children of this process; none if the kernel does not provide the list.
func children() []int {
	var all []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, f := range files {
		line, _ := os.ReadFile(f) // the thread may have exited
		for _, word := range strings.Fields(string(line)) {
			if pid, err := strconv.Atoi(word); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}
