package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type statusCmd struct {
	Node     string        `arg:"" optional:"" placeholder:"HOST:PORT" help:"Show this node's own view."`
	Watch    bool          `short:"w" help:"Show it again and again, until Ctrl-C."`
	Interval time.Duration `default:"1s" help:"With --watch: how often."`
}

func (s *statusCmd) Run(a *app) error {
	switch {
	case s.Interval < minWatchInterval:
		return usagef("--interval: must be at least %v (got %v)", minWatchInterval, s.Interval)
	case s.Watch:
		return s.watch(a)
	case s.Node != "":
		return s.node(a)
	}
	cl, err := request(a, "asking for the cluster", (*client.Client).Cluster)
	if err != nil {
		return err
	}
	if err := a.printResult(cl, func() error { return a.printCluster(cl) }); err != nil {
		return err
	}
	if cl.LeaderID == "" {
		return &client.Error{
			Op: "status", Problem: cluster.Errorf(cluster.CodeNoLeader, "as node %s sees it", orDash(cl.ObservedBy)),
		}
	}
	return nil
}

const minWatchInterval = 100 * time.Millisecond

// watch shows the state until Ctrl-C: on a terminal always on the same screen. An error does not end it.
func (s *statusCmd) watch(a *app) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for {
		show, err := s.sample(a, c)
		if err != nil && a.ctx.Err() != nil {
			return a.untilInterrupted(err)
		}
		if terminal(a.stdout) {
			fmt.Fprintf(a.stdout, "\x1b[H\x1b[2Jevery %v, last at %s\n\n", s.Interval, time.Now().Format(time.TimeOnly))
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "northstarctl: %v\n", err)
		} else if err := show(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			return a.untilInterrupted(a.ctx.Err())
		}
	}
}

// sample asks once, and returns what prints the response.
func (s *statusCmd) sample(a *app, c *client.Client) (show func() error, err error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.Timeout)
	defer cancel()
	var v any
	var text func() error
	if s.Node != "" {
		st, e := c.Status(ctx, s.Node)
		v, text, err = st, func() error { return a.printStatus(st) }, e
	} else {
		cl, e := c.Cluster(ctx)
		v, text, err = cl, func() error { return a.printCluster(cl) }, e
	}
	if a.Output == "table" {
		return text, err
	}
	return func() error { return a.printStreamed(v) }, err
}

func (a *app) printCluster(cl apiv1.Cluster) error {
	leader := cl.LeaderID
	if leader == "" {
		leader = a.colour(text.FgRed, "none")
	}
	fmt.Fprintf(a.stdout, "cluster   %s (%s), generation %d\n", cl.ClusterName, orDash(cl.ClusterID), cl.Generation)
	fmt.Fprintf(a.stdout, "leader    %s, term %d, revision %d\n", leader, cl.Term, cl.Revision)
	quorum := quorumText(cl)
	if cl.Quorum.Healthy < cl.Quorum.Needed {
		quorum = a.colour(text.FgRed, quorum)
	}
	fmt.Fprintf(a.stdout, "quorum    %s\n", quorum)
	if cl.State != (apiv1.StateSize{}) { // a leader of an older build does not say it
		fmt.Fprintf(a.stdout, "state     %s\n", stateLine(cl.State))
	}
	if !cl.AutoFailover {
		line := "automatic failover is paused"
		if cl.LeaderID == "" {
			line += ": start an election with northstarctl failover"
		}
		fmt.Fprintln(a.stdout, a.colour(text.FgYellow, line))
	}
	if cl.LeaderID == "" {
		fmt.Fprintln(a.stdout, "next      northstarctl why: what is missing, and what to do")
	}
	fmt.Fprintln(a.stdout)
	return tableOf(a, []string{"id", "state", "health", "suffrage", "http", "contact", "lag", "version"}, cl.Members,
		func(m apiv1.Member) []any {
			return []any{
				m.ID, m.State, a.health(m), m.Suffrage, m.HTTPAddress, ms(m.LastContactMS), m.LagEntries,
				orDash(m.Version),
			}
		})
}

// stateLine returns the size of the state with its limit, if a limit is in force.
func stateLine(s apiv1.StateSize) string {
	const mib = 1 << 20
	size := fmt.Sprintf("%.1f MiB", float64(s.Bytes)/mib)
	if s.BytesLimit > 0 {
		size += fmt.Sprintf(" of %.1f MiB (%.0f %%)", float64(s.BytesLimit)/mib,
			100*float64(s.Bytes)/float64(s.BytesLimit))
	}
	return fmt.Sprintf("%s, %d keys, %d sessions", size, s.Keys, s.Sessions)
}

// health returns one word if the member is healthy, else the reasons.
func (a *app) health(m apiv1.Member) string {
	switch {
	case m.Healthy && m.Lifecycle == string(cluster.Active):
		return a.colour(text.FgGreen, "ok")
	case m.Healthy:
		return a.colour(text.FgYellow, m.Lifecycle)
	case len(m.Reasons) > 0:
		return a.colour(text.FgRed, strings.Join(m.Reasons, ", "))
	}
	return a.colour(text.FgRed, "unhealthy")
}

