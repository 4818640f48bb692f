package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// timeoutNow delivers a TimeoutNow of the leader, and of no other node. The vote requests that follow may carry the
// LeadershipTransfer flag.
func (m incoming) timeoutNow() {
	if !m.p.votes.AllowN(time.Now(), 1) {
		m.refuse("rate", fmt.Errorf("%w: node %s sends TimeoutNow too often", errTimeoutNowRejected, m.p.id))
		return
	}
	if m.local.ElectionBlocked() {
		m.refuse("barred", fmt.Errorf("%w: %w", errTimeoutNowRejected, errElectionBlocked))
		return
	}
	if err := m.r.checkSuffrage(); err != nil {
		m.refuse("barred", fmt.Errorf("%w: %w", errTimeoutNowRejected, err))
		return
	}
	term := m.local.CurrentTerm()
	if m.senderIsLeader(term) {
		if why := m.r.t.cfg.Elections.ApproveTimeoutNow(m.r.ctx, m.p.id, term); why != "" {
			m.refuse("withdrawn", fmt.Errorf("%w: %s", errTimeoutNowRejected, why))
			return
		}
	}
	m.deliverTimeoutNow(term)
}

// deliverTimeoutNow passes the TimeoutNow of the leader of term to raft. While raft is busy, the leader may cancel the
// transfer: then the message must no longer reach raft. If raft is a candidate, its candidacy is ended first
// (endCandidacyAppend). From then on the old leader leads no longer, and must not believe that nothing has happened.
func (m incoming) deliverTimeoutNow(term uint64) {
	due := func() error {
		if !m.senderIsLeader(term) {
			return fmt.Errorf("%w: it comes from node %s, the leader is %q", errTimeoutNowRejected, m.p.id,
				m.local.Leader())
		}
		if err := m.r.checkSuffrage(); err != nil {
			return fmt.Errorf("%w: %w", errTimeoutNowRejected, err)
		}
		return nil
	}
	var busy error = errTimeoutNowRejected
	if m.local.Candidate() {
		if m.offerTimeoutNow(m.r.endCandidacyAppend(term+1), nil, due, busy) == nil {
			return
		}
		m.r.t.cfg.Elections.TermRaised(term + 1)
		due, busy = m.r.raisedDue(m.local, term+1), errNoElection
	}
	if reply := m.offerTimeoutNow(m.rpc.Command, &flagPermission{term: term}, due, busy); reply != nil {
		m.pass(reply, nil)
	}
}

var errNoElection = errors.New("no election was started")

// offerTimeoutNow offers raft a message for TimeoutMin. If due reports an error, or raft takes no message, for which
// busy is the error, it refuses the TimeoutNow and returns nil.
func (m incoming) offerTimeoutNow(command any, flag *flagPermission, due func() error, busy error,
) <-chan raft.RPCResponse {
	look := time.NewTicker(busyPollInterval)
	defer look.Stop()
	for limit := time.Now().Add(m.r.t.cfg.TimeoutMin); ; {
		reply, err := m.r.offerElection(command, flag, due, look.C)
		switch {
		case errors.Is(err, errElectionNotAllowed):
			m.refuse("barred", err)
			return nil
		case err != nil:
			m.refuse("not_leader", err)
			return nil
		case reply != nil:
			return reply
		case m.r.ctx.Err() != nil:
			m.rpc.Respond(nil, errClosed)
			return nil
		case !time.Now().Before(limit):
			m.refuse("busy", fmt.Errorf("%w: raft is busy", busy))
			return nil
		}
	}
}

// TimeoutNowUndelivered is the error of a TimeoutNow that certainly has not reached the peer's Raft, and never will.
type TimeoutNowUndelivered struct{ error }

func (e *TimeoutNowUndelivered) Unwrap() error { return e.error }

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

// sendTimeoutNow sends a TimeoutNow, again if a pooled connection was dead: the first outcome is unknown then.
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
