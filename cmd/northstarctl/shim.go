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
	suspendPollInterval = 250 * time.Millisecond // how long a timer may be trusted: it does not run while the machine is suspended
	killMargin          = 200 * time.Millisecond // between SIGKILL and the end of the lease, at most
	releaseTimeout      = 5 * time.Second        // for giving the role back on behalf of a dead parent

	exitNotExecutable = 126 // as env, nice and timeout have it
	exitNotFound      = 127
)

// shimConfig is what a keeper is told to begin with.
type shimConfig struct {
	Path     string        `json:"path"`
	Args     []string      `json:"args"` // with the name
	Env      []string      `json:"env"`
	Deadline time.Duration `json:"until"`   // end of the lease, of the clock of leases
	Stop     time.Duration `json:"stop"`    // between SIGTERM and SIGKILL
	Kill     time.Duration `json:"kill"`    // between SIGKILL and the end of the lease
	Release  roleRelease   `json:"release"` // what to give back should the parent die
}

// shimCommand is what it is told later. The end of the orders is the end of the parent.
type shimCommand struct {
	Deadline time.Duration  `json:"until,omitempty"`
	Signal   syscall.Signal `json:"signal,omitempty"`
	Stop     bool           `json:"stop,omitempty"` // the role is lost
}

// exitReport is what it tells in the end.
type exitReport struct {
	Code    int    `json:"code,omitempty"`
	Stopped bool   `json:"stopped,omitempty"` // for the lease's sake, not by itself
	Error   string `json:"error,omitempty"`   // it could not be started
}

// roleRelease says how to give a role back.
type roleRelease struct {
	Endpoints     []string      `json:"endpoints,omitempty"`
	Token         string        `json:"token,omitempty"`
	CA, Cert, Key string        `json:",omitempty"`
	Timeout       time.Duration `json:"timeout,omitempty"`
	Session       string        `json:"session"`
	Postgres      string        `json:"postgres,omitempty"` // instead of the endpoints
	Role          string        `json:"role,omitempty"`     // with it
}

// shimCmd is the keeper: a process between run and its command, so that the
// command ends before the lease does also when run itself is stopped or killed.
// Both watch the same clock; each ends the command should the other be gone.
type shimCmd struct{}

// The keeper's descriptors.
const (
	commandFD = 3
	reportFD  = 4
)

func (*shimCmd) Run(a *app) error {
	syscall.CloseOnExec(commandFD)
	syscall.CloseOnExec(reportFD)
	code, err := runShim(a, os.NewFile(commandFD, "orders"), os.NewFile(reportFD, "reports"))
	if err != nil {
		return fmt.Errorf("keep: this command is only for northstarctl run: %w", err)
	}
	if code != 0 {
		return &commandError{code: code}
	}
	return nil
}

// commandError is the end of a command by itself, other than with 0.
type commandError struct {
	code int
	text string // "": it has said itself what there was to say
}

func (e *commandError) Error() string { return e.text }

// runShim runs one command until it ends and gives its exit code.
func runShim(a *app, in io.Reader, out io.Writer) (int, error) {
	// Signals of the terminal and of a service manager that tells every process are
	// run's to pass on.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, forwardedSignals...)
	defer signal.Stop(ignored)
	runtime.LockOSThread() // the kernel ends the command when the thread that started it is gone
	defer runtime.UnlockOSThread()
	becomeSubreaper()
	decoder := json.NewDecoder(in)
	var k shimConfig
	if err := decoder.Decode(&k); err != nil {
		return 0, fmt.Errorf("read what to keep: %w", err)
	}
	tell := json.NewEncoder(out) // nobody may be there any more to hear it
	w := &managedProcess{shimConfig: k, now: client.NewDeadline(nil).Now}
	if at, _ := w.nextAction(); at <= w.now() {
		_ = tell.Encode(exitReport{Stopped: true})
		return 0, nil
	}
	cmd := exec.Cmd{Path: k.Path, Args: k.Args, Env: k.Env, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr, SysProcAttr: commandAttributes()}
	if err := cmd.Start(); err != nil {
		_ = tell.Encode(exitReport{Code: startCode(err), Error: err.Error()})
		return startCode(err), nil
	}
	w.pgid = cmd.Process.Pid
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		waitChildExit(w.pgid)
	}()
	orphan := w.wait(ended, readCommands(decoder))
	signalGroup(w.pgid, syscall.SIGKILL) // what it has left behind, while its number is still taken
	_ = cmd.Wait()                       // the state says it
	killChildren()                       // and what of that has left the group
	code := exitStatus(cmd.ProcessState)
	_ = tell.Encode(exitReport{Code: code, Stopped: w.stopping})
	if orphan {
		k.Release.run(a)
	}
	return code, nil
}

