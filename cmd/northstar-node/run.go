package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"

	"northstar/node"
	"northstar/telemetry"
)

type runCommand struct {
	node.Flags
	problems error
}

// run runs the node. The first signal drains and stops it. The second one exits immediately, which is safe: a
// node's data always survives a crash.
func (c *runCommand) run(p *commandEnv) error {
	if c.problems != nil {
		return &usageError{c.problems}
	}
	sink := telemetry.NewRaftSink()
	if err := telemetry.InstallRaftSink(sink); err != nil {
		return fmt.Errorf("collect the Raft library's metrics: %w", err)
	}
	env := node.Env{Logger: newLogger(c.Log, p.stderr), RaftMetrics: sink}
	err := c.runNode(p, env)
	for errors.Is(err, node.ErrRestart) && p.graceful.Err() == nil {
		err = c.runNode(p, env)
	}
	return err
}

// runNode runs the node until it ends or requests a restart.
func (c *runCommand) runNode(p *commandEnv, env node.Env) error {
	n, err := node.New(c.Config, env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	go func() {
		select {
		case <-p.graceful.Done():
			n.Drain(ctx)
			cancel()
		case <-ctx.Done():
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-p.immediate.Done():
		return errors.New("forced exit on second signal")
	}
}

func newLogger(cfg node.LogConfig, w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "northstar", Output: w, Level: hclog.LevelFromString(cfg.Level), JSONFormat: cfg.Format == "json",
	})
}
