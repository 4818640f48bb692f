package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"northstar/node"
)

// child is one node of the demo cluster: a process that is restarted when it exits.
type child struct {
	node.InitialMember
	self, logFile string
	args          []string
	print         *printer
	exited        func(id string)

	ctx     context.Context
	cancel  context.CancelFunc // stops the process permanently, with SIGTERM
	done    chan struct{}      // closed when it has stopped permanently
	process atomic.Pointer[os.Process]
}

func (c *child) pid() int {
	if p := c.process.Load(); p != nil {
		return p.Pid
	}
	return 0
}

// supervise runs the process, and restarts it until cancel is called. The result of the first start goes to
// started. It keeps its thread, because the kernel kills a child when the thread that started it exits.
func (c *child) supervise(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.done)
	cmd, err := c.start()
	started <- err
	if err != nil {
		return
	}
	for {
		c.wait(cmd)
		for cmd = nil; cmd == nil; {
			select {
			case <-c.ctx.Done():
				return
			case <-time.After(restartDelay):
			}
			if cmd, err = c.start(); err != nil {
				c.print.line("cannot start %s: %v", c.ID, err)
			} else {
				c.print.line("%s restarted, pid %d", c.ID, c.pid())
			}
		}
	}
}

func (c *child) start() (*exec.Cmd, error) {
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	cmd := exec.CommandContext(c.ctx, c.self, c.args...)
	cmd.Env = cleanEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.process.Store(cmd.Process)
	return cmd, nil
}

// wait waits for the exit of the process, and reports its cause unless the exit was requested.
func (c *child) wait(cmd *exec.Cmd) {
	err := cmd.Wait()
	if c.ctx.Err() != nil {
		return
	}
	c.exited(string(c.ID))
	reason := "ended on its own"
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		reason = exit.Error()
		if last := lastLine(c.logFile); exit.Exited() && last != "" {
			reason += ": " + last
		}
	}
	c.print.line("%s (pid %d) exited: %s; restarting in %v", c.ID, cmd.Process.Pid, reason, restartDelay)
}

// lastLine returns the last line of a log, where a node prints why it ended.
func lastLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	const tail = 4096
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, tail))
	data = bytes.TrimRight(data, "\n")
	return string(data[bytes.LastIndexByte(data, '\n')+1:])
}
