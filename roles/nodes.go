package roles

import (
	"context"
	"time"

	"northstar/state"
)

// How long a dead application node stays registered, and how often the registry is checked for such nodes.
const (
	deadNodeRetention     = time.Hour
	deadNodeSweepInterval = time.Minute
)

// purgeDeadNodes removes application nodes that have been dead for deadNodeRetention, until ctx ends.
func (k *SessionManager) purgeDeadNodes(ctx context.Context) {
	for sleep(ctx, deadNodeSweepInterval) {
		before := time.Now().Add(-deadNodeRetention).UnixNano()
		var ids []string
		for n := range k.deps.Consensus.View().AppNodesAfter("") {
			if n.Status == state.AppDead && n.ChangedAt < before && len(ids) < maxExpireBatch {
				ids = append(ids, n.ID)
			}
		}
		if len(ids) == 0 {
			continue
		}
		cmd := state.Command{Kind: state.KindAppNodeRemove, AppNodeRemove: &state.AppNodeRemove{
			IDs:       ids,
			DeadSince: before,
		}}
		if _, err := k.deps.Consensus.Propose(ctx, cmd); err != nil {
			k.logger.Debug("removing dead application nodes failed, will retry", "nodes", len(ids), "error", err)
		}
	}
}
