package node

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/state"
)

const (
	limitsInterval = time.Second // how often a leader compares the limits in force with its own
	limitsTimeout  = 5 * time.Second
	// quotaEventAfter is how long nothing must be refused until a refusal is an event again.
	quotaEventAfter = time.Minute
	// nodeIDsLeft is how few node IDs must be left for a warning.
	nodeIDsLeft = state.MaxMembers / 10
)

// limits returns the configured limits of the state.
func (c *Config) limits() state.Limits {
	return state.Limits{
		StateBytes: uint64(c.Limits.StateBytes), SessionsPerIdentity: c.Limits.SessionsPerIdentity,
		KeysPerSession: state.MaxSessionKeys,
	}
}

// proposeLimits makes this leader's limits those of the cluster. Verdicts must be equal on all nodes, so the limits in
// force are part of the state, and those of the leader count. Before every member can read them, nothing is limited.
func (n *Node) proposeLimits(ctx context.Context, _ uint64) {
	tick := time.NewTicker(limitsInterval)
	defer tick.Stop()
	for {
		if err := n.proposeLimitsOnce(ctx); err != nil && ctx.Err() == nil {
			n.log.Debug("cannot set the limits of the state, trying again", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) proposeLimitsOnce(ctx context.Context) error {
	v := n.consensus.View()
	cmd := limitsChange(v.Limits(), n.cfg.limits(), v.CommandVersion(), n.consensus.ReadsVersion())
	if cmd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	result, err := n.consensus.Propose(ctx, *cmd)
	if err == nil && result.Err != nil {
		return result.Err
	}
	return err
}

// limitsChange returns the command with which a leader sets its own limits, and makes the state decide by RolesVersion.
// It is nil if there is nothing to do or some member cannot read it. inUse is the command version in the log, and reads
// the one that all members are known to read: without that of the bound of a session's keys, the other limits are set.
func limitsChange(inForce, own state.Limits, inUse, reads uint32) *state.Command {
	reads = max(reads, inUse) // every member needs a version in the log in any case
	if reads < state.BoundsVersion {
		own.KeysPerSession = inForce.KeysPerSession
	}
	raises := inUse < state.RolesVersion && reads >= state.RolesVersion
	cmd := own.Change(raises)
	if inForce == own && !raises || reads < cmd.MinVersion() {
		return nil
	}
	return &cmd
}

// countProposal counts a proposal, and notes a refusal by a limit of the state.
func (n *Node) countProposal(result string) {
	n.metrics.Proposals(result, 1)
	if result == "quota_exceeded" {
		now := time.Now()
		n.quotaRefused.Store(&now)
	}
}

// quotaExceeded reports whether a limit of the state has refused something here within quotaEventAfter.
func (n *Node) quotaExceeded() bool {
	last := n.quotaRefused.Load()
	return last != nil && time.Since(*last) < quotaEventAfter
}

// addQuota adds an event for the first refusal by a limit of the state, and when nothing is refused any longer.
func (l *eventList) addQuota(prev, next stateSnapshot) {
	fields := map[string]any{
		"state_bytes": next.stateBytes, "state_bytes_limit": next.limits.StateBytes,
		"sessions_per_identity": next.limits.SessionsPerIdentity,
	}
	switch {
	case next.quotaExceeded && !prev.quotaExceeded:
		l.add(true, "quota", "quota exceeded: the state, or an identity's share of it, is full and does not grow", fields)
	case prev.quotaExceeded && !next.quotaExceeded && next.status.Role == cluster.Leader:
		l.add(false, "quota", "no request was refused by a quota for a minute", fields)
	}
}

// stateSize returns the values of the metrics about the size of the state.
func (n *Node) stateSize() (keys int, bytes int64, limit uint64) {
	v := n.consensus.View()
	return v.Keys(), v.StateBytes(), v.Limits().StateBytes
}

// nodeIDsWarning warns when few nodes with a new ID can be added. Records of removed members count, and always stay.
func nodeIDsWarning(records int) string {
	if state.MaxMembers-records > nodeIDsLeft {
		return ""
	}
	return fmt.Sprintf("node IDs: the cluster knows %d, with those of removed nodes, and takes %d at most: from now on "+
		"add nodes with the IDs of removed ones", records, state.MaxMembers)
}
