package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

// leadershipFlags are the flags of every command that moves leadership.
type leadershipFlags struct {
	To cluster.NodeID `placeholder:"ID" help:"The new leader; default: the voter with the best rank."`
	changeFlags
}

type transferCmd struct {
	leadershipFlags
	ToZone string        `placeholder:"ZONE" help:"Only to a node in this zone, as members ls shows it."`
	Wait   time.Duration `default:"30s" help:"Give up after this long, at most 60s."`
}

func (t *transferCmd) Run(a *app) error {
	wait := t.Wait.Milliseconds()
	if wait < 1 || wait > apiv1.MaxTimeoutMS {
		return usagef("--wait: must be more than 0 and at most %v (got %v)", apiv1.MaxTimeoutMS*time.Millisecond,
			t.Wait)
	}
	body := apiv1.Transfer{
		TargetLeaderID: string(t.To), TargetZone: t.ToZone, TimeoutMS: &wait, Reason: t.Reason, PlanID: t.Plan,
	}
	return a.moveLeadership(t.changeFlags, t.Wait, with((*client.Client).PlanTransfer, body),
		func(c *client.Client, ctx context.Context) (none apiv1.TransferResult, err error) {
			// Without a leader, fail after --timeout, not after --wait.
			search, cancel := context.WithTimeout(ctx, a.Timeout)
			defer cancel()
			if _, err := c.Leader(search); err != nil {
				return none, err
			}
			return c.Transfer(ctx, body)
		})
}

type failoverCmd struct {
	leadershipFlags
	Emergency bool `help:"Elect --to immediately without health and lag checks; Raft's vote rules still apply. Needs --to and --reason."`
}

// failoverTimeout is the maximum duration of a failover on a node.
const failoverTimeout = 30 * time.Second

func (f *failoverCmd) Run(a *app) error {
	if f.Emergency {
		return f.emergency(a)
	}
	body := apiv1.Failover{TargetLeaderID: string(f.To), Reason: f.Reason, PlanID: f.Plan}
	return a.moveLeadership(f.changeFlags, failoverTimeout,
		with((*client.Client).PlanFailover, body), with((*client.Client).Failover, body))
}

func (f *failoverCmd) emergency(a *app) error {
	switch {
	case f.To == "" && f.Plan == "":
		return usagef("--emergency: needs --to")
	case f.DryRun:
	case f.Reason == "":
		return usagef("--emergency: needs --reason")
	default:
		if err := a.confirm("Node %s starts an election now and deposes the current leader. "+
			"In-flight writes may have an unknown outcome.", orDash(string(f.To))); err != nil {
			return err
		}
	}
	body := apiv1.Emergency{TargetLeaderID: string(f.To), Force: true, Reason: f.Reason, PlanID: f.Plan}
	return a.moveLeadership(f.changeFlags, failoverTimeout,
		with((*client.Client).PlanEmergency, body), with((*client.Client).EmergencyFailover, body))
}

// moveLeadership makes one call that moves leadership, or with --dry-run shows the plan. The server may take limit,
// so that its own error arrives first.
func (a *app) moveLeadership(
	f changeFlags, limit time.Duration, plan callFunc[apiv1.Plan], move callFunc[apiv1.TransferResult],
) error {
	if f.DryRun {
		return a.plan(plan)
	}
	res, err := request(a, "moving leadership",
		func(c *client.Client, ctx context.Context) (apiv1.TransferResult, error) {
			ctx, cancel := context.WithTimeout(ctx, limit+a.Timeout)
			defer cancel()
			return move(c, ctx)
		})
	if err != nil {
		return errors.Join(err, a.showVotes(err))
	}
	return a.printResult(res, func() error {
		return a.printf("leadership moved from %s to %s in %d ms, term %d\n", orDash(res.OldLeaderID), res.NewLeaderID,
			res.DurationMS, res.Term)
	})
}

// showVotes prints the responses of the voters if the error has them.
func (a *app) showVotes(err error) error {
	var e *cluster.Error
	if !errors.As(err, &e) || len(e.Votes) == 0 {
		return nil
	}
	votes := make([]apiv1.Vote, len(e.Votes))
	rows := make([][]any, len(e.Votes))
	for i, v := range e.Votes {
		votes[i] = apiv1.Vote{VoterID: string(v.Voter), Granted: v.Granted, Reason: v.Reason}
		rows[i] = []any{v.Voter, yesNo(v.Granted), orDash(v.Reason)}
	}
	return a.printResult(map[string]any{"votes": votes},
		func() error { return a.table([]string{"voter", "granted", "reason"}, rows) })
}

type autoCmd struct {
	Pause  autoPauseCmd  `cmd:"" help:"Disable automatic elections until resumed."`
	Resume autoResumeCmd `cmd:"" help:"Enable automatic elections again."`
	Status autoStatusCmd `cmd:"" default:"1" help:"Show whether automatic failover is paused."`
}

type autoPauseCmd struct {
	For time.Duration `name:"for" placeholder:"DURATION" help:"Resume automatically after this time; default: never."`
	changeFlags
}

func (p *autoPauseCmd) Run(a *app) error {
	off := false
	body := apiv1.AutoFailover{Enabled: &off}
	switch {
	case p.For < 0 || p.For > 0 && p.For < time.Millisecond:
		return usagef("--for: must be at least 1ms (got %v)", p.For)
	case p.For > 0:
		ttl := p.For.Milliseconds()
		body.TTLMS = &ttl
	}
	return a.setAutoFailover(p.changeFlags, "pausing automatic failover", body)
}

type autoResumeCmd struct{ changeFlags }

func (r *autoResumeCmd) Run(a *app) error {
	on := true
	return a.setAutoFailover(r.changeFlags, "resuming automatic failover", apiv1.AutoFailover{Enabled: &on})
}

func (a *app) setAutoFailover(f changeFlags, what string, body apiv1.AutoFailover) error {
	body.Reason, body.PlanID = f.Reason, f.Plan
	if f.DryRun {
		return a.plan(with((*client.Client).PlanSetAutoFailover, body))
	}
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
		line += fmt.Sprintf(" (by %s: %s)", set.Operator, orDash(cluster.Printable(set.Reason)))
	}
	return a.printf("%s\n", line)
}
