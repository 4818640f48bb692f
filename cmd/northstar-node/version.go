package main

import (
	"fmt"

	"northstar/node"
)

type versionCommand struct{}

func (versionCommand) run(p *commandEnv) error {
	b := node.ReadBuild()
	commit := b.Commit
	if commit == "" {
		commit = "unknown"
	}
	_, err := fmt.Fprintf(p.stdout, "northstar-node %s\ncommit %s\n%s\nhashicorp/raft %s\n", b.Version, commit, b.Go,
		b.Raft)
	return err
}