func (s *statusCmd) node(a *app) error {
	return show(a, "asking "+s.Node, with((*client.Client).Status, s.Node), a.printStatus)
}

func (a *app) printStatus(st apiv1.Status) error {
	rows := [][]any{
		{"node", st.NodeID},
		{"cluster", fmt.Sprintf("%s (%s), generation %d", st.ClusterName, orDash(st.ClusterID), st.Generation)},
		{"state", fmt.Sprintf("%s, %s, %s", st.State, st.Suffrage, st.Lifecycle)},
		{"term", st.Term},
		{"leader", strings.TrimSpace(orDash(st.LeaderID) + " " + st.LeaderAddress)},
		{"last contact", ms(st.LastContactMS)},
		{"log", fmt.Sprintf("last %d, committed %d, applied %d", st.LastLogIndex, st.CommitIndex, st.AppliedIndex)},
		{"revision", st.Revision},
		{"priority", fmt.Sprintf("%d, eligible %s, zone %s", st.Priority, yesNo(st.Eligible), orDash(st.Zone))},
		{"disk", fmt.Sprintf("fsync p99 %d ms, stalled %s, read-only %s",
			st.Disk.FsyncP99MS, yesNo(st.Disk.Stalled), yesNo(st.Disk.ReadOnly))},
		{"version", orDash(st.Version)},
		{"started", formatTime(&st.StartedAt)},
	}
	if st.Silence != nil && st.State != "leader" {
		rows = append(rows, []any{"silence", fmt.Sprintf("asks the others after %.0f ms without its leader: %s",
			st.Silence.ThresholdMS, st.Silence.Reason)})
	}
	if st.ElectionObstacle != "" {
		rows = append(rows, []any{"elections", a.colour(text.FgYellow, "starts none by itself: "+st.ElectionObstacle)})
	}
	for _, w := range st.Warnings {
		rows = append(rows, []any{"warning", a.colour(text.FgYellow, w)})
	}
	return a.table([]string{"field", "value"}, rows)
}

type leaderCmd struct{}

func (*leaderCmd) Run(a *app) error {
	return show(a, "looking for the leader", (*client.Client).Leader, func(l apiv1.Leader) error {
		return a.table([]string{"leader", "http", "raft", "term"},
			[][]any{{l.LeaderID, l.LeaderAddress, l.RaftAddress, l.Term}})
	})
}

type splitBrainCmd struct {
	Node   string `arg:"" optional:"" placeholder:"HOST:PORT" help:"Ask this node; default: any responsive node."`
	Check  bool   `help:"Check now instead of showing the latest report."`
	Reason string `empty:"" help:"Reason, for the audit log; with --check."`
}

func (s *splitBrainCmd) Run(a *app) error {
	if s.Reason != "" && !s.Check {
		return usagef("--reason: requires --check")
	}
	r, err := request(a, "running split-brain check",
		func(c *client.Client, ctx context.Context) (apiv1.SplitBrain, error) {
			if s.Check {
				return c.CheckSplitBrain(ctx, s.Node, apiv1.SplitBrainCheck{Reason: s.Reason})
			}
			return c.SplitBrain(ctx, s.Node)
		})
	if err != nil {
		return err
	}
	if err := a.printResult(r, func() error { return a.printSplitBrain(r) }); err != nil {
		return err
	}
	switch r.Verdict {
	case "ok", "unreachable":
		return nil
	}
	return fmt.Errorf("node %s: verdict %s", r.CheckedBy, r.Verdict)
}

func (a *app) printSplitBrain(r apiv1.SplitBrain) error {
	fmt.Fprintf(a.stdout, "verdict %s (node %s, checked at %s)\n", a.paint(r.Verdict), r.CheckedBy,
		formatTime(&r.CheckedAt))
	for _, f := range r.Findings {
		line := a.paint(f.Verdict) + ": " + f.Detail
		if f.Refusing {
			line += "; this node rejects writes, and all reads but stale ones"
		}
		fmt.Fprintln(a.stdout, line)
	}
	fmt.Fprintln(a.stdout)
	rows := make([][]any, 0, len(r.Claims))
	for _, c := range r.Claims {
		age := max(0, r.CheckedAt.Sub(c.At).Milliseconds())
		row := []any{c.NodeID, c.Source, orDash(c.Address), "-", "-", "-", ms(&age), c.Error}
		if c.Error == "" {
			row[7] = fmt.Sprintf("%s, generation %d", orDash(c.ClusterID), c.Generation)
			if c.Term > 0 {
				row[3], row[4], row[5] = yesNo(c.Leads), c.Term, orDash(c.LeaderID)
			}
		}
		rows = append(rows, row)
	}
	return a.table([]string{"node", "source", "address", "leads", "term", "leader", "age", "cluster / error"}, rows)
}
