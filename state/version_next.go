//go:build northstar_next

package state

import "northstar/cluster"

// CommandVersion of this build is one higher than that of the default build. It
// exists to test rolling upgrades with two real binaries.
const CommandVersion uint32 = 5

// KindNote is the one kind that only this build knows. It changes nothing.
const KindNote Kind = 1000

// Note is a command without effect on anything but the version of the state.
type Note struct {
	Text string
}

type extension struct {
	Note *Note
}

var unknownKind, noteKind = kindInfo{}, kindOf(5, func(c *Command) **Note { return &c.Note })

func (k Kind) extension() *kindInfo {
	if k == KindNote {
		return &noteKind
	}
	return &unknownKind
}

func (n *Note) fields(c *codec) { text(c, 16, &n.Text) }

func (n *Note) check() *cluster.Error { return checkText("text", n.Text) }

func (n *Note) apply(*txn) Result { return Result{} }
