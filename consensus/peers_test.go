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

// A hello that was under way while this node was recovered arrives after it has
// forgotten all others: the data directory that it names must not go on record.
func TestHelloAcrossARecovery(t *testing.T) {
	b := newPeerBook()
	n := &Node{peers: b, log: hclog.NewNullLogger(), now: time.Now}
	hello := func(id cluster.NodeID, clusterID string, g uint64) {
		n.Known(cluster.Peer{Identity: cluster.Identity{NodeID: id, ClusterID: clusterID, Generation: cluster.Generation{Number: g}, Incarnation: "of " + string(id)}}, cluster.Admission{})
	}
	b.clear()
	hello("n2", "c", 1) // judged by what this node was
	hello("n3", "c", 2)
	hello("n4", "", 0) // an empty data directory, as a member comes back with
	got := b.hellos(cluster.Generation{Number: 2})
	if _, old := got["n2"]; old || len(got) != 2 {
		t.Errorf("hellos of %v", got)
	}
	if got := b.hellos(cluster.Generation{}); len(got) != 3 {
		t.Errorf("before there is a generation: hellos of %v", got)
	}
}
