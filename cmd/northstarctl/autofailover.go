package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
)

type autoCmd struct {
	Pause  autoPauseCmd  `cmd:"" help:"No node stands for election by itself until this is ended."`
	Resume autoResumeCmd `cmd:"" help:"A failed leader is replaced automatically again."`
	Status autoStatusCmd `cmd:"" help:"Is it paused?"`
}

type autoPauseCmd struct {
	For    time.Duration `name:"for" placeholder:"DURATION" help:"The pause ends by itself after this long; without it, it lasts until it is ended."`
	Reason string        `help:"Why, for the record."`
}

func (p *autoPauseCmd) Run(a *app) error {
	off := false
	body := apiv1.AutoFailover{Enabled: &off, Reason: p.Reason}
	switch {
	case p.For < 0 || p.For > 0 && p.For < time.Millisecond:
		return usagef("--for %v: want at least 1ms", p.For)
	case p.For > 0:
		ttl := p.For.Milliseconds()
		body.TTLMS = &ttl
	}
	return a.setAutoFailover("pausing automatic failover", body)
}

type autoResumeCmd struct {
	Reason string `help:"Why, for the record."`
}

func (r *autoResumeCmd) Run(a *app) error {
	on := true
	return a.setAutoFailover("resuming automatic failover", apiv1.AutoFailover{Enabled: &on, Reason: r.Reason})
}

func (a *app) setAutoFailover(what string, body apiv1.AutoFailover) error {
	set, err := request(a, what, func(ctx context.Context, c *client.Client) (apiv1.AutoFailoverState, error) {
		return c.SetAutoFailover(ctx, body)
	})
	if err != nil {
		return err
	}
	return a.printAutoFailover(set)
}

type autoStatusCmd struct{}

func (*autoStatusCmd) Run(a *app) error {
	set, err := request(a, "asking about automatic failover", func(ctx context.Context, c *client.Client) (apiv1.AutoFailoverState, error) {
		return c.AutoFailover(ctx)
	})
	if err != nil {
		return err
	}
	return a.printAutoFailover(set)
}

func (a *app) printAutoFailover(set apiv1.AutoFailoverState) error {
	return a.printResult(set, func() error {
		line := a.colour(text.FgGreen, "automatic failover is on")
		if !set.Enabled {
			line = a.colour(text.FgYellow, "automatic failover is paused")
			if set.PausedUntil != nil {
				line += ", until " + set.PausedUntil.UTC().Format(timeForm)
			}
		}
		if set.Operator != "" {
			line += fmt.Sprintf(" (by %s: %s)", set.Operator, orDash(set.Reason))
		}
		_, err := fmt.Fprintln(a.stdout, line)
		return err
	})
}
