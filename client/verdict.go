package client

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"northstar/cluster"
)

// verdict is what one answer means for its call.
type verdict struct {
	err     error         // nil: success
	again   bool          // may be sent again, perhaps elsewhere
	maybe   bool          // this try may have taken effect
	settles bool          // a refusal that the replicated state made: no other try of this call can have another outcome
	foreign bool          // what answered is no NorthStar node: worth another try where none was made yet
	lost    bool          // the node did not answer, or not in full
	leader  string        // address of the leader that the node named; "" when none
	wait    time.Duration // at least this long before the next try anywhere
}

// judge decides from the call and the answer alone.
func judge(q *call, a *answer) verdict {
	switch {
	case errors.Is(a.err, errTooLarge):
		return verdict{err: a.err, maybe: true}
	case a.err != nil:
		return verdict{err: a.err, lost: true, maybe: a.sent, again: repeatable(q, a.sent)}
	case a.status/100 == 2:
		return verdict{}
	case a.status == http.StatusTemporaryRedirect || a.status == http.StatusPermanentRedirect:
		return redirect(q, a)
	}
	e, ours := problemOf(q.op, a)
	v := verdict{err: e, leader: e.LeaderAddress}
	code := e.Problem.Code
	switch {
	case !ours && a.status >= 500: // a proxy between, or a broken node
		v.maybe = true
		v.again = repeatable(q, true)
	case code == cluster.CodeOutcomeUnknown:
		v.maybe = true
		v.again = repeatable(q, true)
	case e.Retry && (a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests):
		v.again = true
		if code == cluster.CodeBusy {
			v.wait = e.Problem.RetryAfter
		}
	case !ours:
		v.foreign = true
	case code == cluster.CodeInternal: // who knows how far it got
		v.maybe = true
	default:
		v.settles = e.Problem.DecidedByState()
	}
	return v
}

// redirect follows a node's word that another one leads.
func redirect(q *call, a *answer) verdict {
	e, _ := problemOf(q.op, a)
	v := verdict{err: e, again: true}
	if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Host != "" {
		v.leader = u.Host
	} else {
		v.again = false
	}
	return v
}

// repeatable says whether a call may be sent again after a try that may have
// reached a node, or certainly did not.
func repeatable(q *call, sent bool) bool { return !sent || q.kind != bareWrite }

// The pause between two rounds of tries: a few milliseconds at first, since a
// failover takes not many more, and bounded.
const (
	backoffFirst = 3 * time.Millisecond
	backoffMost  = 250 * time.Millisecond
	patience     = 2 * time.Second // longest Retry-After that is obeyed
)

// backoff is the jittered pause after the n-th failed round, counted from 0,
// and at least what a node asked for.
func backoff(n int, asked time.Duration) time.Duration {
	d := min(backoffFirst<<min(n, 10), backoffMost)
	d = d/2 + rand.N(d/2+1)
	return max(d, min(asked, patience)+d/4)
}
