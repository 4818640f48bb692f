// Command northstarctl is the command line client of a NorthStar cluster, for operators and scripts.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"northstar/client"
	"northstar/cluster"
)

// Exit codes; the contract defines them.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNoLeader = 3
	exitRefused  = 4
	exitUnknown  = 5
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// globals are the flags of every command.
type globals struct {
	Endpoints []string      `env:"NORTHSTAR_ENDPOINTS" default:"127.0.0.1:7701" placeholder:"HOST:PORT" help:"Nodes of the cluster, host:port or URL; one reachable node is enough (${env})."`
	Token     string        `env:"NORTHSTAR_TOKEN" help:"Bearer token (${env})."`
	TokenFile string        `env:"NORTHSTAR_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the bearer token (${env})."`
	CA        string        `name:"ca" env:"NORTHSTAR_CA" type:"path" placeholder:"FILE" help:"CA certificate of the cluster, or the directory of its ca.crt; makes host:port mean https (${env})."`
	Cert      string        `env:"NORTHSTAR_CERT" type:"path" placeholder:"FILE" help:"This client's certificate (${env})."`
	Key       string        `env:"NORTHSTAR_KEY" type:"path" placeholder:"FILE" help:"The key of --cert (${env})."`
	Output    string        `short:"o" enum:"table,json" default:"table" help:"Output format: ${enum}."`
	Timeout   time.Duration `default:"10s" help:"Timeout of each request to the cluster."`
	Yes       bool          `short:"y" help:"Answer yes to questions."`
}

// commands has every command and flag, for kong and for completion.
type commands struct {
	globals
	Status     statusCmd     `cmd:"" help:"Show the cluster (leader, quorum, members) or one node's own view."`
	Leader     leaderCmd     `cmd:"" help:"Show the leader."`
	Members    membersCmd    `cmd:"" help:"Show and change the members."`
	Transfer   transferCmd   `cmd:"" help:"Move leadership to another node."`
	Failover   failoverCmd   `cmd:"" help:"Move leadership, also from a hung or crashed leader."`
	Drain      drainCmd      `cmd:"" help:"Drain a node: move leadership and attached clients away before maintenance."`
	Undrain    undrainCmd    `cmd:"" help:"End a drain."`
	Recover    recoverCmd    `cmd:"" help:"Recover from a permanent loss of quorum: data that the survivors never received is lost."`
	Auto       autoCmd       `cmd:"" name:"auto-failover" help:"Pause and resume automatic failover."`
	SplitBrain splitBrainCmd `cmd:"" name:"splitbrain" help:"Check for split brain; exit code 1 if found."`
	Elections  electionsCmd  `cmd:"" help:"Show past elections, newest first."`
	Events     eventsCmd     `cmd:"" help:"Show events of the nodes."`
	Audit      auditCmd      `cmd:"" help:"Show the audit log."`
	KV         kvCmd         `cmd:"" name:"kv" help:"Read, write and watch keys."`
	Role       roleCmd       `cmd:"" help:"Show, campaign for and watch named roles."`
	Run        runCmd        `cmd:"" help:"Run a command while this process holds a role."`
	Shim       shimCmd       `cmd:"" hidden:"" help:"Internal: supervisor shim of run."`
	Nodes      nodesCmd      `cmd:"" help:"Show the registered application nodes."`
	Snapshot   snapshotCmd   `cmd:"" help:"Back up and restore the cluster's state."`
	TLS        tlsCmd        `cmd:"" name:"tls" help:"Make certificates."`
	Tokens     tokenCmd      `cmd:"" name:"token" help:"Make API tokens."`
	Completion completionCmd `cmd:"" help:"Print the completion script of a shell."`
	Version    versionCmd    `cmd:"" help:"Show the version of this program."`
}

// app is the environment of a command.
type app struct {
	commands
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	model          *kong.Application
}

// run runs the program and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}
	exit := -1
	parser, err := kong.New(&a.commands,
		kong.Name("northstarctl"),
		kong.Description(
			"The client of a NorthStar cluster. Exit codes: 0 done, 1 failed, 2 usage, 3 no leader, 4 refused, 5 outcome "+
				"unknown.",
		),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(func(code int) { exit = code }), // after --help
		kong.TypeMapper(reflect.TypeFor[cluster.NodeID](), kong.MapperFunc(decodeNodeID)),
	)
	if err != nil {
		return a.report(err)
	}
	a.model = parser.Model
	cmd, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		return a.report(&usageError{err})
	}
	return a.report(cmd.Run(a))
}

func decodeNodeID(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("ID", &s); err != nil {
		return err
	}
	id, err := cluster.ParseNodeID(s)
	target.SetString(string(id))
	return err
}

