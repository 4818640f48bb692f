package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Defaults of ElectorConfig.
const (
	DefaultCheckInterval = 5 * time.Second
	DefaultCheckTimeout  = 2 * time.Second
	DefaultCheckFailures = 3
)

// ErrUnhealthy: the holder's own health check failed too often, so it releases the role.
var ErrUnhealthy = fmt.Errorf("%w: the health check failed", ErrNotLeader)

// errCheckTimeout is the result of a check that is still running after its timeout.
var errCheckTimeout = errors.New("no result in time")

// healthCheck calls a function that may hang. It belongs to one goroutine at a time.
type healthCheck struct {
	healthy func(ctx context.Context) error
	timeout time.Duration
	pending chan error // the result of a call that has not returned; nil: none is running
}

// run returns the result of the check, an error if there is none within the timeout, or the cause of ctx. A call that
// hangs is not repeated. Its late result does not count, because the call has counted as an error: run calls again.
func (h *healthCheck) run(ctx context.Context) error {
	for {
		late := h.pending != nil
		err := h.await(ctx)
		if !late || h.pending != nil {
			return err
		}
	}
}

// await waits for the result of a call, which it starts if none is running.
func (h *healthCheck) await(ctx context.Context) error {
	limit, cancel := context.WithTimeoutCause(ctx, h.timeout, errCheckTimeout)
	defer cancel()
	if h.pending == nil {
		result := make(chan error, 1)
		h.pending = result
		go func() { result <- h.healthy(limit) }()
	}
	select {
	case err := <-h.pending:
		h.pending = nil
		return err
	case <-limit.Done():
		return context.Cause(limit)
	}
}
