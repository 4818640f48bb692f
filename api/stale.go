package api

import (
	"net/http"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
)

// maxStaleLimit is the maximum of ?max_stale_ms.
const maxStaleLimit = 24 * time.Hour

// maxStale returns the bound of a stale read, -1 if it has none.
func (c *request) maxStale(level string) (time.Duration, error) {
	if !c.query.Has("max_stale_ms") {
		return -1, nil
	}
	if level != apiv1.Stale {
		return 0, problem.BadRequest("max_stale_ms: only with consistency=%s", apiv1.Stale)
	}
	ms, err := c.queryInt("max_stale_ms", 0, 0, maxStaleLimit.Milliseconds())
	return time.Duration(ms) * time.Millisecond, err
}

// currentWithin reports whether a follower's state was current at most limit ago. A leader may be cut off without
// knowing it yet, and a node that has just started may lack what is committed: they answer after a read barrier.
func currentWithin(st cluster.NodeStatus, limit time.Duration) bool {
	return st.Role != cluster.Leader && st.StateAge >= 0 && st.StateAge <= limit && st.CheckCaughtUp() == nil
}

// setStaleness sets the maximum age of a stale response: of the state, or else of the process.
func (c *request) setStaleness(st cluster.NodeStatus) {
	age := st.StateAge
	switch {
	case st.Role == cluster.Leader:
		age = 0
	case age < 0:
		age = time.Since(c.s.deps.Node.StartedAt)
	}
	c.Header()[canonicalLastContact] = []string{strconv.FormatInt(age.Milliseconds(), 10)}
}

var canonicalLastContact = http.CanonicalHeaderKey(apiv1.HeaderLastContact)
