package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ownChildren are the children that this process has started, and that it waits for itself. As a subreaper it also gets
// orphans of theirs.
type ownChildren struct {
	mu   sync.Mutex // held while a child starts, and while orphans are listed
	pids []int
	// earlier are the children from before this program: those of a shell that has replaced itself by it.
	earlier []int
	kill    func(pid int, sig syscall.Signal) error // nil: that of the kernel
}

// outlivedError: processes that CMD or a check left behind, and that cannot be ended.
type outlivedError struct {
	pids  []string
	cause error // why one of them cannot be signalled; nil: they were killed, and have not ended
}

func (e *outlivedError) Error() string {
	return fmt.Sprintf("processes %s cannot be ended: %v", strings.Join(e.pids, ", "),
		cmp.Or(e.cause, errors.New("they outlive SIGKILL")))
}

// with returns e, nil for none yet, with a further process.
func (e *outlivedError) with(pid int, cause error) *outlivedError {
	if e == nil {
		e = &outlivedError{}
	}
	return &outlivedError{append(e.pids, strconv.Itoa(pid)), cmp.Or(e.cause, cause)}
}

// start starts a child. The caller waits for it, and then calls forget.
func (o *ownChildren) start(cmd *exec.Cmd) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	o.pids = append(o.pids, cmd.Process.Pid)
	return nil
}

// forget removes a child that has been waited for.
func (o *ownChildren) forget(cmd *exec.Cmd) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pids = slices.DeleteFunc(o.pids, func(pid int) bool { return pid == cmd.Process.Pid })
}

// reapInterval is the shortest time between two searches for orphans that have exited.
const reapInterval = 100 * time.Millisecond

// reapOrphans waits for each orphan that exits, until stop is called. Otherwise it would stay a zombie as long as this
// process lives.
func (o *ownChildren) reapOrphans() (stop func()) {
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, syscall.SIGCHLD)
	done := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-exits:
			case <-done:
				return
			}
			o.reap()
			select {
			case <-time.After(reapInterval):
			case <-done:
				return
			}
		}
	})
	return func() { signal.Stop(exits); close(done); ended.Wait() }
}
