package client

import (
	"math/rand/v2"
	"slices"
	"time"
)

// watch joins the leader search that all calls share.
func (r *retrier) watch() {
	if r.watching {
		return
	}
	r.watching = true
	r.c.finder.acquire()
	if r.leader == nil {
		r.knownLeader, r.leader = r.c.finder.leader()
	}
}

// unwatch leaves the leader search.
func (r *retrier) unwatch() {
	if r.watching {
		r.watching, r.leader = false, nil
		r.c.finder.release()
	}
}

// onLeaderChange reacts to a new leader. If all attempts went to the old leader, it sends an attempt to the new one
// immediately. Otherwise it waits for forwardGrace, in which the node that holds the request may forward it. After
// that the new leader gets an attempt even if it had one before: it may have forwarded that to the old leader.
func (r *retrier) onLeaderChange(now time.Time) {
	leader, changed := r.c.finder.leader()
	r.leader = changed
	if leader == "" || leader == r.knownLeader {
		return
	}
	old := r.knownLeader
	r.knownLeader = leader
	if r.q.retryClass == nonIdempotentWrite && len(r.outstanding) > 0 {
		return
	}
	if old == "" && !r.watching {
		return // the search of another call has found it, and this one has no trouble
	}
	if slices.ContainsFunc(r.outstanding, func(t *attempt) bool { return t.node != old }) {
		r.forwardAt = now.Add(forwardGrace/2 + rand.N(forwardGrace))
		return
	}
	r.launch(leader)
}

// hedge handles attempts that have been silent for too long.
func (r *retrier) hedge(now time.Time) {
	if r.lossChanges != nil { // a long poll waits: launch had its node watched
		r.unwatch()
		return
	}
	r.hedgeAt = now.Add(recheckInterval)
	if len(r.outstanding) == 0 || len(r.outstanding) >= maxInFlight {
		return
	}
	if r.q.retryClass == localRead {
		r.launch(r.pick()) // answered from memory: a copy is cheap
		return
	}
	r.watch()
	if leader, _ := r.c.finder.leader(); leader != "" && leader != r.knownLeader {
		r.onLeaderChange(now)
		return
	}
	if leader := r.knownLeader; leader != "" &&
		!r.inUse(leader) && r.tried[leader] == 0 && !r.c.finder.isUnresponsive(leader, now) {
		r.launch(leader) // the silent node is not the leader
		return
	}
	for _, t := range r.outstanding {
		if !r.c.finder.isUnresponsive(t.node, now) {
			return // responsive: it works on the request, or the limit of the attempt shows that it does not
		}
	}
	for _, t := range r.outstanding {
		r.c.nodes.markDown(t.node, now)
	}
	r.launch(r.pick())
}
