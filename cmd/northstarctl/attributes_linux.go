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

// becomeSubreaper makes this process the parent of its orphaned descendants. Children from before are not killed.
func (o *ownChildren) becomeSubreaper() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.earlier = children()
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // exists since Linux 3.4
}

// killOrphans kills every orphan that this process has, and their children, which become its own. The error is an
// *outlivedError: some are left after killWait.
func (o *ownChildren) killOrphans() error {
	for deadline := time.Now().Add(killWait); ; time.Sleep(time.Millisecond) {
		any, left := o.killRound()
		switch {
		case !any:
			return nil
		case left != nil && time.Now().After(deadline):
			return left
		}
	}
}

// killRound kills the present orphans. It reports whether there were any, and returns those that have not ended.
func (o *ownChildren) killRound() (any bool, left *outlivedError) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kill := o.kill
	if kill == nil {
		kill = unix.Kill
	}
	for _, pid := range o.orphans() {
		if slices.Contains(o.earlier, pid) {
			continue
		}
		any = true
		refused := kill(pid, unix.SIGKILL)
		if !o.reapOne(pid) { // in a later round
			left = left.with(pid, refused)
		}
	}
	return any, left
}

// reapOne waits for an orphan if it has exited, and reports whether it has. The caller holds mu.
func (o *ownChildren) reapOne(pid int) bool {
	if ended, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); ended != pid {
		return false
	}
	o.earlier = slices.DeleteFunc(o.earlier, func(p int) bool { return p == pid }) // the kernel may reuse the ID
	return true
}

// reap waits for the orphans that have exited.
func (o *ownChildren) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range o.orphans() {
		o.reapOne(pid)
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
