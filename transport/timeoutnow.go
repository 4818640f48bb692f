package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// TimeoutNowUndelivered is a TimeoutNow that has certainly not reached the peer's Raft,
// and never will.
type TimeoutNowUndelivered struct{ err error }

func (e *TimeoutNowUndelivered) Error() string { return e.err.Error() }
func (e *TimeoutNowUndelivered) Unwrap() error { return e.err }

// Undelivered marks the error for whoever cannot import this package.
func (e *TimeoutNowUndelivered) Undelivered() bool { return true }

// TimeoutNow makes a peer start an election at once. Its time is bounded: while it
// lasts, the library refuses all proposals. The error is a *TimeoutNowUndelivered where
// it is known that the peer will not.
func (r *Raft) TimeoutNow(
	id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	start := time.Now()
	if !r.track() {
		return r.fail(start, errClosed)
	}
	// The call works on copies, as it may outlast this function.
	req := *args
	var answer raft.TimeoutNowResponse
	done := make(chan error, 1)
	go func() {
		defer r.untrack()
		done <- r.tell(r.message(id, "timeout_now", 0, 0), start, func(out *libTransport) error {
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

// tell sends a TimeoutNow. When it fails because a pooled connection was dead it
// is sent once more, on a new one; what became of the first is not known then.
func (r *Raft) tell(m Message, start time.Time, do func(*libTransport) error) error {
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
