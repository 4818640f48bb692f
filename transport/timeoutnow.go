package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// TimeoutNowUndelivered is the error of a TimeoutNow that certainly has not reached the peer's Raft, and never will.
type TimeoutNowUndelivered struct{ err error }

func (e *TimeoutNowUndelivered) Error() string { return e.err.Error() }
func (e *TimeoutNowUndelivered) Unwrap() error { return e.err }

// Undelivered returns true. Packages that cannot import this one recognize the error by it.
func (e *TimeoutNowUndelivered) Undelivered() bool { return true }

// TimeoutNow makes a peer start an election. Its duration is bounded, because the library rejects all proposals
// meanwhile. The error is a *TimeoutNowUndelivered if the peer certainly starts no election.
func (r *Raft) TimeoutNow(
	id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	start := time.Now()
	if !r.track() {
		return r.fail(start, errClosed)
	}
	// The RPC uses copies, because it may outlast this call.
	req := *args
	var answer raft.TimeoutNowResponse
	done := make(chan error, 1)
	go func() {
		defer r.untrack()
		done <- r.sendTimeoutNow(r.message(id, "timeout_now", 0, 0), start, func(out *libTransport) error {
			return out.TimeoutNow(id, target, &req, &answer)
		})
	}()
	timer := time.NewTimer(r.t.cfg.TimeoutMax)
	defer timer.Stop()
	select {
	case err := <-done:
		if err == nil {
			*resp = answer
		}
		return err
	case <-timer.C:
		return fmt.Errorf("no answer to TimeoutNow from node %s within %v", id, r.t.cfg.TimeoutMax)
	}
}

// sendTimeoutNow sends a TimeoutNow. If a pooled connection was dead, it repeats the message on a new one; the outcome
// of the first attempt is unknown then.
func (r *Raft) sendTimeoutNow(m Message, start time.Time, do func(*libTransport) error) error {
	err := r.call(m, start, do)
	if connectionDied(err) {
		if p, perr := r.peer(m.To); perr == nil {
			p.forget()
		}
		return r.call(m, start, do)
	}
	var dial *dialError
	if err != nil && (errors.As(err, &dial) || errors.Is(err, errTimeoutNowRejected)) {
		return &TimeoutNowUndelivered{err}
	}
	return err
}
