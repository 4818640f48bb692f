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

// replayedMany reports whether the state machine has got the log that this run started with, and that so many of its
// entries followed the newest snapshot that one is due. raft.Raft itself first looks when the snapshot interval has
// passed. A node that is started again more often would read a longer log each time, and be ready later.
func (i *Instance) replayedMany() bool {
	newest := i.cfg.Snapshots.newestIndex()
	return i.startedWith > newest && i.startedWith-newest >= i.cfg.SnapshotThreshold &&
		i.cfg.FSM.delivered.Load() >= i.startedWith
}

func (i *Instance) isSnapshotDue() bool { return i.isLogTooLarge() || i.replayedMany() }

// RunSnapshots writes a snapshot when the entries since the newest one are too large together, or this run has replayed
// too many of them, until ctx ends and Shutdown was called. raft.Raft itself counts entries only, and looks at their
// number once in a snapshot interval.
func (i *Instance) RunSnapshots(ctx context.Context) {
	for {
		select {
		case <-i.snapshotDue:
		case <-ctx.Done():
			return
		}
		if !i.isSnapshotDue() { // any longer
			continue
		}
		err := i.Raft.Snapshot().Error()
		if err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot) {
			continue
		}
		i.cfg.Logger.Warn("cannot write a snapshot yet", "error", err)
		select {
		case <-time.After(snapshotRetryDelay):
		case <-ctx.Done():
			return
		}
	}
}
