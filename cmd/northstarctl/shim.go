package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"northstar/client"
	"northstar/client/postgres"
)

const (
	// suspendPollInterval is the longest sleep on a timer: timers stop while the machine is suspended.
	suspendPollInterval = 250 * time.Millisecond
	killMargin          = 200 * time.Millisecond // maximum time between SIGKILL and the end of the lease
	releaseTimeout      = 5 * time.Second        // of the role of a dead parent

	exitNotExecutable = 126 // as in env, nice and timeout
	exitNotFound      = 127
)

// shimConfig is the first message to the shim.
type shimConfig struct {
	Path     string        `json:"path"`
	Args     []string      `json:"args"` // with the program name
	Env      []string      `json:"env"`
	Deadline time.Duration `json:"until"`   // end of the lease, on the clock of leases
	Stop     time.Duration `json:"stop"`    // time between SIGTERM and SIGKILL
	Kill     time.Duration `json:"kill"`    // time between SIGKILL and the end of the lease
	Release  roleRelease   `json:"release"` // what to release if the parent dies
}

// shimCommand is a later message to the shim. The end of the pipe means that the parent has died.
type shimCommand struct {
	Deadline time.Duration  `json:"until,omitempty"`
	Signal   syscall.Signal `json:"signal,omitempty"`
	Stop     bool           `json:"stop,omitempty"` // the role is lost
}

// exitReport is the shim's final message.
type exitReport struct {
	Code    int    `json:"code,omitempty"`
	Stopped bool   `json:"stopped,omitempty"` // stopped because of the lease
	Error   string `json:"error,omitempty"`   // error if it could not be started
}

// roleRelease is how to release a role.
type roleRelease struct {
	Cluster  globals `json:"cluster"`
	Postgres string  `json:"postgres"` // used instead of Cluster if not empty
	Role     string  `json:"role"`
	Session  string  `json:"session"`
}

// shimCmd is the supervisor shim: a process between run and its command. It ends the command before the lease ends,
// also if run is stopped or killed. Both watch the same clock; each ends the command if the other has died.
type shimCmd struct{}

// File descriptors of the shim.
const (
	commandFD = 3
	reportFD  = 4
)

func (*shimCmd) Run(a *app) error {
	syscall.CloseOnExec(commandFD)
	syscall.CloseOnExec(reportFD)
	code, err := runShim(a, os.NewFile(commandFD, "commands"), os.NewFile(reportFD, "reports"))
	if err != nil {
		return fmt.Errorf("internal command of northstarctl run: %w", err)
	}
	if code != 0 {
		return &commandError{code: code}
	}
	return nil
}

// commandError is the exit of a command with a code other than 0.
type commandError struct {
	code int
	text string // "": the command has printed its own error
}

func (e *commandError) Error() string { return e.text }

// runShim runs one command until it ends, and returns its exit code.
func runShim(a *app, in io.Reader, out io.Writer) (int, error) {
	// The terminal and some service managers signal every process. run forwards these signals, so the shim ignores
	// them.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, forwardedSignals...)
	defer signal.Stop(ignored)
	runtime.LockOSThread() // the kernel kills the command when the thread that started it exits
	defer runtime.UnlockOSThread()
	a.own.becomeSubreaper()
	decoder := json.NewDecoder(in)
	var cfg shimConfig
	if err := decoder.Decode(&cfg); err != nil {
		return 0, fmt.Errorf("read the configuration: %w", err)
	}
	reports := json.NewEncoder(out) // errors are ignored: the parent may have exited
	p := &managedProcess{shimConfig: cfg, now: client.NewDeadline(nil).Now}
	if at, _ := p.nextAction(); at <= p.now() {
		_ = reports.Encode(exitReport{Stopped: true})
		return 0, nil
	}
	cmd := exec.Cmd{
		Path: cfg.Path, Args: cfg.Args, Env: cfg.Env, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
		SysProcAttr: commandAttributes(),
	}
	if err := a.own.start(&cmd); err != nil {
		_ = reports.Encode(exitReport{Code: startCode(err), Error: err.Error()})
		return startCode(err), nil
	}
	defer a.own.reapOrphans()()
	p.pgid = cmd.Process.Pid
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		waitChildExit(p.pgid)
	}()
	orphan := p.wait(ended, readCommands(decoder))
	signalGroup(p.pgid, syscall.SIGKILL) // processes left in the group, while its ID is reserved
	_ = cmd.Wait()                       // the process state has the result
	a.own.forget(&cmd)
	left := a.own.killOrphans() // processes that have left the group
	code := exitStatus(cmd.ProcessState)
	_ = reports.Encode(exitReport{Code: code, Stopped: p.stopping})
	switch {
	case !orphan: // the parent inherits and finds what is left
	case left != nil:
		fmt.Fprintf(a.stderr, "northstarctl: %v: session %s is not ended\n", left, cfg.Release.Session)
	default:
		cfg.Release.run(a)
	}
	return code, nil
}

