package consensus

import (
	"context"
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// leasePromise is what this data directory's voter has promised to leaders: for how long it votes for no other node
// after a leader's message. Each process says its own promise in its hellos. The configuration may change from one
// process to the next, so the promise is on disk.
type leasePromise struct {
	own     time.Duration // of this process
	earlier time.Duration // of an earlier one, longer than own; 0: none
	started time.Time
}

// openLeasePromise reads the earlier promise, and makes a longer one durable, before any peer hears of it.
func openLeasePromise(ident *identity, own time.Duration) (leasePromise, error) {
	p := leasePromise{own: own, started: time.Now()}
	if earlier := ident.get().LeasePromise; earlier > own {
		p.earlier = earlier
		return p, nil
	}
	return p, ident.setLeasePromise(own)
}

func (i *identity) setLeasePromise(d time.Duration) error {
	return i.update(func(f *identityFile) (bool, error) {
		changed := f.LeasePromise != d
		f.LeasePromise = d
		return changed, nil
	})
}

// earlierBinds returns a longer promise of an earlier process that binds this one yet, 0 if there is none. It does so
// for as long as a promise of this length would after a start (MayVoteAfter).
func (p *leasePromise) earlierBinds() time.Duration {
	if p.earlier == 0 || MayVoteAfter(time.Since(p.started), p.earlier) {
		return 0
	}
	return p.earlier
}

// forgetEarlierPromise makes this process's own promise durable, once a longer one binds no more.
func (n *Node) forgetEarlierPromise(ctx context.Context) {
	left := n.promise.earlierBinds()
	if left == 0 {
		return
	}
	n.log.Warn("election.lease or election.timeout-min was longer before: no votes and no elections for a while",
		"promised", left, "for", 2*left)
	select {
	case <-time.After(2 * left):
	case <-ctx.Done():
		return
	}
	if err := n.ident.setLeasePromise(n.promise.own); err != nil {
		n.log.Warn("cannot record the promise to leaders: the next start waits, too", "error", err)
	}
}

// LeaseWait returns for how long a leader that the voters of a requested election ignored may have a lease; 0 without
// leases. Its lease rests on the promises of a majority. One of these voters took part in the election: it is this
// node, or one whose hello this node knows.
func (n *Node) LeaseWait() time.Duration {
	servers, wait := n.Servers(), max(n.promise.own, n.promise.earlierBinds())
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	for _, s := range servers {
		wait = max(wait, n.peers.lastHellos[s.ID].LeasePromise)
	}
	return wait
}

// LeaseObstacle returns a text that says why this node has no lease when it leads; "" if it may have one, or
// election.lease is off.
func (n *Node) LeaseObstacle() string {
	if n.lease == nil {
		return ""
	}
	return n.leaseObstacle(voterIDs(n.Servers()))
}

// leaseObstacle returns which voter promises less than this leader's lease needs. Voters of which this node knows
// nothing are no obstacle, and their acknowledgements do not count.
func (n *Node) leaseObstacle(voters []cluster.NodeID) string {
	need := n.cfg.LeasePromise()
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	i := slices.IndexFunc(voters, func(id cluster.NodeID) bool {
		p, met := n.peers.lastHellos[id]
		return met && id != n.cfg.Self.NodeID && p.LeasePromise < need
	})
	switch {
	case i < 0:
		return ""
	case n.peers.lastHellos[voters[i]].LeasePromise == 0:
		return fmt.Sprintf("node %s has election.lease off, or is of an earlier version", voters[i])
	}
	return fmt.Sprintf("node %s has election.timeout-min %v, and this node %v", voters[i],
		n.peers.lastHellos[voters[i]].LeasePromise, need)
}
