package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"northstar/client"
	"northstar/client/postgres"
)

const (
	defaultStopTimeout = 2 * time.Second
	minRestartDelay    = time.Second
	maxRestartDelay    = 30 * time.Second
)

// forwardedSignals are forwarded to the command; terminatingSignals are those of them that end run.
var (
	forwardedSignals = []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH,
	}
	terminatingSignals = map[os.Signal]bool{
		syscall.SIGHUP: true, syscall.SIGINT: true, syscall.SIGQUIT: true, syscall.SIGTERM: true,
	}
)

type runCmd struct {
	Role          string        `required:"" help:"The role."`
	TakeoverDelay time.Duration `default:"1s" help:"Delay before taking over from a holder that crashed or lost its session."`
	TTL           time.Duration `name:"ttl" default:"10s" help:"Session TTL: how long the role stays held after this process stops renewing; at least 500ms."`
	StopTimeout   time.Duration `help:"Time between SIGTERM and SIGKILL when the role is lost; at most 3/10 of the TTL. Default: 2s or 3/10 of the TTL, if less."`
	Restart       string        `enum:"never,on-failure,always" default:"never" help:"When to restart CMD after it exits: ${enum}."`
	Postgres      string        `env:"NORTHSTAR_POSTGRES" placeholder:"DSN" help:"Elect with a PostgreSQL server instead of a NorthStar cluster (${env})."`
	LockKey       int64         `placeholder:"N" help:"With --postgres: key of the advisory lock, for example 0x464F52470001 of an application that is being moved; the same for all candidates. Default: from the role's name."`
	Eligible      bool          `default:"true" negatable:"" env:"NORTHSTAR_RUN_ELIGIBLE" help:"Whether this process may be elected. If not, it only waits for a signal: one unit file serves all machines (${env})."`
	Name          string        `help:"Name of the holder; default: host name and process ID."`
	Value         string        `empty:"" help:"Shown with the role while it is held."`
	Required      bool          `help:"Alert while no process holds the role (metric northstar_role_required); not with --postgres."`
	monitorFlags  `embed:""`
	Cmd           []string `arg:"" name:"cmd" passthrough:"" help:"The command and its arguments, after --."`
}

func (r *runCmd) Help() string {
	return "run starts CMD when this process is elected, in its own process group, with NORTHSTAR_ROLE, " +
		"NORTHSTAR_FENCING_TOKEN and NORTHSTAR_SESSION in its environment. " +
		"When the role is lost, run stops CMD with SIGTERM and then SIGKILL, before another process can be elected. " +
		"It starts CMD again when this process is elected again. Signals are forwarded to CMD. " +
		"When CMD exits, run releases the role and exits with CMD's code: 128 plus the signal that killed it, " +
		"127 if it is not found, 126 if it cannot be started."
}

// check validates the flags and sets defaults that depend on other flags.
func (r *runCmd) check() error {
	switch {
	case len(r.Cmd) == 0:
	case r.Cmd[0] == "--":
		r.Cmd = r.Cmd[1:]
	case strings.HasPrefix(r.Cmd[0], "-"):
		return usagef("unknown flag %s: the command comes after --", r.Cmd[0])
	}
	limit := r.TTL * 3 / 10
	switch {
	case runtime.GOOS != "linux":
		return errors.New("run: supported on Linux only (needs CLOCK_BOOTTIME)")
	case len(r.Cmd) == 0 || r.Cmd[0] == "":
		return usagef("<cmd>: required after --")
	case r.StopTimeout < 0 || r.StopTimeout > limit:
		return usagef("--stop-timeout: must be at most 3/10 of --ttl, %v (got %v)", limit, r.StopTimeout)
	case r.Required && r.Postgres != "":
		return usagef("--required: not with --postgres, where no node watches the role")
	case r.LockKey != 0 && r.Postgres == "":
		return usagef("--lock-key: needs --postgres")
	case r.TakeoverDelay < 0:
		return usagef("--takeover-delay: must be 0 or more (got %v)", r.TakeoverDelay)
	case r.StopTimeout == 0:
		r.StopTimeout = min(defaultStopTimeout, limit)
	}
	r.Name = cmp.Or(r.Name, client.ProcessName())
	return r.monitorFlags.check()
}

func (r *runCmd) Run(a *app) error {
	if err := r.check(); err != nil {
		return err
	}
	path, err := exec.LookPath(r.Cmd[0])
	if err != nil {
		return &commandError{startCode(err), err.Error()}
	}
	// Only this function reads these signals; main's context ends with the first one.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwardedSignals...)
	defer signal.Stop(signals)
	if a.ctx.Err() != nil { // a signal came before
		return nil
	}
	interrupted := make(chan struct{}) // also by a signal that main's context has not seen yet
	defer context.AfterFunc(a.ctx, func() {
		if errors.Is(context.Cause(a.ctx), context.Canceled) { // not: no node can be reached
			close(interrupted)
		}
	})()
	a.own.becomeSubreaper()
	defer a.own.reapOrphans()()
	elector, closeElector, err := r.elector(a)
	if err != nil {
		return err
	}
	defer closeElector()
	s := &supervisor{
		runCmd: r, a: a, path: path, signals: signals, interrupted: interrupted, clock: client.NewDeadline(nil).Now,
	}
	monitored, stopMetrics, err := r.monitor(a, elector, &s.checkCmd)
	if err != nil {
		return err
	}
	defer stopMetrics()
	s.elector = monitored
	err = s.run(context.WithoutCancel(a.ctx))
	if outlived := (*outlivedError)(nil); errors.As(err, &outlived) {
		// Neither released nor revocation confirmed: no other candidate is elected before the session's TTL has passed.
		// After failed checks, the elector may release the role when the lease ends.
		return fmt.Errorf("%w (role %s is free when the lease expires)", err, r.Role)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), releaseTimeout)
	defer cancel()
	defer s.checkCmd.awaitEnd()
	if e := monitored.Close(ctx); e != nil {
		fmt.Fprintf(a.stderr, "northstarctl: cannot release role %s: %v (it is free when the lease expires)\n", r.Role,
			e)
	}
	return err
}

