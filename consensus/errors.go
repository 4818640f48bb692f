package consensus

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// ErrLeadershipLost is the cause of a leader task's context when this node has stopped leading.
var ErrLeadershipLost = errors.New("leadership lost")

var errStopped = errors.New("this node is stopping")

// retrySoon is the retry delay for a caller whose request found no leader: about one heartbeat.
const retrySoon = 50 * time.Millisecond

func notLeader(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeNoLeader, format, args...)
	err.RetryAfter = retrySoon
	return err
}

func unknownOutcome(cause error) *cluster.Error {
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "the write was handed to Raft and may or may not take effect: %w",
		cause)
}

// proposalError maps the error of a Raft future to the contract's errors. Only errors that the library returns before
// it appends are "not proposed". Any other may hide a write that takes effect.
func proposalError(err error, f interface{ Index() uint64 }) *cluster.Error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return notLeader("not proposed: %w", err)
	case errors.Is(err, raft.ErrRaftShutdown) && f.Index() == 0:
		return notLeader("not proposed: %w", errStopped)
	}
	return unknownOutcome(err)
}

func badField(field string, value any, want string) *cluster.Error {
	return cluster.Errorf(cluster.CodeBadRequest, "%s: %v: %s", field, value, want)
}

func notFound(id cluster.NodeID) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, "id: %s: no such member", id)
	err.Status = 404
	return err
}

// ConfigError reports that the configuration does not fit the data directory: the operator has to change one of them.
type ConfigError struct{ error }

func configError(format string, args ...any) error {
	return &ConfigError{fmt.Errorf(format, args...)}
}
