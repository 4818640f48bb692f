package consensus

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

// TestRefusalIsLoggedOnce: all peers refuse a wiped node, each at every try.
func TestRefusalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	n := &Node{
		peers: newPeerRegistry(), state: state.New(state.Options{}), ident: &identity{},
		log: hclog.New(&hclog.LoggerOptions{Output: &out}),
	}
	n.ident.cur.Store(&identityFile{})
	lines := func() int { return strings.Count(out.String(), "\n") }
	for range 3 {
		for _, by := range []cluster.NodeID{"n2", "n3", "n4"} {
			n.OnRefused(by, cluster.RefusedIncarnation, "wiped")
		}
	}
	if lines() != 1 {
		t.Errorf("%d lines:\n%s", lines(), &out)
	}
	n.OnRefused("n2", cluster.RefusedRemoved, "removed")
	if lines() != 2 {
		t.Errorf("%d lines after another refusal:\n%s", lines(), &out)
	}
	for _, by := range []cluster.NodeID{"n2", "n3", "n4"} {
		n.OnAdmitted(by)
	}
	n.OnRefused("n3", cluster.RefusedIncarnation, "wiped again")
	if lines() != 3 {
		t.Errorf("%d lines after it was let in between:\n%s", lines(), &out)
	}
}

// TestHelloAcrossARecovery: a hello is in progress while this node is recovered. It arrives after the recovery has
// cleared the peer registry. Its incarnation must not be recorded.
func TestHelloAcrossARecovery(t *testing.T) {
	t.Parallel()
	b := newPeerRegistry()
	n := &Node{peers: b, log: hclog.NewNullLogger()}
	hello := func(id cluster.NodeID, clusterID string, g uint64) {
		n.OnHello(cluster.Peer{Identity: cluster.Identity{
			NodeID: id, ClusterID: clusterID,
			Generation: cluster.Generation{Number: g}, Incarnation: "of " + string(id),
		}}, cluster.Admission{})
	}
	b.clear()
	hello("n2", "c", 1) // evaluated by what this node was
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

// TestHelloAcrossAReadmission: a hello was admitted by a record that a re-admission has cleared since. Its data
// directory is the old one: it must not be recorded. A hello that the cleared record admits is recorded.
func TestHelloAcrossAReadmission(t *testing.T) {
	t.Parallel()
	n := &Node{peers: newPeerRegistry(), log: hclog.NewNullLogger()}
	n.peers.incarnationCleared("n2", 8)
	for _, h := range []struct {
		incarnation string
		asOf        uint64
		want        string
	}{{"old", 7, ""}, {"new", 8, "new"}, {"old", 7, "new"}} {
		p := cluster.Peer{Identity: cluster.Identity{NodeID: "n2", Incarnation: h.incarnation}}
		n.OnHello(p, cluster.Admission{AsOfIndex: h.asOf})
		if got := n.peers.hellos(cluster.Generation{})["n2"].Incarnation; got != h.want {
			t.Errorf("after a hello of the %s data directory, admitted as of %d: %q, want %q", h.incarnation, h.asOf,
				got, h.want)
		}
	}
	if a := cluster.Admit(cluster.Peer{}, cluster.Peer{Identity: cluster.Identity{NodeID: "n2"}},
		cluster.Record{AsOfIndex: 7}); a.AsOfIndex != 7 {
		t.Errorf("admitted as of %d, want 7", a.AsOfIndex)
	}
}

// TestRecorded: a node names the index as of which the state has its data directory. It names none for a data
// directory that was wiped, or of a removed member.
func TestRecorded(t *testing.T) {
	t.Parallel()
	s := state.New(state.Options{})
	self := cluster.Identity{NodeID: "n1", Incarnation: "i1"}
	none, first := "", "i1"
	for i, tt := range []struct {
		what string
		cmd  state.Command
		want uint64
	}{
		{
			"another member",
			state.Command{Kind: state.KindMember, Member: &cluster.Member{ID: "n2", Incarnation: "i1"}},
			0,
		},
		{"added, and not seen yet", state.Command{Kind: state.KindMember, Member: &cluster.Member{ID: "n1"}}, 0},
		{"seen", state.Command{Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{
			ID:          "n1",
			Incarnation: &first,
		}}, 3},
		{"re-admitted, and not seen yet", state.Command{
			Kind:        state.KindMemberPatch,
			MemberPatch: &state.MemberPatch{ID: "n1", Incarnation: &none},
		}, 0},
		{"seen again", state.Command{Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{
			ID:          "n1",
			Incarnation: &first,
		}}, 5},
		{"removed", state.Command{Kind: state.KindMemberRemove, MemberRemove: &state.MemberRemove{ID: "n1"}}, 0},
		{"added with another data directory", state.Command{
			Kind:   state.KindMember,
			Member: &cluster.Member{ID: "n1", Incarnation: "i2"},
		}, 0},
	} {
		if r := s.Apply(uint64(i+1), 1, []state.Command{tt.cmd}); r[0].Err != nil {
			t.Fatal(tt.what, r[0].Err)
		}
		if got := ownRecordIndex(s.View(), self); got != tt.want {
			t.Errorf("%s: recorded as of %d, want %d", tt.what, got, tt.want)
		}
	}
}

// The record of a member is as of what it is taken from: the roster on disk, until the state has caught up with it.
func TestRecordAsOf(t *testing.T) {
	t.Parallel()
	n := &Node{state: state.New(state.Options{}), ident: &identity{}, peers: newPeerRegistry()}
	n.ident.cur.Store(&identityFile{
		RosterIndex: 2, Roster: map[cluster.NodeID]cluster.Record{"n2": {Incarnation: "of the roster"}},
		BootstrapIncarnations: map[cluster.NodeID]string{"n3": "met"},
	})
	want := func(id cluster.NodeID, rec cluster.Record) {
		t.Helper()
		if got := n.Record(id); got != rec {
			t.Errorf("%s: %+v, want %+v", id, got, rec)
		}
	}
	want("n2", cluster.Record{Incarnation: "of the roster", AsOfIndex: 2})
	for i := range uint64(3) {
		n.state.Apply(i+1, 1,
			[]state.Command{{Kind: state.KindMember, Member: &cluster.Member{ID: "n2", Incarnation: "of the state"}}})
		if i == 0 {
			want("n2", cluster.Record{Incarnation: "of the roster", AsOfIndex: 2})
		}
	}
	want("n2", cluster.Record{Incarnation: "of the state", AsOfIndex: 3})
	want("n3", cluster.Record{Incarnation: "met", AsOfIndex: 3})
	want("n4", cluster.Record{AsOfIndex: 3})
}

// Hellos of two connections arrive in another order than they were sent. The peer has adopted the cluster's ID between
// them.
func TestHellosOutOfOrder(t *testing.T) {
	t.Parallel()
	b := newPeerRegistry()
	n := &Node{peers: b, log: hclog.NewNullLogger()}
	hello := func(clusterID, boot string) string {
		n.OnHello(cluster.Peer{
			Identity: cluster.Identity{NodeID: "n2", ClusterID: clusterID, Incarnation: "i"}, BootID: boot,
		}, cluster.Admission{})
		return b.lastHellos["n2"].ClusterID
	}
	hello("", "b1")
	hello("c", "b1")
	if got := hello("", "b1"); got != "c" {
		t.Errorf("after an older hello the peer has the cluster ID %q", got)
	}
	if got := hello("", "b2"); got != "" {
		t.Errorf("another process has the cluster ID %q", got)
	}
}
