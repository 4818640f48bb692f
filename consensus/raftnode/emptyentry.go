package raftnode

import (
	"time"

	"northstar/state"
)

// emptyBatch is an entry without commands, which every build reads. It cannot fail to encode.
var emptyBatch, _ = state.EncodeBatch(nil)

// ApplyNothing appends an entry that changes nothing, and returns when it is applied. wait bounds how long raft.Raft
// may be busy before that. The library's own barriers and no-ops never reach the state machine: a reader that waits
// until the index of such an entry is applied would wait for the next write.
func (i *Instance) ApplyNothing(wait time.Duration) error {
	return i.Raft.Apply(emptyBatch, wait).Error()
}
