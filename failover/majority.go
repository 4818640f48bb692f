package failover

import (
	"slices"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// minLeadTime is how long a node must lead before it yields sooner than after election.timeout-min: connections are
// made until then.
const minLeadTime = time.Second

// majorityWatch knows when this node last heard from a majority of the voters while it leads. A leader that hears no
// majority commits nothing, but its followers hear it, if the network fails in one direction only. It yields: it sends
// no appends, and says so, so that they elect another leader. The mutex of silenceWatch guards it.
type majorityWatch struct {
	term      uint64 // in which this node leads; 0: it does not lead
	began     time.Time
	voters    []cluster.NodeID
	heard     map[cluster.NodeID]time.Time // the newest message of each of them
	at        time.Time                    // when a majority was last heard
	asked     time.Time                    // when the voters were last asked because too few were heard
	yields    bool
	announced time.Time // when the others were last told that the disk hangs; zero: that is over

	estimator election.SilenceEstimator // of the gaps between messages of a majority
}

// lead takes note of this node's role.
func (w *silenceWatch) lead(st cluster.NodeStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.majority.lead(st, time.Now())
}

// lead begins a leadership, follows changes of the voters, or ends the leadership.
func (m *majorityWatch) lead(st cluster.NodeStatus, now time.Time) {
	if st.Role != cluster.Leader {
		m.term, m.yields = 0, false
		return
	}
	m.voters = m.voters[:0]
	for _, s := range st.Servers {
		if s.Suffrage == cluster.Voter {
			m.voters = append(m.voters, s.ID)
		}
	}
	if m.term == st.Term {
		return
	}
	m.term, m.began, m.at, m.yields = st.Term, now, now, false
	m.heard = map[cluster.NodeID]time.Time{}
	m.estimator.Follow()
}

// hear records a message of a peer, and reports whether a majority was heard by it.
func (m *majorityWatch) hear(self, from cluster.NodeID, now time.Time) bool {
	if m.term == 0 || !slices.Contains(m.voters, from) {
		return false
	}
	m.heard[from] = now
	at := m.majority(self, now)
	if !at.After(m.at) {
		return false
	}
	m.at = at
	m.estimator.Heard(now)
	return true
}

// majority returns the newest time since which a majority of the voters was heard, with now for this node; zero if
// none was.
func (m *majorityWatch) majority(self cluster.NodeID, now time.Time) time.Time {
	times := make([]time.Time, 0, len(m.voters))
	for _, v := range m.voters {
		if v == self {
			times = append(times, now)
		} else {
			times = append(times, m.heard[v])
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	return times[cluster.Quorum(len(times))-1]
}

// silence returns for how long no majority has been heard, and for how long that is tolerated.
func (m *majorityWatch) silence(now time.Time) (silence, limit time.Duration) {
	limit = m.estimator.Limit(now)
	if now.Sub(m.began) < minLeadTime {
		limit = max(limit, m.estimator.Params.TimeoutMin)
	}
	return now.Sub(m.at), limit
}

// nextMajorityCheck returns the time until the voters are asked, or this leader yields.
func (c *Controller) nextMajorityCheck() time.Duration {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	m := &c.watch.majority
	silence, limit := m.silence(time.Now())
	switch {
	case m.term == 0 || m.yields || len(m.voters) < 2:
		return c.cfg.TimeoutMin
	case silence < doubt(limit):
		return max(minCheckInterval, doubt(limit)-silence)
	}
	return max(minCheckInterval, limit-silence)
}

// checkMajority asks the voters of a leader that has not heard a majority for a while. If that does not help, it
// yields.
func (c *Controller) checkMajority() {
	m := &c.watch.majority
	c.watch.mu.Lock()
	voters := slices.Clone(m.voters)
	c.watch.mu.Unlock()
	wait := c.pollTimeout(voters...)
	now := time.Now()
	c.watch.mu.Lock()
	silence, limit := m.silence(now)
	doubts := m.term != 0 && !m.yields && len(m.voters) > 1 && silence >= doubt(limit)
	ask := doubts && !m.asked.After(m.at)
	if ask {
		m.asked = now
	}
	m.yields = m.yields || doubts && silence >= limit && now.Sub(m.asked) >= wait
	yields, term := doubts && m.yields, m.term
	c.watch.mu.Unlock()
	if ask {
		for _, v := range voters {
			if v != c.cfg.Self {
				c.deps.Peers.Ask(v)
			}
		}
	}
	if yields {
		c.log.Warn("this leader hears no majority of the voters: it sends no appends, so that they elect another one",
			"term", term, "silence", silence, "tolerated", limit)
		c.deps.Announce()
	}
}

// Yields reports whether this leader lets the others elect, because it hears no majority of the voters. It does not
// block.
func (c *Controller) Yields() bool {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	return c.watch.majority.yields
}

// Replaceable reports whether another node could be elected while this node's disk hangs. Storage that several nodes
// share hangs for all of them: a leader without heartbeats would lose its leadership then, and no node could gain it.
// A voter says again and again that its disk hangs; a claim that is older than that says nothing.
func (c *Controller) Replaceable() bool {
	servers, claims := c.deps.Consensus.Status().Servers, c.deps.Peers.Claims()
	able := 0
	for _, sv := range servers {
		s := claims[sv.ID]
		hangs := s.Connected && s.Claim.Disk.Hangs && time.Since(s.At) < 2*c.cfg.TimeoutMin
		if sv.ID != c.cfg.Self && sv.Suffrage == cluster.Voter && !hangs {
			able++
		}
	}
	return able >= cluster.Quorum(cluster.CountVoters(servers))
}

// hearHang sends this leader's claim to every peer if it has said that it yields because of its disk, and the claim of
// a peer shows that it must not.
func (c *Controller) hearHang(claim *cluster.Claim) {
	c.watch.mu.Lock()
	m := &c.watch.majority
	concerned := claim != nil && claim.Disk.Hangs && m.term != 0 && !m.announced.IsZero()
	c.watch.mu.Unlock()
	if !concerned || !c.deps.Consensus.Status().Disk.Hangs || c.Replaceable() {
		return
	}
	c.watch.mu.Lock()
	m.announced = time.Time{}
	c.watch.mu.Unlock()
	c.log.Warn("the disks of other voters hang, too: this leader goes on with its heartbeats")
	c.deps.Announce()
}

// OnDiskHangs sends this node's claim to every peer, at most once in election.timeout-min, unless this node leads and
// does not yield. It does not block.
func (c *Controller) OnDiskHangs() {
	replaceable := c.Replaceable()
	now := time.Now()
	c.watch.mu.Lock()
	tell := now.Sub(c.watch.majority.announced) >= c.cfg.TimeoutMin && (c.watch.majority.term == 0 || replaceable)
	if tell {
		c.watch.majority.announced = now
	}
	c.watch.mu.Unlock()
	if tell {
		c.deps.Announce()
	}
}
