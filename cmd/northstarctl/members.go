package main

import (
	"context"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type membersCmd struct {
	List    membersListCmd    `cmd:"" help:"List the members."`
	Add     membersAddCmd     `cmd:"" help:"Add a node; it becomes a voter once it is caught up."`
	Remove  membersRemoveCmd  `cmd:"" help:"Remove a node permanently."`
	Set     membersSetCmd     `cmd:"" help:"Change a member's settings."`
	Promote membersPromoteCmd `cmd:"" help:"Make a non-voter a voter."`
	Demote  membersDemoteCmd  `cmd:"" help:"Make a voter a non-voter."`
}

type membersListCmd struct{}

func (*membersListCmd) Run(a *app) error {
	return show(a, "asking for the members", func(ctx context.Context, c *client.Client) ([]apiv1.Member, error) {
		cl, err := c.Cluster(ctx)
		return cl.Members, err
	}, func(members []apiv1.Member) error {
		return tableOf(a, []string{
			"id", "suffrage", "state", "health", "raft", "http", "priority", "eligible", "zone", "lifecycle",
		}, members, func(m apiv1.Member) []any {
			return []any{
				m.ID, m.Suffrage, m.State, a.health(m), m.RaftAddress, m.HTTPAddress, m.Priority, yesNo(m.Eligible),
				orDash(m.Zone), m.Lifecycle,
			}
		})
	})
}

// changeFlags are the flags of every command that changes the cluster.
type changeFlags struct {
	Reason string `help:"Reason, for the audit log."`
	DryRun bool   `name:"dry-run" help:"Show the plan, change nothing."`
	Plan   string `placeholder:"PLAN-ID" help:"Run the plan with this ID; fail if the cluster has changed since."`
}

type membersAddCmd struct {
	ID       string `arg:"" help:"Node ID."`
	Raft     string `required:"" placeholder:"HOST:PORT" help:"Its raft address."`
	HTTP     string `name:"http" required:"" placeholder:"HOST:PORT" help:"Its HTTP address."`
	NonVoter bool   `name:"non-voter" help:"Never make it a voter."`
	changeFlags
}

func (m *membersAddCmd) Run(a *app) error {
	if _, err := memberID(m.ID); err != nil {
		return err
	}
	body := apiv1.MemberAdd{ID: m.ID, RaftAddress: m.Raft, HTTPAddress: m.HTTP, Reason: m.Reason, PlanID: m.Plan}
	if m.NonVoter {
		body.Suffrage = string(cluster.NonVoter)
	}
	if m.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanAddMember(ctx,
				body)
		})
	}
	return a.changeMembers("adding "+m.ID, func(ctx context.Context, c *client.Client) (apiv1.MemberResult, error) {
		return c.AddMember(ctx, body)
	})
}

type membersRemoveCmd struct {
	ID string `arg:"" help:"Node ID."`
	changeFlags
}

func (m *membersRemoveCmd) Run(a *app) error {
	id, err := memberID(m.ID)
	if err != nil {
		return err
	}
	body := apiv1.MemberRemove{Reason: m.Reason, PlanID: m.Plan}
	if m.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanRemoveMember(ctx, id, body)
		})
	}
	if err := a.confirm("Node %s will be removed permanently: it can rejoin only with an empty data directory.",
		id); err != nil {
		return err
	}
	return a.changeMembers("removing "+m.ID, func(ctx context.Context, c *client.Client) (apiv1.MemberResult, error) {
		return c.RemoveMember(ctx, id, body)
	})
}

type membersSetCmd struct {
	ID       string  `arg:"" help:"Node ID."`
	Priority *int    `help:"0 to 255; higher is preferred as leader, 0 never leads."`
	Eligible *bool   `negatable:"" help:"Whether it may lead."`
	Zone     *string `help:"Label for display."`
	Raft     *string `placeholder:"HOST:PORT" help:"New raft address; not while the node leads."`
	HTTP     *string `name:"http" placeholder:"HOST:PORT" help:"New HTTP address."`
	Readmit  bool    `help:"Accept the node with an empty data directory, after its disk was replaced."`
	changeFlags
}

func (m *membersSetCmd) Run(a *app) error {
	id, err := memberID(m.ID)
	if err != nil {
		return err
	}
	if m.Priority == nil && m.Eligible == nil && m.Zone == nil && m.Raft == nil && m.HTTP == nil && !m.Readmit {
		return usagef(
			"nothing to set: at least one of --priority, --eligible, --zone, --raft, --http, --readmit is required")
	}
	if m.Priority != nil && (*m.Priority < 0 || *m.Priority > cluster.MaxPriority) {
		return usagef("--priority: must be 0 to %d (got %d)", cluster.MaxPriority, *m.Priority)
	}
	if m.Readmit && !m.DryRun {
		if err := a.confirm(
			"Node %s will be re-admitted with a new data directory. Data stored only on its old disk is lost.", id,
		); err != nil {
			return err
		}
	}
	return a.patchMember(id, apiv1.MemberPatch{
		Priority: m.Priority, Eligible: m.Eligible, Zone: m.Zone,
		RaftAddress: m.Raft, HTTPAddress: m.HTTP, Readmit: m.Readmit,
	}, m.changeFlags)
}

type membersPromoteCmd struct {
	ID string `arg:"" help:"Node ID."`
	changeFlags
}

func (m *membersPromoteCmd) Run(a *app) error {
	return a.setSuffrage(m.ID, cluster.Voter, m.changeFlags)
}

type membersDemoteCmd struct {
	ID string `arg:"" help:"Node ID."`
	changeFlags
}

func (m *membersDemoteCmd) Run(a *app) error {
	return a.setSuffrage(m.ID, cluster.NonVoter, m.changeFlags)
}

func (a *app) setSuffrage(s string, suffrage cluster.Suffrage, f changeFlags) error {
	id, err := memberID(s)
	if err != nil {
		return err
	}
	to := string(suffrage)
	return a.patchMember(id, apiv1.MemberPatch{Suffrage: &to}, f)
}

func (a *app) patchMember(id cluster.NodeID, body apiv1.MemberPatch, f changeFlags) error {
	body.Reason, body.PlanID = f.Reason, f.Plan
	if f.DryRun {
		return a.plan(func(ctx context.Context, c *client.Client) (apiv1.Plan, error) {
			return c.PlanPatchMember(ctx, id, body)
		})
	}
	return a.changeMembers("changing "+string(id),
		func(ctx context.Context, c *client.Client) (apiv1.MemberResult, error) {
			return c.PatchMember(ctx, id, body)
		})
}

func (a *app) changeMembers(what string, change callFunc[apiv1.MemberResult]) error {
	return show(a, what, change,
		func(res apiv1.MemberResult) error { return a.printf("%s: %s\n", res.ID, res.Message) })
}

func memberID(s string) (cluster.NodeID, error) {
	id, err := cluster.ParseNodeID(s)
	if err != nil {
		return "", &usageError{err}
	}
	return id, nil
}
