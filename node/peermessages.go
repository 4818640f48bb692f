package node

import (
	"context"
	"fmt"

	"northstar/cluster"
	"northstar/state"
	"northstar/transport"
	"northstar/transport/monitor"
)

// peerMessages is this node as the transport needs it: what it sends to its peers, and does with their messages.
type peerMessages struct{ n *Node }

var (
	_ transport.Replication = peerMessages{}
	_ transport.Handler     = peerMessages{}
	_ transport.Events      = peerMessages{}
	_ monitor.Claims        = peerMessages{}
)

// Claim returns this node's claim for its peers.
func (m peerMessages) Claim() cluster.Claim {
	c := m.n.consensus.Claim()
	m.n.failover.AnnotateClaim(&c)
	c.ServiceRefused, c.DuplicateIDs = m.n.splitBrain.Refusing() != "", m.n.splitBrain.DuplicateIDs()
	c.Superseded = m.n.consensus.GenerationSuperseded()
	return c
}

func (m peerMessages) OnHeard(from cluster.NodeID, c *cluster.Claim) { m.n.failover.OnHeard(from, c) }

func (m peerMessages) OnConnectionLost(l cluster.ConnectionLoss) { m.n.failover.OnConnectionLost(l) }

func (m peerMessages) ReadOnly() bool { return m.n.consensus.ReadOnly() }

// ReplicationPaused reports whether this node must not send AppendEntries, so that others elect a leader: its
// disk hangs, it hears no majority, or it must not lead.
func (m peerMessages) ReplicationPaused() bool {
	hangs := m.n.consensus.DiskHangs(m.n.cfg.Failover.Fast) && m.n.failover.Replaceable()
	switch {
	case m.n.consensus.StepDownPending():
		return true
	case !hangs && !m.n.failover.Yields(), !m.n.autoFailoverEnabled():
		return false
	}
	if hangs {
		m.n.failover.OnDiskHangs()
	}
	return true
}

// Relayed commits a batch of audit records of another member.
func (m peerMessages) Relayed(ctx context.Context, from cluster.NodeID, data []byte) error {
	batch, err := state.DecodeBatch(data)
	if err != nil {
		return err
	}
	if len(batch) != 1 || batch[0].Kind != state.KindAudit {
		return fmt.Errorf("node %s sends %d commands where one batch of audit records belongs", from, len(batch))
	}
	return m.n.proposeAudit(ctx, batch[0])
}

// Called answers a call of another member.
func (m peerMessages) Called(ctx context.Context, from cluster.NodeID, request []byte) []byte {
	return m.n.api.Calls().Handle(ctx, from, request)
}

// Rejected counts a rejected connection or message.
func (m peerMessages) Rejected(kind, reason string) { m.n.metrics.RPCRejected(kind, reason) }

// InstallRepeated counts and reports a snapshot that this leader sends again. The transport delays repeated ones, up to
// ten seconds each.
func (m peerMessages) InstallRepeated(peer cluster.NodeID, index uint64, times int) {
	m.n.metrics.InstallRepeated(string(peer))
	m.n.eventLog.Warn(cluster.Event{
		Type: "node",
		Message: fmt.Sprintf(
			"node %s has installed the snapshot of entry %d already and needs it again (repetition %d)",
			peer, index, times),
		Fields: map[string]any{
			"kind": "snapshot_install_repeated", "peer": string(peer), "index": index, "times": times,
		},
	})
}
