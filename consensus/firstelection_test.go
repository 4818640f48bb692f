package consensus_test

import (
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus"
)

// The members of a new cluster elect their leader when all of them run, without waiting for a timer. One that is
// preferred is the candidate, and otherwise the last one.
func TestFirstElectionNeedsNoTimer(t *testing.T) {
	t.Parallel()
	for preferred, want := range map[cluster.NodeID]cluster.NodeID{"": "n3", "n1": "n1", "n2": "n2"} {
		t.Run("preferred "+string(preferred), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			c.pace = 300 // no busy machine needs as long as a timer
			c.tune = func(cfg *consensus.Config) {
				if cfg.Self.NodeID == preferred {
					cfg.Self.Priority++
				}
			}
			began := time.Now()
			for _, n := range c.nodes {
				n.start()
			}
			leader := c.leader()
			if took := time.Since(began); leader.id != want || took >= c.pace*timeoutMin {
				t.Errorf("%s leads after %v, want %s before a timer", leader.id, took, want)
			}
			if term := leader.Status().Term; term != 2 {
				t.Errorf("elected in term %d, want one election", term)
			}
		})
	}
}

// While a member is missing, only a timer elects.
func TestFirstElectionWithoutAMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	began := time.Now()
	for _, id := range []cluster.NodeID{"n1", "n3"} {
		c.nodes[id].start()
	}
	c.leader()
	if took := time.Since(began); took < timeoutMin {
		t.Errorf("elected after %v, before any timer", took)
	}
}
