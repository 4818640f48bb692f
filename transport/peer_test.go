package transport

import (
	"fmt"
	"testing"

	"northstar/cluster"
)

// TestFormerMembersMakeRoom: a node that runs for long and has dialled many members, which came and went under new IDs,
// has room for another one. Present members keep theirs.
func TestFormerMembersMakeRoom(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1")
	var members []cluster.Server
	dial := func(id cluster.NodeID) error {
		p, err := n1.raft.peer(id)
		if err == nil {
			_, err = p.outbound()
		}
		return err
	}
	for i := range maxPeers {
		id := cluster.NodeID(fmt.Sprintf("old-%d", i))
		members = append(members, cluster.Server{ID: id, Suffrage: cluster.Voter})
		if err := dial(id); err != nil {
			t.Fatal(err)
		}
	}
	setMembers := func(all []cluster.Server) {
		n1.mu.Lock()
		defer n1.mu.Unlock()
		n1.servers = all
	}
	setMembers(members)
	if err := dial("new"); err == nil {
		t.Error("a present member has made room")
	}
	setMembers(members[1:])
	if err := dial("new"); err != nil {
		t.Errorf("no room for a new member: %v", err)
	}
	n1.raft.mu.Lock()
	defer n1.raft.mu.Unlock()
	for _, m := range members[1:] {
		if n1.raft.peers[m.ID] == nil {
			t.Errorf("the member %s was forgotten", m.ID)
		}
	}
}
