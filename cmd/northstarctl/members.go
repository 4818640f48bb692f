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

type membersCmd struct {
	Ls      membersLsCmd      `cmd:"" default:"withargs" aliases:"list" help:"List the members."`
	Add     membersAddCmd     `cmd:"" help:"Add a node; it becomes a voter once it is caught up."`
	Remove  membersRemoveCmd  `cmd:"" help:"Remove a node permanently."`
	Set     membersSetCmd     `cmd:"" help:"Change a member's settings."`
	Promote membersPromoteCmd `cmd:"" help:"Make a non-voter a voter."`
	Demote  membersDemoteCmd  `cmd:"" help:"Make a voter a non-voter."`
}

type membersLsCmd struct{}

func (*membersLsCmd) Run(a *app) error {
	header := []string{
		"id", "suffrage", "state", "health", "raft", "http", "priority", "eligible", "zone", "lifecycle",
	}
	return list(a, "asking for the members", func(c *client.Client, ctx context.Context) ([]apiv1.Member, error) {
		cl, err := c.Cluster(ctx)
		return cl.Members, err
	}, header, func(m apiv1.Member) []any {
		return []any{
			m.ID, m.Suffrage, m.State, a.health(m), m.RaftAddress, m.HTTPAddress, m.Priority, yesNo(m.Eligible),
			orDash(m.Zone), m.Lifecycle,
		}
	})
}

// changeFlags are the flags of every command that changes the cluster.
type changeFlags struct {
	Reason string `empty:"" help:"Reason, for the audit log."`
	DryRun bool   `name:"dry-run" help:"Show the plan, change nothing."`
	Plan   string `placeholder:"PLAN-ID" help:"Run the plan with this ID; fail if the cluster has changed since."`
}

// memberFlags are those of a command that changes one member.
type memberFlags struct {
	ID cluster.NodeID `arg:"" help:"Node ID."`
	changeFlags
}

type membersAddCmd struct {
	ID       cluster.NodeID `arg:"" help:"Node ID."`
	Raft     string         `required:"" placeholder:"HOST:PORT" help:"Its raft address."`
	HTTP     string         `name:"http" required:"" placeholder:"HOST:PORT" help:"Its HTTP address."`
	NonVoter bool           `name:"non-voter" help:"Never make it a voter."`
	changeFlags
}

func (m *membersAddCmd) Run(a *app) error {
	id := string(m.ID)
	body := apiv1.MemberAdd{ID: id, RaftAddress: m.Raft, HTTPAddress: m.HTTP, Reason: m.Reason, PlanID: m.Plan}
	if m.NonVoter {
		body.Suffrage = string(cluster.NonVoter)
	}
	return a.changeMember(m.changeFlags, "adding "+id,
		with((*client.Client).PlanAddMember, body), with((*client.Client).AddMember, body))
}

type membersRemoveCmd struct{ memberFlags }

func (m *membersRemoveCmd) Run(a *app) error {
	if !m.DryRun {
		if err := a.confirm("Node %s will be removed permanently: it can rejoin only with an empty data directory.",
			m.ID); err != nil {
			return err
		}
	}
	body := apiv1.MemberRemove{Reason: m.Reason, PlanID: m.Plan}
	return a.changeMember(m.changeFlags, "removing "+string(m.ID),
		with2((*client.Client).PlanRemoveMember, m.ID, body), with2((*client.Client).RemoveMember, m.ID, body))
}

type membersSetCmd struct {
	ID       cluster.NodeID `arg:"" help:"Node ID."`
	Priority *int           `help:"0 to 255; higher is preferred as leader, 0 never leads."`
	Eligible *bool          `negatable:"" help:"Whether it may lead."`
	Zone     *string        `empty:"" help:"Where it is; transfer --to-zone and failover.zones use it."`
	Raft     *string        `placeholder:"HOST:PORT" help:"New raft address; a leader transfers leadership first."`
	HTTP     *string        `name:"http" placeholder:"HOST:PORT" help:"New HTTP address."`
	Readmit  bool           `help:"Accept the node with an empty data directory, after its disk was replaced."`
	changeFlags
}

func (m *membersSetCmd) Run(a *app) error {
	body := apiv1.MemberPatch{
		Priority: m.Priority, Eligible: m.Eligible, Zone: m.Zone,
		RaftAddress: m.Raft, HTTPAddress: m.HTTP, Readmit: m.Readmit,
	}
	switch {
	case body == apiv1.MemberPatch{}:
		return usagef(
			"nothing to set: at least one of --priority, --eligible, --zone, --raft, --http, --readmit is required")
	case m.Priority != nil && (*m.Priority < 0 || *m.Priority > cluster.MaxPriority):
		return usagef("--priority: must be 0 to %d (got %d)", cluster.MaxPriority, *m.Priority)
	case m.Readmit && !m.DryRun:
		if err := a.confirm(
			"Node %s will be re-admitted with a new data directory. Data stored only on its old disk is lost.", m.ID,
		); err != nil {
			return err
		}
	}
	return a.patchMember(m.ID, m.changeFlags, body)
}

type membersPromoteCmd struct{ memberFlags }

func (m *membersPromoteCmd) Run(a *app) error {
	to := string(cluster.Voter)
	return a.patchMember(m.ID, m.changeFlags, apiv1.MemberPatch{Suffrage: &to})
}

type membersDemoteCmd struct{ memberFlags }

func (m *membersDemoteCmd) Run(a *app) error {
	to := string(cluster.NonVoter)
	return a.patchMember(m.ID, m.changeFlags, apiv1.MemberPatch{Suffrage: &to})
}

func (a *app) patchMember(id cluster.NodeID, f changeFlags, body apiv1.MemberPatch) error {
	body.Reason, body.PlanID = f.Reason, f.Plan
	return a.changeMember(f, "changing "+string(id),
		with2((*client.Client).PlanPatchMember, id, body), with2((*client.Client).PatchMember, id, body))
}

// changeMember changes a member, or with --dry-run shows the plan.
func (a *app) changeMember(
	f changeFlags, what string, plan callFunc[apiv1.Plan], change callFunc[apiv1.MemberResult],
) error {
	if f.DryRun {
		return a.plan(plan)
	}
	return show(a, what, change,
		func(res apiv1.MemberResult) error { return a.printf("%s: %s\n", res.ID, res.Message) })
}

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