// readCommands returns the parent's messages. It closes the channel when the parent has died. Its goroutine ends
// with the process.
func readCommands(d *json.Decoder) <-chan shimCommand {
	c := make(chan shimCommand)
	go func() {
		defer close(c)
		for {
			var command shimCommand
			if d.Decode(&command) != nil {
				return
			}
			c <- command
		}
	}()
	return c
}

// managedProcess is the running command and its deadlines.
type managedProcess struct {
	shimConfig
	now      func() time.Duration
	pgid     int
	stopping bool          // SIGTERM was sent because of the lease
	killAt   time.Duration // set while stopping
	killed   bool
}

// nextAction returns the time of the next action, and whether that is SIGKILL.
func (p *managedProcess) nextAction() (at time.Duration, kill bool) {
	last := p.Deadline - p.Kill
	if p.stopping {
		return min(p.killAt, last), true
	}
	return last - p.Stop, false
}

// stop asks the command to exit because of the lease.
func (p *managedProcess) stop() {
	if p.stopping {
		return
	}
	p.stopping, p.killAt = true, p.now()+p.Stop
	signalGroup(p.pgid, syscall.SIGTERM)
	signalGroup(p.pgid, syscall.SIGCONT) // a stopped process cannot handle SIGTERM
}

// wait returns when the command has exited. orphan reports that the parent died first.
func (p *managedProcess) wait(ended <-chan struct{}, commands <-chan shimCommand) (orphan bool) {
	for {
		select {
		case <-ended:
			return orphan
		case command, ok := <-commands:
			switch {
			case !ok:
				orphan, commands = true, nil
				p.stop()
			case command.Stop:
				p.stop()
			case command.Signal != 0:
				signalGroup(p.pgid, command.Signal)
			default:
				p.Deadline = max(p.Deadline, command.Deadline)
			}
		case <-time.After(p.runDueAction()):
		}
	}
}

// runDueAction runs the action that is due, and returns the time until the next check.
func (p *managedProcess) runDueAction() time.Duration {
	at, kill := p.nextAction()
	switch {
	case p.killed:
		return time.Hour
	case p.now() < at:
		return min(at-p.now(), suspendPollInterval)
	case kill:
		p.killed = true
		signalGroup(p.pgid, syscall.SIGKILL)
		return time.Hour
	}
	p.stop()
	return 0
}

// signalGroup signals all processes of a group, if any are left.
func signalGroup(group int, sig syscall.Signal) { _ = syscall.Kill(-group, sig) }

// startCode returns the exit code for a command that cannot be started.
func startCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return exitNotFound
	}
	return exitNotExecutable
}

// exitStatus returns the exit code, or 128 plus the signal that ended the process, as in shells.
func exitStatus(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// run releases the role, so that the next candidate need not wait for the TTL.
func (r roleRelease) run(a *app) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), releaseTimeout)
	defer cancel()
	if err := r.release(ctx); err != nil && !errors.Is(err, client.ErrSessionEnded) {
		fmt.Fprintf(a.stderr, "northstarctl: cannot end session %s: %v (it expires after its TTL)\n", r.Session, err)
	}
}

func (r roleRelease) release(ctx context.Context) error {
	if r.Postgres != "" {
		return postgres.Release(ctx, postgres.Config{DSN: r.Postgres, Role: r.Role}, r.Session)
	}
	c, err := r.Cluster.connect(nil)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.EndSession(ctx, r.Session)
}
