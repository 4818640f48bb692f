package consensus

import (
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// In the middle of an upgrade, a recovery is one that every member reads.
func TestRecoveryCommandIsRead(t *testing.T) {
	t.Parallel()
	f := identityFile{Recovery: &recoveryRecord{}}
	f.Generation = cluster.Generation{Number: 2, RecoveryID: "r"}
	if c := f.recoveryCommand(state.CommandVersion, cluster.Record{}); !c.Recovery.LockDelay {
		t.Error("roles wait for nobody")
	}
	for reads := uint32(1); reads < state.CommandVersion; reads++ {
		if c := f.recoveryCommand(reads, cluster.Record{}); c.MinVersion() > reads {
			t.Errorf("version %d where members read %d", c.MinVersion(), reads)
		}
	}
}
