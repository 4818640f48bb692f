package node

import (
	"context"
	"fmt"

	"northstar/audit"
	"northstar/cluster"
	"northstar/state"
)

// auditFile is the file of audit records that are not committed yet.
const auditFile = "audit-spool"

func (n *Node) buildAudit() {
	n.audit = audit.New(audit.Deps{
		Source: string(n.cfg.ID) + "/" + n.boot,
		Send:   n.sendAudit, SendWithin: 2 * n.cfg.Election.TimeoutMax,
		Changed: n.consensus.LeaderChanged,
		Load:    func() ([]byte, error) { return n.consensus.LoadFile(auditFile) },
		Save:    func(data []byte) error { return n.consensus.SaveFile(auditFile, data) },
		Count:   n.metrics.Audit, Logger: n.log,
	})
}

// sendAudit commits a batch of audit records, here or through the leader.
func (n *Node) sendAudit(ctx context.Context, batch state.Command) error {
	leader := n.consensus.Status().LeaderID
	switch need := batch.MinVersion(); {
	case leader == "":
		return fmt.Errorf("no leader known")
	case n.consensus.ReadsVersion() < need:
		return fmt.Errorf("a member does not support command version %d", need)
	case leader == n.cfg.ID:
		return n.proposeAudit(ctx, batch)
	}
	data, err := state.EncodeBatch([]state.Command{batch})
	if err != nil {
		return err
	}
	return n.transport.Relay(ctx, leader, data)
}

// auditDropped returns the number of records removed from the cluster's audit log.
func (n *Node) auditDropped() map[string]uint64 {
	dropped := n.consensus.View().AuditCounts().Dropped
	return map[string]uint64{"clients": dropped[state.AuditClients], "operators": dropped[state.AuditOperators]}
}

// receiveAuditBatch commits a batch of another member.
func (n *Node) receiveAuditBatch(ctx context.Context, from cluster.NodeID, data []byte) error {
	batch, err := state.DecodeBatch(data)
	if err != nil {
		return err
	}
	if len(batch) != 1 || batch[0].Kind != state.KindAudit {
		return fmt.Errorf("node %s sends %d commands where one batch of audit records belongs", from, len(batch))
	}
	return n.proposeAudit(ctx, batch[0])
}

func (n *Node) proposeAudit(ctx context.Context, batch state.Command) error {
	result, err := n.consensus.Propose(ctx, batch)
	if err == nil && result.Err != nil {
		return result.Err
	}
	return err
}
