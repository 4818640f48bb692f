package consensus

import (
	"context"
	"testing"
	"time"

	"northstar/cluster"
)

// TestAwaitApplied_AsksPeerThatAnswersAppendsAgain: in its first moments a process answers appends, and questions only
// a moment later.
func TestAwaitApplied_AsksPeerThatAnswersAppendsAgain(t *testing.T) {
	t.Parallel()
	const index = 7
	for name, tc := range map[string]struct {
		contact time.Time
		asked   int // how often, until it is known
	}{
		"answers appends": {time.Now(), 3},
		"answers nothing": {time.Time{}, 1},
	} {
		asked := 0
		n := &Node{cfg: Config{TimeoutMax: time.Minute}, deps: Deps{
			PeerAck: func(cluster.NodeID) cluster.PeerAck { return cluster.PeerAck{LastContact: tc.contact} },
			Poll: func(context.Context, []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
				asked++
				switch asked {
				case 1: // no connection yet
					return nil
				case 2: // behind
					return map[cluster.NodeID]cluster.ReceivedClaim{
						"n2": {Claim: cluster.Claim{AppliedIndex: index - 1}},
					}
				}
				return map[cluster.NodeID]cluster.ReceivedClaim{"n2": {Claim: cluster.Claim{AppliedIndex: index}}}
			},
		}}
		n.awaitApplied(t.Context(), "n2", index)
		if asked != tc.asked {
			t.Errorf("who %s was asked %d times, want %d", name, asked, tc.asked)
		}
	}
}
