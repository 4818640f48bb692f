package node

import (
	"context"
	"errors"

	"northstar/cluster"
	"northstar/splitbrain"
	"northstar/transport"
)

// buildSplitBrainDetector builds the detector of second leaders and other clusters.
func (n *Node) buildSplitBrainDetector() {
	n.splitBrain = splitbrain.New(splitbrain.Config{
		Self: n.cfg.ID, BootID: n.boot, RaftAddress: n.raftAddr, Interval: n.cfg.SplitBrain.Interval,
		TimeoutMin: n.cfg.Election.TimeoutMin, TimeoutMax: n.cfg.Election.TimeoutMax,
	}, splitbrain.Deps{
		Self: n.consensus.Claim, Servers: n.consensus.Servers,
		Claims: n.transport.Claims, Changed: n.transport.ClaimsChanged, Poll: n.transport.Poll,
		BroadcastClaim: n.transport.Announce,
		FetchLeader: func(ctx context.Context, id cluster.NodeID) (splitbrain.Answer, string, error) {
			return n.api.AskLeader(ctx, id)
		},
		Probe: func(ctx context.Context, address string) bool {
			_, _, err := n.transport.Probe(ctx, address) // the hello itself reaches the detector through OnHello
			return err == nil || errors.As(err, new(*transport.RefusedError))
		},
		VerifyLeadership: n.consensus.ReadBarrier, StepDown: n.consensus.StepDown,
		Event: func(e cluster.Event, alarm bool) {
			e.Term = n.consensus.Status().Term
			if alarm {
				n.journal.Warn(e)
			} else {
				n.journal.Append(e)
			}
		},
		Detected: n.metrics.SplitBrain, Logger: n.log,
	})
}
