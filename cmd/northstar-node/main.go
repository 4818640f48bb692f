// Command northstar-node is the server. It runs one node, or a demo cluster on this machine.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/hashicorp/go-hclog"

	"northstar/node"
	"northstar/telemetry"
)

// Exit codes; the contract defines them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// signalDebounce is how long a repeated signal counts as the first one. timeout(1) and shells signal a process and
// its group, so that it arrives twice.
const signalDebounce = 100 * time.Millisecond

func main() {
	crashBySignal()
	// The first signal requests a clean stop, the second one an immediate exit.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stop, cancelStop := context.WithCancel(context.Background())
	now, cancelNow := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancelStop()
		for same := time.Now().Add(signalDebounce); ; {
			<-signals
			if time.Now().After(same) {
				cancelNow()
			}
		}
	}()
	os.Exit(run(stop, now, os.Args[1:], os.Stdout, os.Stderr))
}

// commandEnv is the environment of a command.
type commandEnv struct {
	graceful, immediate context.Context // cancelled by the first and the second signal
	stdout, stderr      io.Writer
}

type commands struct {
	Run         runCommand     `cmd:"" help:"Run one node until SIGTERM or SIGINT. Each flag --some-key can also be set as NORTHSTAR_SOME_KEY in the environment, or in the configuration file."`
	Dev         devCommand     `cmd:"" help:"Run a demo cluster on this machine, each node in its own process; Ctrl-C ends it."`
	CheckConfig checkCommand   `cmd:"" name:"check-config" help:"List every problem of a configuration."`
	Recover     recoverCommand `cmd:"" help:"Recover a stopped node's data directory after a permanent loss of quorum; without --confirm, show its contents."`
	Version     versionCommand `cmd:"" help:"Show the versions of this program, of Go and of the Raft library."`
}

// usageError is an invalid command line or configuration.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// run runs the program and returns the exit code. It never panics.
func run(stop, now context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(stderr, "northstar-node: internal error: %v (%s)\n", r, panicSite())
			code = exitFailed
		}
	}()
	var cli commands
	loader := node.NewLoader(os.LookupEnv)
	exit := -1
	parser, err := kong.New(&cli, append(loader.Options(),
		kong.Name("northstar-node"),
		kong.Description("A node of a NorthStar cluster."),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(func(code int) { exit = code }), // after --help
	)...)
	if err != nil {
		return report(stderr, err)
	}
	ctx, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		return report(stderr, &usageError{err})
	}
	return report(stderr, ctx.Run(&commandEnv{graceful: stop, immediate: now, stdout: stdout, stderr: stderr}, loader))
}

// report prints an error, one line for each of its parts, and returns the exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "northstar-node: "+strings.TrimRight(line, "\n"))
	}
	var usage *usageError
	var problem *node.Problem
	if errors.As(err, &usage) || errors.As(err, &problem) && !node.MayPass(err) {
		return exitUsage
	}
	return exitFailed
}

// panicSite returns where the current panic started.
func panicSite() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") || !more {
			return fmt.Sprintf("%s, %s:%d", f.Function, f.File, f.Line)
		}
	}
}

// endBySignal makes the next signal end this process, as that of a program that does not handle signals.
func endBySignal() { signal.Reset(os.Interrupt, syscall.SIGTERM) }

type checkCommand struct{ node.Flags }

func (c *checkCommand) Run(p *commandEnv, parsed *kong.Context, l *node.Loader) error {
	endBySignal()
	if problems := l.Check(parsed, &c.Flags, time.Now()); problems != nil {
		fmt.Fprintln(p.stdout, problems)
		return &usageError{errors.New("configuration is invalid")}
	}
	_, err := fmt.Fprintln(p.stdout, "configuration OK")
	return err
}

type versionCommand struct{}

func (versionCommand) Run(p *commandEnv) error {
	b := node.ReadBuild()
	_, err := fmt.Fprintf(p.stdout, "northstar-node %s\ncommit %s\ndate %s\n%s\nhashicorp/raft %s\n",
		b.Version, cmp.Or(b.Commit, "unknown"), cmp.Or(b.Date, "unknown"), b.Go, b.Raft)
	return err
}

type runCommand struct{ node.Flags }

// Run runs the node. The first signal drains and stops it. The second one exits immediately, which is safe: a
// node's data always survives a crash.
func (c *runCommand) Run(p *commandEnv, parsed *kong.Context, l *node.Loader) error {
	if err := l.Check(parsed, &c.Flags, time.Now()); err != nil && !node.MayPass(err) {
		return &usageError{err}
	} else if err != nil {
		return err
	}
	sink := telemetry.NewRaftSink()
	if err := telemetry.InstallRaftSink(sink); err != nil {
		return fmt.Errorf("collect the Raft library's metrics: %w", err)
	}
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "northstar", Output: p.stderr, Level: hclog.LevelFromString(c.Log.Level),
		JSONFormat: c.Log.Format == "json",
	})
	env := node.Env{Logger: logger, RaftMetrics: sink}
	return repeat(p.graceful, func() error { return c.runNode(p, env) })
}

// repeat runs a node again for as long as it asks for that. A node that asks for it while it is to stop has stopped.
func repeat(stop context.Context, run func() error) error {
	for {
		err := run()
		switch {
		case !errors.Is(err, node.ErrRestart):
			return err
		case stop.Err() != nil:
			return nil
		}
	}
}

// runNode runs the node until it ends or requests a restart.
func (c *runCommand) runNode(p *commandEnv, env node.Env) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		n, err := newNode(c.Config, env) // with a long log or a hung disk it takes long
		if err != nil {
			ended <- err
			return
		}
		go func() {
			select {
			case <-p.graceful.Done():
				n.Drain(ctx)
				cancel()
			case <-ctx.Done():
			}
		}()
		ended <- n.Run(ctx)
	}()
	select {
	case err := <-ended:
		return err
	case <-p.immediate.Done():
		return errors.New("forced exit on second signal")
	}
}

// newNode makes a node. A panic becomes an error, as run has it for the main goroutine.
func newNode(cfg node.Config, env node.Env) (n *node.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v (%s)", r, panicSite())
		}
	}()
	return node.New(cfg, env)
}
