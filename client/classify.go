package client

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"northstar/cluster"
)

// classification is what one answer means for its call.
type classification struct {
	err            error         // nil: success
	retryable      bool          // may be sent again, perhaps elsewhere
	mayHaveApplied bool          // this try may have taken effect
	final          bool          // a refusal that the replicated state made: no other try of this call can have another outcome
	notNorthStar   bool          // what answered is no NorthStar node: worth another try where none was made yet
	noResponse     bool          // the node did not answer, or not in full
	leader         string        // address of the leader that the node named; "" when none
	wait           time.Duration // at least this long before the next try anywhere
}

// classify decides from the call and the answer alone.
func classify(q *call, a *response) classification {
	switch {
	case errors.Is(a.err, errTooLarge):
		return classification{err: a.err, mayHaveApplied: true}
	case a.err != nil:
		return classification{err: a.err, noResponse: true, mayHaveApplied: a.sent, retryable: mayResend(q, a.sent)}
	case a.status/100 == 2:
		return classification{}
	case a.status == http.StatusTemporaryRedirect || a.status == http.StatusPermanentRedirect:
		return redirect(q, a)
	}
	e, ours := problemOf(q.op, a)
	v := classification{err: e, leader: e.LeaderAddress}
	code := e.Problem.Code
	switch {
	case !ours && a.status >= 500: // a proxy between, or a broken node
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case code == cluster.CodeOutcomeUnknown:
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case e.Retry && (a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests):
		v.retryable = true
		if code == cluster.CodeBusy {
			v.wait = e.Problem.RetryAfter
		}
	case !ours:
		v.notNorthStar = true
	case code == cluster.CodeInternal: // who knows how far it got
		v.mayHaveApplied = true
	default:
		v.final = e.Problem.DecidedByState()
	}
	return v
}

// redirect follows a node's word that another one leads.
func redirect(q *call, a *response) classification {
	e, _ := problemOf(q.op, a)
	v := classification{err: e, retryable: true}
	if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Host != "" {
		v.leader = u.Host
	} else {
		v.retryable = false
	}
	return v
}

// mayResend says whether a call may be sent again after a try that may have
// reached a node, or certainly did not.
func mayResend(q *call, sent bool) bool { return !sent || q.retryClass != nonIdempotentWrite }

// The pause between two rounds of tries: a few milliseconds at first, since a
// failover takes not many more, and bounded.
const (
	minBackoff    = 3 * time.Millisecond
	maxBackoff    = 250 * time.Millisecond
	maxRetryAfter = 2 * time.Second // longest Retry-After that is obeyed
)

// backoff is the jittered pause after the n-th failed round, counted from 0,
// and at least what a node asked for.
func backoff(n int, asked time.Duration) time.Duration {
	d := min(minBackoff<<min(n, 10), maxBackoff)
	d = d/2 + rand.N(d/2+1)
	return max(d, min(asked, maxRetryAfter)+d/4)
}
