package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killWait is how long processes may take to die of SIGKILL: longer only in the hands
// of a broken disk or driver.
const killWait = 2 * time.Second

// commandAttributes puts a command into a process group of its own and lets the
// kernel end it should its keeper be killed.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitChildExit returns when a child has ended. Its number stays taken until it is
// waited for.
func waitChildExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// becomeSubreaper makes this process the parent of all of its descendants whose own
// parents are gone.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // there since Linux 3.4

// killChildren ends every child of this process, and theirs, which become its own.
func killChildren() {
	for deadline := time.Now().Add(killWait); time.Now().Before(deadline); {
		all := children()
		if len(all) == 0 {
			return
		}
		for _, pid := range all {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // else the next time round
		}
		time.Sleep(time.Millisecond)
	}
}

// children lists the children of this process; none where the kernel does not say.
func children() []int {
	var all []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	for _, f := range files {
		line, _ := os.ReadFile(f) // the thread may be gone
		for _, word := range strings.Fields(string(line)) {
			if pid, err := strconv.Atoi(word); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}
