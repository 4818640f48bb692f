// Command northstarctl is the command line client of a NorthStar cluster, for operators and scripts.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"northstar/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// globals are the flags of every command.
type globals struct {
	Endpoints   []string      `env:"NORTHSTAR_ENDPOINTS" default:"127.0.0.1:7701" placeholder:"HOST:PORT" help:"Nodes of the cluster, host:port or URL; one reachable node is enough (${env})."`
	Token       string        `env:"NORTHSTAR_TOKEN" help:"Bearer token (${env})."`
	TokenFile   string        `env:"NORTHSTAR_TOKEN_FILE" type:"path" placeholder:"FILE" help:"File with the bearer token (${env})."`
	CA          string        `name:"ca" env:"NORTHSTAR_CA" type:"path" placeholder:"FILE" help:"CA certificate of the cluster, or the directory of its ca.crt; makes host:port mean https (${env})."`
	Cert        string        `env:"NORTHSTAR_CERT" type:"path" placeholder:"FILE" help:"This client's certificate (${env})."`
	Key         string        `env:"NORTHSTAR_KEY" type:"path" placeholder:"FILE" help:"The key of --cert (${env})."`
	UseContext  string        `name:"context" env:"NORTHSTAR_CONTEXT" placeholder:"NAME" help:"Named context with endpoints and credentials, as context set makes it (${env})."`
	ContextFile string        `env:"NORTHSTAR_CONTEXT_FILE" type:"path" placeholder:"FILE" help:"File of the contexts; default: northstar/contexts.toml in the user's configuration directory (${env})."`
	Output      string        `short:"o" enum:"table,json,yaml" default:"table" help:"Output format: ${enum}."`
	Timeout     time.Duration `default:"10s" help:"Timeout of each request to the cluster."`
	Yes         bool          `short:"y" help:"Answer yes to questions."`

	ShowVersion kong.VersionFlag `name:"version" json:"-" help:"Show the version of this program."`
}

// commands has every command and flag, for kong and for completion.
type commands struct {
	globals
	Status     statusCmd     `cmd:"" help:"Show the cluster (leader, quorum, members) or one node's own view."`
	Why        whyCmd        `cmd:"" help:"Explain why a node leads, why there is no leader, or why a call was refused."`
	Leader     leaderCmd     `cmd:"" help:"Show the leader."`
	Members    membersCmd    `cmd:"" help:"Show and change the members."`
	Transfer   transferCmd   `cmd:"" help:"Move leadership to another node."`
	Failover   failoverCmd   `cmd:"" help:"Move leadership, also from a hung or crashed leader."`
	Drain      drainCmd      `cmd:"" help:"Drain a node: move leadership and attached clients away before maintenance."`
	Undrain    undrainCmd    `cmd:"" help:"End a drain."`
	Recover    recoverCmd    `cmd:"" help:"Recover from a permanent loss of quorum: data that the survivors never received is lost."`
	Auto       autoCmd       `cmd:"" name:"auto-failover" help:"Pause and resume automatic failover."`
	SplitBrain splitBrainCmd `cmd:"" name:"splitbrain" help:"Check for split brain; exit code 1 if found."`
	Elections  electionsCmd  `cmd:"" help:"Show and explain past elections."`
	Events     eventsCmd     `cmd:"" help:"Show events of the nodes."`
	Audit      auditCmd      `cmd:"" help:"Show the audit log: the calls of operators, unless asked for more."`
	KV         kvCmd         `cmd:"" name:"kv" help:"Read, write and watch keys."`
	Role       roleCmd       `cmd:"" help:"Show, campaign for, watch and hand over named roles."`
	Sessions   sessionsCmd   `cmd:"" help:"Show and end sessions."`
	Run        runCmd        `cmd:"" help:"Run a command while this process holds a role."`
	Shim       shimCmd       `cmd:"" hidden:"" help:"Internal: supervisor shim of run."`
	Nodes      nodesCmd      `cmd:"" help:"Show, drain and remove the registered application nodes."`
	Snapshot   snapshotCmd   `cmd:"" help:"Back up and restore the cluster's state."`
	TLS        tlsCmd        `cmd:"" name:"tls" help:"Make certificates."`
	Tokens     tokenCmd      `cmd:"" name:"token" help:"Make API tokens."`
	Context    contextCmd    `cmd:"" name:"context" help:"Named sets of endpoints and credentials, in a file of this user."`
	Completion completionCmd `cmd:"" help:"Print the completion script of a shell."`
	Help       helpCmd       `cmd:"" help:"Show the help of a command."`
	Version    versionCmd    `cmd:"" help:"Show the version of this program."`
}

