package consensus_test

import (
	"testing"

	"northstar/cluster"
)

// TestRemoveDead_Back: a silent voter has come back since the leader planned its removal. It stays.
func TestRemoveDead_Back(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 4)
	back := c.others(leader)[0]
	eventually(t, "it is in contact", func() bool { return inContact(leader, back.id) })
	leader.RemoveDead(within(t, testTimeout), back.id)
	if _, ok := cluster.FindServer(leader.Status().Servers, back.id); !ok {
		t.Error("it was removed")
	}
}
