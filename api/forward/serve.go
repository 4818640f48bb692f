package forward

import (
	"context"
	"errors"
	"net/http"
	"time"

	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
)

// Serve serves r here if this node leads, otherwise it forwards r to the leader. It queues r while there is no
// reachable leader. A nil error means that r.Local succeeded. ErrResponseWritten means that a redirect or another
// node's response was written.
func (f *Forwarder) Serve(ctx context.Context, r Request) error {
	w := Wait{f: f, write: r.Write, client: r.Client}
	defer w.Release()
	for {
		w.leader = f.Leader.current.Load() // before Local, so that no change is missed
		err := f.serveLocally(ctx, &r)
		if !r.retries(err) || r.Forwarded || r.Stream.Consumed() {
			return r.withUnknownOutcome(err)
		}
		addr := f.remoteLeaderAddr(w.leader)
		switch {
		case addr == "":
		case r.Remote != nil:
			if err = f.callRemote(ctx, w.leader, &r); !r.retries(err) {
				return r.withUnknownOutcome(err)
			}
		default:
			if r.Redirect && !r.mayHaveApplied { // the client would send it again, without its number
				return f.redirect(&r, addr)
			}
			r.toLeader = true
			if err = f.Send(ctx, w.leader, addr, &r); err == nil {
				return ErrResponseWritten
			}
			if r.mayHaveApplied && !r.Idempotent || r.Stream.Consumed() {
				return err
			}
		}
		if r.Limit > 0 { // most requests need no context of their own, with a timer
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, r.Limit)
			defer cancel()
			r.Limit = 0
		}
		_, limited := ctx.Deadline()
		w.untilDeadline = r.mayHaveApplied && limited
		if held := w.Next(ctx, err); held != nil {
			if r.mayHaveApplied {
				return r.withUnknownOutcome(err)
			}
			return held
		}
	}
}

// retries reports whether another attempt is made after the result of one, and notes whether it may have been applied.
func (r *Request) retries(err error) bool {
	if r.Idempotent && r.Write && cluster.IsCode(err, cluster.CodeOutcomeUnknown) {
		r.mayHaveApplied = true
		return true
	}
	return cluster.IsCode(err, cluster.CodeNoLeader) ||
		r.mayHaveApplied && (isNodeUnavailable(err) || cluster.IsCode(err, cluster.CodeBusy))
}

// callRemote has the leader serve r by r.Remote.
func (f *Forwarder) callRemote(ctx context.Context, leader *Leader, r *Request) error {
	if r.EndsWithLeader {
		return r.Remote(ctx, leader.ID)
	}
	ctx, cancel := stream.WithGraceAfter(ctx, leader.Changed, 0)
	defer cancel()
	return r.Remote(ctx, leader.ID)
}

// MayServe returns why this node must not serve a request now, nil if it may.
func (f *Forwarder) MayServe(write bool) error {
	if why := f.Refusing(); why != "" {
		return cluster.Errorf(cluster.CodeSplitBrain, "node %s serves only stale reads and watches: %s", f.Self, why)
	}
	if write && f.Stopping.Err() != nil {
		return problem.NoLeader("node %s is draining and accepts no new writes", f.Self)
	}
	return nil
}

// serveLocally runs r.Local if this node may serve.
func (f *Forwarder) serveLocally(ctx context.Context, r *Request) error {
	if err := f.MayServe(r.Write); err != nil {
		return err
	}
	return r.Local(ctx)
}

// remoteLeaderAddr returns the address of a leader that is another node, "" if no live one is known.
func (f *Forwarder) remoteLeaderAddr(l *Leader) string {
	if l.ID == "" || l.ID == f.Self || f.LeaderProcessDead(l.ID, l.Term) {
		return ""
	}
	return f.AddressOf(l.ID)
}

