package consensus

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

// TestRefusalIsSaidOnce: all peers refuse a wiped node, each at every try.
func TestRefusalIsSaidOnce(t *testing.T) {
	var out bytes.Buffer
	n := &Node{
		peers: newPeerBook(), state: state.New(state.Options{}), ident: &identity{},
		log: hclog.New(&hclog.LoggerOptions{Output: &out}), now: time.Now,
	}
	n.ident.cur.Store(&identityFile{})
	lines := func() int { return strings.Count(out.String(), "\n") }
	for range 3 {
		for _, by := range []cluster.NodeID{"n2", "n3", "n4"} {
			n.Refused(by, cluster.RefusedIncarnation, "wiped")
		}
	}
	if lines() != 1 {
		t.Errorf("%d lines:\n%s", lines(), &out)
	}
	n.Refused("n2", cluster.RefusedRemoved, "removed")
	if lines() != 2 {
		t.Errorf("%d lines after another refusal:\n%s", lines(), &out)
	}
	for _, by := range []cluster.NodeID{"n2", "n3", "n4"} {
		n.Admitted(by)
	}
	n.Refused("n3", cluster.RefusedIncarnation, "wiped again")
	if lines() != 3 {
		t.Errorf("%d lines after it was let in between:\n%s", lines(), &out)
	}
}
