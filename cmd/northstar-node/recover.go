package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"northstar/cluster"
	"northstar/consensus"
)

type recoverCommand struct {
	DataDir string `required:"" placeholder:"DIR" help:"Data directory of a stopped node."`
	Confirm string `placeholder:"CLUSTER_ID" help:"Recover the node: the ID of its cluster, as shown without this flag."`
}

func (c *recoverCommand) Run(p *commandEnv) error {
	endBySignal() // it is safe at any time, like a crash
	dir, err := consensus.OpenOffline(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it only releases a lock
	if c.Confirm == "" {
		return c.show(p.stdout, dir)
	}
	before := dir.Identity()
	g, err := dir.Recover(c.Confirm, "offline", rand.Reader)
	var refused *cluster.Error
	switch {
	case errors.As(err, &refused):
		if about, ok := strings.CutPrefix(refused.Detail, "confirm: "); ok {
			return &usageError{errors.New("--confirm: " + about)}
		}
		return errors.New(refused.Detail)
	case err != nil:
		return err
	}
	voters, others := 0, []string{}
	for _, s := range dir.Servers() {
		if s.Suffrage == cluster.Voter {
			voters++
		}
		if s.ID != before.NodeID {
			others = append(others, string(s.ID))
		}
	}
	// The warning is of the risk that no recovery can prevent.
	_, err = fmt.Fprintf(p.stdout, `Node %s is now the only voter of generation %d of cluster %s, recovery %s.
Start it as usual; it leads within a second. Do not recover another node.
Warning: generation %d nodes that cannot reach generation %d may still form a quorum (%d of %d voters). Keep them stopped until wiped.
Wipe the other nodes (%s), start them, and re-admit each:
  northstarctl members set ID --readmit
`, before.NodeID, g.Number, before.ClusterID, g.RecoveryID, before.Generation.Number, g.Number, cluster.Quorum(voters), voters,
		strings.Join(others, ", "))
	return err
}

// show prints the contents of the directory.
func (c *recoverCommand) show(w io.Writer, dir *consensus.OfflineNode) error {
	id, l := dir.Identity(), dir.Inspection()
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, name+"\t"+format+"\n", args...) }
	line("data directory", "%s", c.DataDir)
	line("node", "%s, incarnation %s", id.NodeID, id.Incarnation)
	line("cluster", "%s", cmp.Or(id.ClusterID, "none"))
	recovery := ""
	if id.Generation.RecoveryID != "" {
		recovery = ", recovery " + id.Generation.RecoveryID
	}
	line("generation", "%d%s", id.Generation.Number, recovery)
	line("last entry", "term %d, index %d", l.LastTerm, l.LastIndex)
	if l.SnapshotIndex > 0 {
		line("snapshot", "term %d, index %d", l.SnapshotTerm, l.SnapshotIndex)
	} else {
		line("snapshot", "none")
	}
	vote := "none"
	if l.VotedTerm > 0 {
		vote = fmt.Sprintf("voted for %s in term %d", l.VotedFor, l.VotedTerm)
	}
	line("vote", "term %d, %s", l.CurrentTerm, vote)
	for _, s := range dir.Servers() {
		line("member", "%s %s %s", s.ID, s.Address, s.Suffrage)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `
Nothing was changed. Run this on every node that is left, and recover exactly one: that with the highest term
of the last entry and, where terms are equal, the highest index. What it does not hold is lost:
  northstar-node recover --data-dir %s --confirm %s
`, c.DataDir, cmp.Or(id.ClusterID, "none"))
	return err
}