// withUnknownOutcome returns the error of the request after an attempt was refused. If an earlier attempt may have
// been applied, the outcome is unknown, unless the state itself refused.
func (r *Request) withUnknownOutcome(err error) error {
	var e *cluster.Error
	if err == nil || !r.mayHaveApplied ||
		errors.As(err, &e) && (e.Code == cluster.CodeOutcomeUnknown || e.DecidedByState()) {
		return err
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown,
		"outcome unknown: an earlier attempt got no response from the leader; last error: %w", err)
}

// isNodeUnavailable reports whether the error is caused by the node's state, not by the request.
func isNodeUnavailable(err error) bool {
	var e *cluster.Error
	return errors.As(err, &e) && e.HTTPStatus() == http.StatusServiceUnavailable
}

func (f *Forwarder) redirect(r *Request, addr string) error {
	u := *r.HTTP.URL
	u.Scheme, u.Host = f.Scheme(), addr
	h := r.Client.Header()
	h["Location"] = []string{u.String()}
	h["Cache-Control"] = []string{"no-store"}
	r.Client.WriteHeader(http.StatusTemporaryRedirect)
	return ErrResponseWritten
}

// Delays between attempts while the leader is known but not ready.
const (
	minBackoff = 2 * time.Millisecond
	maxBackoff = 50 * time.Millisecond
)

// Wait is one request's wait for a leader.
type Wait struct {
	f       *Forwarder
	leader  *Leader // as of before the last attempt
	write   bool
	client  Client    // nil: unknown
	until   time.Time // zero: has not waited yet
	backoff time.Duration
	// untilDeadline: the request may have been applied, so it waits for a leader that knows until its deadline
	untilDeadline bool
}

// NewWait returns the wait of a request of client before its first attempt. client is nil for what is no request of the
// HTTP API. Release ends the wait.
func (f *Forwarder) NewWait(client Client, write bool) *Wait {
	return &Wait{f: f, client: client, write: write}
}

// Leader returns the leader for the next attempt. Next misses no change after this call.
func (w *Wait) Leader() *Leader {
	w.leader = w.f.Leader.Current()
	return w.leader
}

// Release ends the wait.
func (w *Wait) Release() {
	if w.write && !w.until.IsZero() {
		w.f.queuedWrites.Add(-1)
	}
}

// QueuedWrites returns the number of unanswered writes that have been queued for a leader.
func (f *Forwarder) QueuedWrites() int { return int(f.queuedWrites.Load()) }

// Next returns nil when another attempt should be made. Otherwise its error is the response: the wait or the
// request's deadline is over, or the queue is full. last is the error of the last attempt.
func (w *Wait) Next(ctx context.Context, last error) error {
	now, limit := time.Now(), w.f.Hold
	if w.until.IsZero() {
		w.until = now.Add(limit)
		if w.write {
			w.f.queuedWrites.Add(1)
		}
	}
	left := w.until.Sub(now)
	switch {
	case w.untilDeadline:
		left = maxBackoff
	case left <= 0:
		return w.timeout(last, "request queued for "+limit.String())
	}
	if !w.untilDeadline {
		leave, err := w.f.EnterQueue(ctx, w.client)
		if err != nil {
			return err
		}
		defer leave()
	}
	if w.leader.ID != "" {
		w.backoff = min(max(2*w.backoff, minBackoff), maxBackoff)
		left = min(left, w.backoff)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-w.leader.Changed.Done():
	case <-timer.C:
	case <-ctx.Done():
		return w.timeout(last, "request deadline exceeded")
	}
	return nil
}

// timeout names the leader that is not ready, and its last error: an operator may have to act.
func (w *Wait) timeout(last error, why string) error {
	leader := w.f.Leader.Current()
	if leader.ID == "" {
		return problem.NoLeader("no leader known (node %s): %s", w.f.Self, why)
	}
	if e := (*cluster.Error)(nil); errors.As(last, &e) {
		why += "; last error: " + e.Detail
	}
	return problem.NoLeader("leader %s (term %d) is not ready: %s", leader.ID, leader.Term, why)
}