// app is the environment of a command.
type app struct {
	commands
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	model          *kong.Application
	reach          reachability
	leaseClock     func() time.Duration // of holders' own deadlines; nil: that of package client
	own            ownChildren
	onLine, given  map[string]bool // flags on the command line; those and the ones of the environment
}

// run runs the program and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	a.ctx, a.reach.giveUp = context.WithCancelCause(ctx)
	defer a.reach.giveUp(nil)
	exit := -1
	parser, err := kong.New(&a.commands,
		kong.Name("northstarctl"),
		kong.Description(
			"The client of a NorthStar cluster. Exit codes: 0 done, 1 failed, 2 usage, 3 no leader, 4 refused, 5 outcome "+
				"unknown, 6 not found, 7 condition not met, 8 no endpoint reachable.",
		),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(func(code int) { exit = code }), // after --help and --version
		kong.Vars{"version": "northstarctl " + version},
		kong.TypeMapper(reflect.TypeFor[cluster.NodeID](), kong.MapperFunc(decodeNodeID)),
	)
	if err != nil {
		return a.report(err)
	}
	a.model = parser.Model
	ignoreEmptyVariables(parser.Model.Node)
	refuseEmptyValues(parser.Model.Node)
	addExamples(parser.Model.Node, "")
	cmd, err := parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		return a.report(&usageError{withHint(err)})
	}
	a.onLine, a.given = explicitFlags(cmd)
	return a.report(cmd.Run(a))
}

// ignoreEmptyVariables makes environment variables that are set to nothing count as unset.
func ignoreEmptyVariables(n *kong.Node) {
	for _, f := range n.Flags {
		f.Tag.Envs = slices.DeleteFunc(f.Tag.Envs, func(name string) bool { return os.Getenv(name) == "" })
	}
	for _, child := range n.Children {
		ignoreEmptyVariables(child)
	}
}

// refuseEmptyValues makes it an error to give a flag without a value, unless its field has the tag empty. Such a value
// is mostly that of a variable that a script has not set: without its condition, a command would do more than asked.
func refuseEmptyValues(n *kong.Node) {
	for _, f := range n.Flags {
		if !f.IsBool() && !f.Tag.Has("empty") {
			f.Mapper = notEmpty(f.Mapper)
		}
	}
	for _, child := range n.Children {
		refuseEmptyValues(child)
	}
}

// notEmpty returns a mapper that refuses an empty value before m, which makes an empty path the current directory.
func notEmpty(m kong.Mapper) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		if ctx.Scan.Peek().Value == "" {
			return errors.New("must not be empty")
		}
		return m.Decode(ctx, target)
	}
}

// explicitFlags returns the names of the flags that the command line sets, and of those that it or the environment
// sets.
func explicitFlags(cmd *kong.Context) (onLine, given map[string]bool) {
	onLine, given = map[string]bool{}, map[string]bool{}
	for _, p := range cmd.Path {
		if p.Flag != nil {
			onLine[p.Flag.Name], given[p.Flag.Name] = true, true
		}
	}
	for _, f := range cmd.Model.Flags {
		if len(f.Tag.Envs) > 0 {
			given[f.Name] = true
		}
	}
	return onLine, given
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
