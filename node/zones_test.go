package node

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// Leadership returns to the preferred zone by itself, also after an operator has moved it away.
func TestZones(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(i int, c *Config) {
		calm(i, c)
		c.Zone = []string{"east", "west", "north"}[i]
		c.Failover.Zones = []string{"west", "east"}
		c.Failover.TakeoverDelay = minTakeover
	})
	startAll(t, nodes)
	west := nodes[1]
	eventually(t, "the node in the preferred zone leads", func() bool {
		return west.Consensus().Status().Role == cluster.Leader
	})
	before := west.Consensus().Status().Term
	eventually(t, "an operator moves leadership to another zone, and it returns by itself", func() bool {
		// On a busy machine the move may fail, or an election may bring it back that is not for the zone.
		_, _, _ = request(plain, http.MethodPost, "http://"+west.httpAddr+"/admin/transfer",
			`{"target_zone":"north","reason":"drill"}`)
		return slices.ContainsFunc(west.Consensus().View().Elections(), func(e state.Election) bool {
			return e.Trigger == "priority" && e.Node == "n2" && strings.Contains(e.Reason, `is in zone "west"`) &&
				strings.Contains(e.Reason, "of the leader n3") && e.Term > before
		})
	})
}
