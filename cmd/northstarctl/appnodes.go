package main

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"northstar/api/apiv1"
	"northstar/client"
)

type nodesCmd struct {
	Ls     nodesLsCmd     `cmd:"" default:"withargs" aliases:"list" help:"List the application nodes."`
	Show   nodesShowCmd   `cmd:"" help:"Show an application node."`
	Counts nodesCountsCmd `cmd:"" help:"Count the application nodes by status."`
	Watch  nodesWatchCmd  `cmd:"" help:"Print changes of application nodes as they happen, until Ctrl-C."`
	Drain  nodesDrainCmd  `cmd:"" help:"Set an application node to draining: it should get no new work."`
	Active nodesActiveCmd `cmd:"" help:"Set a draining application node to active again."`
	Rm     nodesRmCmd     `cmd:"" help:"Remove an application node from the registry."`
}

type nodesLsCmd struct {
	Status     string `help:"Only nodes that are joining, active, draining or dead."`
	Role       string `help:"Only nodes with this role."`
	Capability string `help:"Only nodes with this capability."`
}

func (n *nodesLsCmd) Run(a *app) error {
	filter := client.NodeFilter{Status: n.Status, Role: n.Role, Capability: n.Capability}
	pages := allPages(func(c *client.Client, ctx context.Context, after string) ([]apiv1.Node, string, error) {
		page, err := c.Nodes(ctx, filter, after)
		return page.Items, page.Next, err
	})
	header := []string{"node", "status", "address", "http port", "roles", "capabilities", "version", "load"}
	return list(a, "listing nodes", pages, header, func(n apiv1.Node) []any {
		return []any{
			n.ID, n.Status, orDash(n.Address), n.HTTPPort, orDash(strings.Join(n.Roles, ",")),
			orDash(strings.Join(n.Capabilities, ",")), orDash(n.Version), nodeLoad(n),
		}
	})
}

func nodeLoad(n apiv1.Node) string {
	if n.Load == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 50*(n.Load.CPU+n.Load.Memory))
}

type nodesShowCmd struct {
	ID string `arg:"" help:"Node ID."`
}

func (n *nodesShowCmd) Run(a *app) error {
	return show(a, "asking for node "+n.ID, with((*client.Client).GetNode, n.ID), a.printNode)
}

func (a *app) printNode(n apiv1.Node) error {
	load := "unknown"
	if n.Load != nil {
		load = fmt.Sprintf("%d connections, %d jobs, CPU %.0f %%, memory %.0f %%", n.Load.Connections, n.Load.Jobs,
			100*n.Load.CPU, 100*n.Load.Memory)
	}
	return a.table([]string{"field", "value"}, [][]any{
		{"node", n.ID},
		{"status", n.Status},
		{"session", orDash(n.SessionID)},
		{"host", orDash(n.Hostname)},
		{"address", fmt.Sprintf("%s, HTTP port %d, gRPC port %d", orDash(n.Address), n.HTTPPort, n.GRPCPort)},
		{"roles", orDash(strings.Join(n.Roles, ", "))},
		{"capabilities", orDash(strings.Join(n.Capabilities, ", "))},
		{"version", orDash(n.Version)},
		{"load", load},
		{"started", formatTime(n.StartedAt)},
		{"last heartbeat", formatTime(n.LastHeartbeatAt)},
		{"registered", formatTime(&n.RegisteredAt)},
		{"changed", formatTime(&n.ChangedAt)},
	})
}

type nodesCountsCmd struct{}

func (*nodesCountsCmd) Run(a *app) error {
	return show(a, "counting nodes", (*client.Client).NodeCounts, func(n apiv1.Counts) error {
		return a.table([]string{"joining", "active", "draining", "dead", "total"},
			[][]any{{n.Joining, n.Active, n.Draining, n.Dead, n.Total}})
	})
}

type nodesWatchCmd struct {
	Since *uint64 `placeholder:"REV" help:"Changes after this revision; default: from now."`
}

// nodeLine is the JSON form of a change of an application node.
type nodeLine struct {
	Event string `json:"event"`
	apiv1.Node
}

func (n *nodesWatchCmd) Run(a *app) error {
	return follow(a, func(c *client.Client) iter.Seq2[client.NodeChange, error] {
		return c.WatchNodes(a.ctx, watchOptions(n.Since))
	}, func(ch client.NodeChange) (any, string) {
		event := apiv1.EventPut
		if ch.Removed {
			event = apiv1.EventDelete
		}
		return nodeLine{event, ch.Node}, fmt.Sprintf("%d %-6s %s %s", ch.Revision, event, ch.ID, ch.Status)
	})
}

type nodesDrainCmd struct {
	ID string `arg:"" help:"Node ID."`
}

func (n *nodesDrainCmd) Run(a *app) error { return a.setNodeStatus(n.ID, "draining") }

type nodesActiveCmd struct {
	ID string `arg:"" help:"Node ID."`
}

func (n *nodesActiveCmd) Run(a *app) error { return a.setNodeStatus(n.ID, "active") }

// setNodeStatus registers an application node again, with another status. The node itself keeps that status until it
// registers again.
func (a *app) setNodeStatus(id, status string) error {
	return show(a, "changing node "+id, func(c *client.Client, ctx context.Context) (apiv1.Node, error) {
		n, err := c.GetNode(ctx, id)
		if err != nil {
			return n, err
		}
		if n.SessionID == "" {
			return n, fmt.Errorf("node %s is %s: its session has ended", id, n.Status)
		}
		return c.PutNode(ctx, id, apiv1.NodePut{
			SessionID: n.SessionID, Hostname: n.Hostname, Address: n.Address, HTTPPort: n.HTTPPort,
			GRPCPort: n.GRPCPort, Roles: n.Roles, Capabilities: n.Capabilities, Version: n.Version, Status: status,
			Load: n.Load,
		})
	}, func(n apiv1.Node) error { return a.printf("node %s is %s\n", n.ID, n.Status) })
}

type nodesRmCmd struct {
	ID string `arg:"" help:"Node ID."`
}

func (n *nodesRmCmd) Run(a *app) error {
	return show(a, "removing node "+n.ID, func(c *client.Client, ctx context.Context) (apiv1.NodeRemoved, error) {
		return apiv1.NodeRemoved{ID: n.ID}, c.RemoveNode(ctx, n.ID)
	}, func(n apiv1.NodeRemoved) error { return a.printf("node %s is removed from the registry\n", n.ID) })
}
