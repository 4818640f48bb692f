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

// leadershipFlags are the flags of every command that moves leadership.
type leadershipFlags struct {
	To string `placeholder:"ID" help:"The new leader; default: the voter with the best rank."`
	changeFlags
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
		return usagef("--wait: must be more than 0 and at most %v (got %v)", apiv1.MaxTimeoutMS*time.Millisecond,
			t.Wait)
	}
	body := apiv1.Transfer{TargetLeaderID: t.To, TimeoutMS: &wait, Reason: t.Reason, PlanID: t.Plan}
	if t.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan,
			error,
		) {
			return c.PlanTransfer(ctx, body)
		})
	}
	return a.moveLeadership(t.Wait, func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		// Without a leader, fail after --timeout, not after --wait.
		search, cancel := context.WithTimeout(ctx, a.Timeout)
		defer cancel()
		if _, err := c.Leader(search); err != nil {
			return apiv1.TransferResult{}, err
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
	if err := f.check(); err != nil {
		return err
	}
	if f.Emergency {
		return f.emergency(a)
	}
	body := apiv1.Failover{TargetLeaderID: f.To, Reason: f.Reason, PlanID: f.Plan}
	if f.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan,
			error,
		) {
			return c.PlanFailover(ctx, body)
		})
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
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanEmergency(ctx,
				body)
		})
	case f.Reason == "":
		return usagef("--emergency: needs --reason")
	}
	if err := a.confirm("Node %s starts an election now and deposes the current leader. "+
		"In-flight writes may have an unknown outcome.", orDash(f.To)); err != nil {
		return err
	}
	return a.moveLeadership(failoverTimeout, func(ctx context.Context, c *client.Client) (apiv1.TransferResult, error) {
		return c.EmergencyFailover(ctx, body)
	})
}

// moveLeadership makes one call that moves leadership. The server may take limit, so that its own error arrives
// first.
func (a *app) moveLeadership(limit time.Duration, call callFunc[apiv1.TransferResult]) error {
	res, err := request(a, "moving leadership", func(ctx context.Context, c *client.Client) (apiv1.TransferResult,
		error,
	) {
		ctx, cancel := context.WithTimeout(ctx, limit+a.Timeout)
		defer cancel()
		return call(ctx, c)
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
