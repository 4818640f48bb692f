package consensus_test

import (
	"context"
	"testing"

	"northstar/cluster"
)

// TestStopAfterALostAnswer: the library loses answers when it ends. That is no failure of the stop.
func TestStopAfterALostAnswer(t *testing.T) {
	t.Parallel()
	_, leader := startCalmCluster(t, 1)
	until := make(chan struct{})
	defer close(until)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, leader.ChangeWithoutAnswer(ctx, until), cluster.CodeOutcomeUnknown)
	leader.stop()
}
