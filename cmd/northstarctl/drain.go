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
	ID   cluster.NodeID `arg:"" help:"Node ID."`
	Wait bool           `help:"Wait until another node leads and the cluster shows the node as draining."`
	For  time.Duration  `default:"60s" help:"Maximum wait."`
	changeFlags
}

func (d *drainCmd) Run(a *app) error {
	body := apiv1.Drain{Reason: d.Reason, PlanID: d.Plan}
	drain := with2((*client.Client).Drain, d.ID, body)
	return a.changeMember(d.changeFlags, "draining "+string(d.ID), with2((*client.Client).PlanDrain, d.ID, body),
		func(c *client.Client, ctx context.Context) (apiv1.MemberResult, error) {
			res, err := drain(c, ctx)
			if err != nil || !d.Wait {
				return res, err
			}
			ctx, cancel := context.WithTimeout(ctx, d.For)
			defer cancel()
			return res, awaitDrained(ctx, c, string(d.ID))
		})
}

// drainPollInterval is the interval of requests to the cluster until a node is drained.
const drainPollInterval = 100 * time.Millisecond

// awaitDrained waits until another node leads and reports id as draining.
func awaitDrained(ctx context.Context, c *client.Client, id string) error {
	for {
		cl, err := c.Cluster(ctx)
		if err == nil && cl.LeaderID != "" && cl.LeaderID != id &&
			slices.ContainsFunc(cl.Members, func(m apiv1.Member) bool {
				return m.ID == id && m.Lifecycle == string(cluster.Draining)
			}) {
			return nil
		}
		select {
		case <-time.After(drainPollInterval):
		case <-ctx.Done():
			return fmt.Errorf("node %s: drain requested but not complete: %w", id, ctx.Err())
		}
	}
}

type undrainCmd struct{ memberFlags }

func (u *undrainCmd) Run(a *app) error {
	body := apiv1.Drain{Reason: u.Reason, PlanID: u.Plan}
	return a.changeMember(u.changeFlags, "ending the drain of "+string(u.ID),
		with2((*client.Client).PlanUndrain, u.ID, body), with2((*client.Client).Undrain, u.ID, body))
}