// elector returns the candidate, and a function that closes what it uses.
func (r *runCmd) elector(a *app) (e client.Elector, closeElector func(), err error) {
	if r.Postgres != "" {
		p, err := postgres.New(postgres.Config{
			DSN: r.Postgres, Role: r.Role, Name: r.Name, Value: r.Value, TTL: r.TTL, TakeoverDelay: r.TakeoverDelay,
			LockKey: r.LockKey,
		})
		if err != nil {
			return nil, nil, &usageError{err}
		}
		return p, func() {}, nil
	}
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	k, err := c.NewCandidate(client.CandidateConfig{
		Role: r.Role, Value: r.Value, TakeoverDelay: r.TakeoverDelay, Required: r.Required,
		Session: client.SessionConfig{Name: r.Name, TTL: r.TTL},
	})
	if err != nil {
		c.Close()
		return nil, nil, &usageError{err}
	}
	return k, c.Close, nil
}

// supervisor campaigns, and runs the command while this process holds the role.
type supervisor struct {
	*runCmd
	a           *app
	path        string
	elector     client.Elector
	signals     <-chan os.Signal
	interrupted <-chan struct{}      // closed after a signal that ends run, also one from before signals were read
	clock       func() time.Duration // the clock of leases
	terminating bool                 // a signal has asked run to end
	checkCmd    checkCommand
}

// run returns when the command has exited, or a signal came while it was not running.
func (s *supervisor) run(ctx context.Context) error {
	for {
		l, err := s.campaign(ctx)
		if l == nil || err != nil {
			return err
		}
		fmt.Fprintf(s.a.stderr, "northstarctl: elected for role %s, token %d\n", s.Role, l.Token)
		over, err := s.runTenure(l)
		if over || s.terminating {
			return err
		}
		fmt.Fprintf(s.a.stderr, "northstarctl: role %s with token %d lost: %v\n", s.Role, l.Token, l.Cause())
	}
}

// campaign returns nil if a signal ended it.
func (s *supervisor) campaign(ctx context.Context) (l *client.Leadership, err error) {
	if !s.Eligible {
		fmt.Fprintf(s.a.stderr, "northstarctl: not eligible for role %s: waiting for a signal\n", s.Role)
		s.awaitSignal()
		return nil, nil
	}
	defer s.a.progress("waiting for role " + s.Role)()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); l, err = s.elector.Campaign(ctx) }()
	hint := time.After(time.Second)
	leave := func() (*client.Leadership, error) { cancel(); <-ended; return nil, nil }
	for {
		select {
		case <-hint:
			if err := s.a.reach.unreachable(); err != nil {
				fmt.Fprintf(s.a.stderr, "northstarctl: %v; trying again\n", err)
			}
		case <-ended:
			return l, err
		case <-s.interrupted:
			return leave()
		case sig := <-s.signals:
			if terminatingSignals[sig] {
				return leave()
			}
		}
	}
}

// awaitSignal returns after a signal that ends run.
func (s *supervisor) awaitSignal() {
	for {
		select {
		case sig := <-s.signals:
			if terminatingSignals[sig] {
				return
			}
		case <-s.interrupted:
			return
		}
	}
}

// runTenure runs the command during one tenure and restarts it as configured. over reports that run must end.
func (s *supervisor) runTenure(l *client.Leadership) (over bool, err error) {
	for pause := minRestartDelay; ; pause = min(2*pause, maxRestartDelay) {
		began := time.Now()
		rep, err := s.runOnce(l)
		switch {
		case err != nil:
			return true, err
		case rep.Stopped && s.terminating:
			return true, outcome(rep)
		case rep.Stopped:
			l.End(client.ErrLeaseLapsed) // the shim may have noticed it first
			return false, nil
		case s.terminating, rep.Error != "", s.Restart == "never", s.Restart == "on-failure" && rep.Code == 0:
			return true, outcome(rep)
		}
		if time.Since(began) > maxRestartDelay {
			pause = minRestartDelay
		}
		wait := pause - rand.N(pause/10)
		fmt.Fprintf(s.a.stderr, "northstarctl: %s exited with code %d, restarting in %v\n", s.Cmd[0], rep.Code,
			wait.Round(time.Millisecond))
		if !s.backoff(l, wait) {
			return s.terminating, outcome(rep)
		}
	}
}

func outcome(rep exitReport) error {
	if rep.Code == 0 {
		return nil
	}
	return &commandError{rep.Code, rep.Error}
}

// backoff waits for d. It returns false if the tenure or run ends first.
func (s *supervisor) backoff(l *client.Leadership, d time.Duration) bool {
	over := time.After(d)
	for {
		select {
		case <-over:
			return true
		case <-l.Done():
			return false
		case sig := <-s.signals:
			if terminatingSignals[sig] {
				s.terminating = true
				return false
			}
		}
	}
}