// usageError is an invalid command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// report prints an error as one line and returns the exit code.
func (a *app) report(err error) int {
	var ended *commandError
	if err == nil || (errors.As(err, &ended) && ended.text == "") {
		return exitCode(err)
	}
	line := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	fmt.Fprintln(a.stderr, "northstarctl: "+line)
	return exitCode(err)
}

func exitCode(err error) int {
	var usage *usageError
	var ended *commandError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &ended):
		return ended.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, client.ErrOutcomeUnknown):
		return exitUnknown
	case cluster.IsCode(err, cluster.CodeUnauthenticated), cluster.IsCode(err, cluster.CodeForbidden):
		return exitRefused
	case errors.Is(err, client.ErrNoLeader):
		return exitNoLeader
	}
	return exitFailed
}

// caFile returns the path of the CA certificate; ca may be its directory.
func caFile(ca string) string {
	if st, err := os.Stat(ca); err == nil && st.IsDir() {
		return filepath.Join(ca, "ca.crt")
	}
	return ca
}

// bearer returns the token. A list of processes shows flags, but not files. NORTHSTAR_TOKEN comes before a file.
func (a *globals) bearer() (string, error) {
	if a.Token != "" || a.TokenFile == "" {
		return a.Token, nil
	}
	data, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return "", usagef("--token-file: %v", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// connect returns a client of the cluster that the flags name. The caller closes it.
func (a *globals) connect() (*client.Client, error) {
	if a.Timeout <= 0 {
		return nil, usagef("--timeout: must be more than 0")
	}
	bearer, err := a.bearer()
	if err != nil {
		return nil, err
	}
	cfg := client.Config{
		Endpoints: a.Endpoints, Token: bearer, Timeout: a.Timeout, UserAgent: "northstarctl/" + version,
	}
	if a.CA != "" || a.Cert != "" || a.Key != "" {
		tls, err := client.LoadTLS(caFile(a.CA), a.Cert, a.Key)
		if err != nil {
			return nil, &usageError{err}
		}
		cfg.TLS = tls
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}

// callFunc is a command's call to the cluster: a method of the client, whose further arguments with and with2 bind.
type callFunc[T any] func(c *client.Client, ctx context.Context) (T, error)

func with[A, T any](method func(*client.Client, context.Context, A) (T, error), arg A) callFunc[T] {
	return func(c *client.Client, ctx context.Context) (T, error) { return method(c, ctx, arg) }
}

func with2[A, B, T any](method func(*client.Client, context.Context, A, B) (T, error), a A, b B) callFunc[T] {
	return func(c *client.Client, ctx context.Context) (T, error) { return method(c, ctx, a, b) }
}

// request makes one call to the cluster, with a progress line if it takes long.
func request[T any](a *app, what string, call callFunc[T]) (T, error) {
	c, err := a.connect()
	if err != nil {
		var none T
		return none, err
	}
	defer c.Close()
	defer a.progress(what)()
	return call(c, a.ctx)
}

// show makes one call to the cluster and prints its result: as JSON, or by text.
func show[T any](a *app, what string, call callFunc[T], text func(T) error) error {
	v, err := request(a, what, call)
	if err != nil {
		return err
	}
	return a.printResult(v, func() error { return text(v) })
}

// list is show for a table of items.
func list[T any](a *app, what string, call callFunc[[]T], header []string, row func(T) []any) error {
	return show(a, what, call, func(items []T) error { return tableOf(a, header, items, row) })
}

// allPages returns a call that reads a list page by page. page returns the items after an item, and the item that
// the next page starts after; "" at the end.
func allPages[T any](
	page func(c *client.Client, ctx context.Context, after string) (items []T, next string, err error),
) callFunc[[]T] {
	return func(c *client.Client, ctx context.Context) ([]T, error) {
		all := []T{} // [] as JSON, not null
		for after := ""; ; {
			items, next, err := page(c, ctx, after)
			if err != nil {
				return nil, err
			}
			all = append(all, items...)
			if after = next; after == "" {
				return all, nil
			}
		}
	}
}

// follow prints what stream yields until Ctrl-C. line returns the JSON form and the text of an item; nil skips it.
func follow[T any](a *app, stream func(*client.Client) iter.Seq2[T, error], line func(T) (v any, text string)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for item, err := range stream(c) {
		if err != nil {
			return a.untilInterrupted(err)
		}
		v, text := line(item)
		switch {
		case v == nil:
			continue
		case a.Output == "json":
			err = a.printJSONLine(v)
		default:
			err = a.printf("%s\n", strings.TrimRight(text, " "))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// version is the version of this build. The linker sets it (-X main.version=v1.2.3).
var version = "devel"

type versionCmd struct{}

func (*versionCmd) Run(a *app) error {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Go      string `json:"go"`
	}{version, "unknown", runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return a.printResult(v, func() error {
		return a.printf("northstarctl %s\ncommit %s\n%s\n", v.Version, v.Commit, v.Go)
	})
}
