package consensus

import (
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// In the middle of an upgrade, a recovery is one that every member reads. A member that has not said what it supports
// takes no lock delay away once the log has such a version.
func TestRecoveryCommandIsRead(t *testing.T) {
	t.Parallel()
	f := identityFile{Recovery: &recoveryRecord{}}
	f.Generation = cluster.Generation{Number: 2, RecoveryID: "r"}
	if c := f.recoveryCommand(1, state.CommandVersion, cluster.Record{}); !c.Recovery.LockDelay {
		t.Error("roles wait for nobody")
	}
	for reads := uint32(1); reads < state.CommandVersion; reads++ {
		if c := f.recoveryCommand(1, reads, cluster.Record{}); c.MinVersion() > reads {
			t.Errorf("version %d where members read %d", c.MinVersion(), reads)
		}
		if c := f.recoveryCommand(state.CommandVersion, reads, cluster.Record{}); !c.Recovery.LockDelay {
			t.Errorf("roles wait for nobody: the log has version %d, a member says %d", state.CommandVersion, reads)
		}
	}
}
