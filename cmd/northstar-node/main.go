// Command northstar-node is the server: it runs one node, or a whole cluster on
// this machine for trying things out.
package main

import (
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

	"northstar/node"
)

// Exit codes of the contract.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// signalDebounce is for how long another signal counts as the first one: timeout(1)
// and shells signal a process and its group, so that it comes twice.
const signalDebounce = 100 * time.Millisecond

func main() {
	// The first signal asks for a clean stop, the second for one at once.
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

// commandEnv is what a command may use of the world.
type commandEnv struct {
	graceful, immediate context.Context // ended by the first and the second signal
	stdout, stderr      io.Writer
}

type command interface {
	run(p *commandEnv) error
}

type commands struct {
	Run         runCommand     `cmd:"" help:"Run one node until SIGTERM or SIGINT. Each flag --some-key may also be given as NORTHSTAR_SOME_KEY in the environment, or in the file."`
	Dev         devCommand     `cmd:"" help:"Run a whole cluster on this machine, each node a process of its own; Ctrl-C ends it."`
	CheckConfig checkCommand   `cmd:"" name:"check-config" help:"List every problem of a configuration."`
	Recover     recoverCommand `cmd:"" help:"Recover a stopped node's data directory after a quorum was lost for good; without --confirm, show what it holds."`
	Version     versionCommand `cmd:"" help:"Show the versions of this program, of Go and of the Raft library."`
}

// usageError is bad flags or a bad configuration.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run is the program. It returns the exit code and never panics.
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
	var cmd command
	switch ctx.Command() {
	case "run":
		cmd, cli.Run.problems = &cli.Run, loader.Check(ctx, &cli.Run.Flags, time.Now())
	case "check-config":
		cmd, cli.CheckConfig.problems = &cli.CheckConfig, loader.Check(ctx, &cli.CheckConfig.Flags, time.Now())
	case "dev":
		cmd = &cli.Dev
	case "recover":
		cmd = &cli.Recover
	default:
		cmd = &cli.Version
	}
	return report(stderr, cmd.run(&commandEnv{graceful: stop, immediate: now, stdout: stdout, stderr: stderr}))
}

// report prints an error, one line for each of its parts, and gives the exit
// code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "northstar-node: "+strings.TrimRight(line, "\n"))
	}
	var usage *usageError
	var problem *node.Problem
	if errors.As(err, &usage) || errors.As(err, &problem) {
		return exitUsage
	}
	return exitFailed
}

// panicSite is where the panic that is being recovered began.
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
