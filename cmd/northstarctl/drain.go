package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type drainCmd struct {
	ID   string        `arg:"" help:"Node ID."`
	Wait bool          `help:"Wait until another node leads and the cluster shows the node as draining."`
	For  time.Duration `default:"60s" help:"Maximum wait."`
	changeFlags
}

func (d *drainCmd) Run(a *app) error {
	id, err := memberID(d.ID)
	if err != nil {
		return err
	}
	body := apiv1.Drain{Reason: d.Reason, PlanID: d.Plan}
	if d.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanDrain(ctx, id,
				body)
		})
	}
	return a.changeMembers("draining "+d.ID, func(ctx context.Context, c *client.Client) (apiv1.MemberResult, error) {
		res, err := c.Drain(ctx, id, body)
		if err != nil || !d.Wait {
			return res, err
		}
		ctx, cancel := context.WithTimeout(ctx, d.For)
		defer cancel()
		return res, awaitDrained(ctx, c, d.ID)
	})
}

// drainPollInterval is the interval of requests to the cluster until a node is drained.
const drainPollInterval = 100 * time.Millisecond

// awaitDrained waits until another node leads and reports id as draining.
func awaitDrained(ctx context.Context, c *client.Client, id string) error {
	for {
		cl, err := c.Cluster(ctx)
		if err == nil && cl.LeaderID != "" && cl.LeaderID != id {
			i := slices.IndexFunc(cl.Members, func(m apiv1.Member) bool { return m.ID == id })
			if i >= 0 && cl.Members[i].Lifecycle == string(cluster.Draining) {
				return nil
			}
		}
		select {
		case <-time.After(drainPollInterval):
		case <-ctx.Done():
			return fmt.Errorf("node %s: drain requested but not complete: %w", id, ctx.Err())
		}
	}
}

type undrainCmd struct {
	ID string `arg:"" help:"Node ID."`
	changeFlags
}

func (u *undrainCmd) Run(a *app) error {
	id, err := memberID(u.ID)
	if err != nil {
		return err
	}
	body := apiv1.Drain{Reason: u.Reason, PlanID: u.Plan}
	if u.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanUndrain(ctx, id,
				body)
		})
	}
	return a.changeMembers("ending the drain of "+u.ID,
		func(ctx context.Context, c *client.Client) (apiv1.MemberResult, error) {
			return c.Undrain(ctx, id, body)
		})
}
