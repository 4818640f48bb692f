package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
)

type autoCmd struct {
	Pause  autoPauseCmd  `cmd:"" help:"Disable automatic elections until resumed."`
	Resume autoResumeCmd `cmd:"" help:"Enable automatic elections again."`
	Status autoStatusCmd `cmd:"" help:"Show whether automatic failover is paused."`
}

type autoPauseCmd struct {
	For    time.Duration `name:"for" placeholder:"DURATION" help:"Resume automatically after this time; default: never."`
	Reason string        `help:"Reason, for the audit log."`
}

func (p *autoPauseCmd) Run(a *app) error {
	off := false
	body := apiv1.AutoFailover{Enabled: &off, Reason: p.Reason}
	switch {
	case p.For < 0 || p.For > 0 && p.For < time.Millisecond:
		return usagef("--for: must be at least 1ms (got %v)", p.For)
	case p.For > 0:
		ttl := p.For.Milliseconds()
		body.TTLMS = &ttl
	}
	return a.setAutoFailover("pausing automatic failover", body)
}

type autoResumeCmd struct {
	Reason string `help:"Reason, for the audit log."`
}

func (r *autoResumeCmd) Run(a *app) error {
	on := true
	return a.setAutoFailover("resuming automatic failover", apiv1.AutoFailover{Enabled: &on, Reason: r.Reason})
}

func (a *app) setAutoFailover(what string, body apiv1.AutoFailover) error {
	return show(a, what, with((*client.Client).SetAutoFailover, body), a.printAutoFailover)
}

type autoStatusCmd struct{}

func (*autoStatusCmd) Run(a *app) error {
	return show(a, "asking about automatic failover", (*client.Client).AutoFailover, a.printAutoFailover)
}

func (a *app) printAutoFailover(set apiv1.AutoFailoverState) error {
	line := a.colour(text.FgGreen, "automatic failover is on")
	if !set.Enabled {
		line = a.colour(text.FgYellow, "automatic failover is paused")
		if set.PausedUntil != nil {
			line += ", until " + formatTime(set.PausedUntil)
		}
	}
	if set.Operator != "" {
		line += fmt.Sprintf(" (by %s: %s)", set.Operator, orDash(set.Reason))
	}
	return a.printf("%s\n", line)
}
