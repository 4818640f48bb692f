//go:build northstar_next

package state

import "northstar/cluster"

// CommandVersion of this build is one higher than that of the default build, to test rolling upgrades.
const CommandVersion uint32 = 10

// KindNote is the only kind that the default build does not know. It changes nothing.
const KindNote Kind = 1000

// Note has no effect except on the version of the state.
type Note struct {
	Text string
}

type extension struct {
	Note *Note
}

var noteKind = kindOf(10, func(c *Command) **Note { return &c.Note })

func (k Kind) extension() *kindInfo {
	if k == KindNote {
		return &noteKind
	}
	return &unknownKind
}

func (n *Note) fields(c *codec) { text(c, 16, &n.Text) }

func (n *Note) check() *cluster.Error { return checkText("text", n.Text) }

func (n *Note) apply(*txn) Result { return Result{} }