// readCommands gives what comes until the parent's end, and that as the end of the
// channel. It reads for as long as the process lives.
func readCommands(d *json.Decoder) <-chan shimCommand {
	c := make(chan shimCommand)
	go func() {
		defer close(c)
		for {
			var o shimCommand
			if d.Decode(&o) != nil {
				return
			}
			c <- o
		}
	}()
	return c
}

// managedProcess is a command that runs, and when it must end.
type managedProcess struct {
	shimConfig
	now      func() time.Duration
	pgid     int
	stopping bool          // SIGTERM was sent for the lease's sake
	killAt   time.Duration // while stopping
	killed   bool
}

// nextAction is when to act, and whether with SIGKILL.
func (w *managedProcess) nextAction() (at time.Duration, kill bool) {
	last := w.Deadline - w.Kill
	if w.stopping {
		return min(w.killAt, last), true
	}
	return last - w.Stop, false
}

// stop asks the command to end for the lease's sake.
func (w *managedProcess) stop() {
	if w.stopping {
		return
	}
	w.stopping, w.killAt = true, w.now()+w.Stop
	signalGroup(w.pgid, syscall.SIGTERM)
	signalGroup(w.pgid, syscall.SIGCONT) // one that is stopped could not end
}

// wait returns when the command has ended. orphan says that the parent went first.
func (w *managedProcess) wait(ended <-chan struct{}, orders <-chan shimCommand) (orphan bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return orphan
		case o, ok := <-orders:
			switch {
			case !ok:
				orphan, orders = true, nil
				w.stop()
			case o.Stop:
				w.stop()
			case o.Signal != 0:
				signalGroup(w.pgid, o.Signal)
			default:
				w.Deadline = max(w.Deadline, o.Deadline)
			}
		case <-timer.C:
		}
		timer.Reset(w.runDueAction())
	}
}

// runDueAction does what is due and gives the time until it should look again.
func (w *managedProcess) runDueAction() time.Duration {
	at, kill := w.nextAction()
	switch {
	case w.killed:
		return time.Hour
	case w.now() < at:
		return min(at-w.now(), suspendPollInterval)
	case kill:
		w.killed = true
		signalGroup(w.pgid, syscall.SIGKILL)
		return time.Hour
	}
	w.stop()
	return 0
}

// signalGroup signals all processes of a group; there may be none left.
func signalGroup(group int, sig syscall.Signal) { _ = syscall.Kill(-group, sig) }

// startCode is the exit code for a command that cannot be started.
func startCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return exitNotFound
	}
	return exitNotExecutable
}

// exitStatus is the exit code, or 128 and the signal that ended it, as shells have it.
func exitStatus(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// run gives the role back, so that the next candidate need not wait for the TTL.
func (r roleRelease) run(a *app) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), releaseTimeout)
	defer cancel()
	if err := r.release(ctx); err != nil && !errors.Is(err, client.ErrSessionEnded) {
		fmt.Fprintf(a.stderr, "northstarctl: session %s ends by itself: %v\n", r.Session, err)
	}
}

func (r roleRelease) release(ctx context.Context) error {
	if r.Postgres != "" {
		return postgres.Release(ctx, postgres.Config{DSN: r.Postgres, Role: r.Role}, r.Session)
	}
	heir := &app{commands: commands{Endpoints: r.Endpoints, Token: r.Token, CA: r.CA, Cert: r.Cert, Key: r.Key, Timeout: r.Timeout}}
	c, err := heir.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.EndSession(ctx, r.Session)
}
