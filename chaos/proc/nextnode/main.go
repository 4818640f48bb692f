//go:build northstar_next

// Command nextnode is a node of the next command version: while it leads it proposes commands that only such nodes
// apply. It exists to test rolling upgrades with two real programs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/node"
	"northstar/state"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nextnode:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "run" {
		args = args[1:]
	}
	cfg, err := node.Load(args, os.LookupEnv)
	if err != nil {
		return err
	}
	n, err := node.New(*cfg,
		node.Env{Logger: hclog.New(&hclog.LoggerOptions{Name: "northstar", Output: os.Stderr, Level: hclog.Warn})})
	if err != nil {
		return err
	}
	n.Consensus().AddLeaderTask(func(ctx context.Context, _ uint64) { propose(ctx, n) })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return n.Run(ctx)
}

// propose proposes commands and logs each change of their result.
func propose(ctx context.Context, n *node.Node) {
	said := ""
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		say := "note: applied"
		note := state.Command{Kind: state.KindNote}
		note.Note = &state.Note{Text: "x"}
		if r, err := n.Consensus().Propose(ctx, note); err != nil {
			say = "note: refused: " + err.Error()
		} else if r.Err != nil {
			say = "note: " + r.Err.Error()
		}
		if say != said {
			said = say
			fmt.Fprintln(os.Stderr, say)
		}
	}
}
