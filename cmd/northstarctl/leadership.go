package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

// leadershipFlags are what every command that moves leadership takes.
type leadershipFlags struct {
	To     string `placeholder:"ID" help:"The node to lead; without it the best placed voter."`
	Reason string `help:"Why, for the record."`
	DryRun bool   `name:"dry-run" help:"Show what would be done, and do nothing."`
	Plan   string `placeholder:"PLAN-ID" help:"Do exactly what a dry run has shown, or nothing should the cluster have changed since."`
}

func (m *leadershipFlags) check() error {
	if m.To == "" {
		return nil
	}
	if _, err := cluster.ParseNodeID(m.To); err != nil {
		return &usageError{fmt.Errorf("--to: %w", err)}
	}
	return nil
}

type transferCmd struct {
	leadershipFlags
	Wait time.Duration `default:"30s" help:"Give up after this long, at most 60s."`
}

func (t *transferCmd) Run(a *app) error {
	if err := t.check(); err != nil {
		return err
	}
	wait := t.Wait.Milliseconds()
	if wait < 1 || wait > apiv1.MaxTimeoutMS {
		return usagef("--wait %v: want more than 0 and at most %v", t.Wait, apiv1.MaxTimeoutMS*time.Millisecond)
	}
	body := apiv1.Transfer{TargetLeaderID: t.To, TimeoutMS: &wait, Reason: t.Reason, PlanID: t.Plan}
	if t.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) { return c.PlanTransfer(ctx, body) })
	}
	return a.moveLeadership(t.Wait, func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		// That there is nobody to hand leadership over is known sooner than after --wait.
		looking, cancel := context.WithTimeout(ctx, a.Timeout)
		defer cancel()
		if _, err := c.Leader(looking); err != nil {
			return apiv1.TransferResult{}, err
		}
		return c.Transfer(ctx, body)
	})
}

type failoverCmd struct {
	leadershipFlags
	Emergency bool `help:"Have --to elected at once, without any check but the voters' own; needs --to and --reason."`
}

// failoverTimeout is how long a node may take to carry a failover out.
const failoverTimeout = 30 * time.Second

func (f *failoverCmd) Run(a *app) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.Emergency {
		return f.emergency(a)
	}
	body := apiv1.Failover{TargetLeaderID: f.To, Reason: f.Reason, PlanID: f.Plan}
	if f.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) { return c.PlanFailover(ctx, body) })
	}
	return a.moveLeadership(failoverTimeout, func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		return c.Failover(ctx, body)
	})
}

func (f *failoverCmd) emergency(a *app) error {
	body := apiv1.Emergency{TargetLeaderID: f.To, Force: true, Reason: f.Reason, PlanID: f.Plan}
	switch {
	case f.To == "" && f.Plan == "":
		return usagef("--emergency: needs --to")
	case f.DryRun:
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) { return c.PlanEmergency(ctx, body) })
	case f.Reason == "":
		return usagef("--emergency: needs --reason")
	}
	if err := a.confirm("Node %s will stand for election at once, over the head of any leader: writes in flight there may end with an unknown outcome.", orDash(f.To)); err != nil {
		return err
	}
	return a.moveLeadership(failoverTimeout, func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		return c.EmergencyFailover(ctx, body)
	})
}

// moveLeadership makes one call that moves leadership. The server may take limit: its own
// verdict is to come first.
func (a *app) moveLeadership(limit time.Duration, call func(context.Context, *client.Client) (apiv1.TransferResult, error)) error {
	res, err := request(a, "moving leadership", func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		ctx, cancel := context.WithTimeout(ctx, limit+a.Timeout)
		defer cancel()
		return call(ctx, c)
	})
	if err != nil {
		return errors.Join(err, a.showVotes(err))
	}
	return a.printResult(res, func() error {
		_, err := fmt.Fprintf(a.stdout, "leadership moved from %s to %s in %d ms, term %d\n", orDash(res.OldLeaderID), res.NewLeaderID, res.DurationMS, res.Term)
		return err
	})
}

// showVotes shows what the voters have said, where that is why it failed.
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
	return a.printResult(map[string]any{"votes": votes}, func() error { return a.table([]string{"voter", "granted", "reason"}, rows) })
}
