package raftnode

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotRetryDelay is how long the next snapshot waits after one that failed.
const snapshotRetryDelay = 10 * time.Second

// maxLogBytes returns after how many bytes of entries the next snapshot is written. As many stay in the log then.
func (i *Instance) maxLogBytes() uint64 {
	return max(i.cfg.LogBytes, uint64(i.cfg.Snapshots.newestSize.Load()))
}

func (i *Instance) isLogTooLarge() bool {
	return i.cfg.FSM.size.since(i.cfg.Snapshots.newestIndex()) >= i.maxLogBytes()
}

// RunSnapshots writes a snapshot whenever the entries since the newest one are too large together, until ctx ends and
// Shutdown was called. raft.Raft itself counts entries only, and looks at their number once in a snapshot interval.
func (i *Instance) RunSnapshots(ctx context.Context) {
	for {
		select {
		case <-i.logTooLarge:
		case <-ctx.Done():
			return
		}
		if !i.isLogTooLarge() { // any longer
			continue
		}
		err := i.Raft.Snapshot().Error()
		if err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot) {
			continue
		}
		i.cfg.Logger.Warn("cannot write a snapshot of a large log yet", "error", err)
		select {
		case <-time.After(snapshotRetryDelay):
		case <-ctx.Done():
			return
		}
	}
}
