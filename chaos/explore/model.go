package explore

import "northstar/consensus"

// start returns the first state: node 1 leads in term 1, and all have its first entry.
func (m *Model) start() state {
	m.maxTerm = m.MaxTerm
	s := state{left: budget{m.Crashes, m.Cuts, m.Writes, m.Requests, m.Transfers, m.Wipes}}
	for i := range s.nodes {
		n := &s.nodes[i]
		n.stepDown()
		n.up, n.joined, n.leader, n.term, n.log[0], n.last, n.commit = true, true, 1, 1, 1, 1, 1
		n.rosterIndex, n.rosterTerm = 1, 1
		n.voteTerm, n.voteFor, n.running, n.votedAgo = 1, 1, notAcked, notAcked
		if i > 0 {
			n.heardFrom, n.heardTerm = 1, 1
		}
		n.flush()
		s.ghost.votes[i][1] = 1
	}
	s.nodes[0].role = leader
	s.nodes[0].acked, s.nodes[0].match = [nodes]uint8{notAcked, 0, 0}, [nodes]uint8{0, 1, 1}
	s.ghost.committed[0], s.ghost.in[0], s.ghost.length, s.ghost.leaders[1] = 1, 1, 1, 1
	if m.Leaderless {
		s.nodes[0].stepDown()
		s.nodes[1].heard, s.nodes[2].heard = notAcked, notAcked
	}
	m.tidy(&s)
	return s
}

// limits are the ages from which on a longer one makes no difference.
type limits struct{ heard, running, voted, candidacyAge, sent uint8 }

func (m *Model) limits() limits {
	t := m.TicksPerTimeout
	l := limits{t, t, t, t, t}
	if m.Lease {
		l.heard, l.running = 2*t, 2*t
	}
	if m.Priorities[0] != m.Priorities[1] || m.Priorities[1] != m.Priorities[2] {
		l.heard = 3 * t // vetoes of pre-votes end then
	}
	return l
}

// tick lets one tick pass. It reports whether that makes a difference.
func (m *Model) tick(s *state) bool {
	if !m.timed() {
		return false
	}
	before := *s
	for i := range s.nodes {
		n := &s.nodes[i]
		if !n.up {
			continue
		}
		if n.heardFrom != 0 {
			n.heard++
		}
		if n.role == leader && n.servesIn > 0 && n.commit > 0 && n.log[n.commit-1]&termBits == n.term {
			n.servesIn--
		}
		n.running, n.votedAgo = older(n.running), older(n.votedAgo)
		if n.role == candidate || n.role == preCandidate {
			n.candidacyAge++
		}
		for j := range n.acked {
			n.acked[j] = older(n.acked[j])
		}
	}
	for i := range s.inBag {
		if k := s.bag[i].kind; k == appendRequest || k == appendResponse {
			s.bag[i].age++
		}
	}
	m.tidy(s)
	return *s != before
}

func older(age uint8) uint8 {
	if age == notAcked {
		return age
	}
	return age + 1
}

// tidy takes out of a state what makes no difference from now on: messages without effect, and ages beyond a limit.
func (m *Model) tidy(s *state) {
	l := m.limits()
	for i := range s.nodes {
		n := &s.nodes[i]
		n.heard, n.running, n.votedAgo = min(n.heard, l.heard), min(n.running, l.running), min(n.votedAgo, l.voted)
		n.candidacyAge = min(n.candidacyAge, l.candidacyAge)
		for j := range n.acked {
			if n.acked[j] != notAcked {
				n.acked[j] = min(n.acked[j], l.sent)
			}
		}
	}
	for i := range s.inBag {
		s.bag[i].age = min(s.bag[i].age, l.sent)
	}
	for i := id(1); i <= nodes && s.left.crashes == 0; i++ {
		s.flush(i) // no write is lost any more: only its delay is left, and messages are delayed anyway
	}
	s.remove(s.useless)
}

// useless reports whether a message has no effect whenever it arrives.
func (s *state) useless(m *message) bool {
	from, to := s.node(m.from), s.node(m.to)
	switch m.kind {
	case voteRequest:
		return m.term < to.term && (from.role != candidate || from.term != m.term)
	case voteResponse:
		known := to.grants>>(m.from-1)&1 == 1
		return to.role != candidate || to.term != m.index || m.term <= to.term && (!m.ok || known)
	case appendRequest:
		return m.term < to.term && (from.role != leader || from.term != m.term)
	case appendResponse:
		known := to.match[m.from-1] >= m.index && to.acked[m.from-1] <= m.age
		return to.role != leader || to.term != m.prevTerm || m.term <= to.term && (!m.ok || known)
	case timeoutNow:
		return m.term != to.term
	}
	return false
}

// leaseWait returns the ticks for which a leader does not serve that its voters elected over another one.
func (m *Model) leaseWait() (ticks uint8) {
	wait := (&consensus.Config{Lease: m.Lease, TimeoutMin: timeoutMin}).LeasePromise()
	for m.ago(ticks) < wait {
		ticks++
	}
	return ticks
}

// quorumLost reports whether a leader may find that it hears too few voters. Without time it goes on
// until it hears of a later term.
func (m *Model) quorumLost(s *state, of id) bool {
	if !m.timed() {
		return false
	}
	heard := uint8(1) << (of - 1)
	for i, age := range s.node(of).acked {
		if age != notAcked && m.ago(age) < timeoutMin {
			heard |= 1 << i
		}
	}
	return !s.majority(of, heard)
}

// newsFor reports whether an append makes a difference to a follower, or its answer to the leader.
func (m *Model) newsFor(s *state, of, to id) bool {
	n, f := s.node(of), s.node(to)
	for i := range s.inBag {
		if o := &s.bag[i]; o.kind == appendRequest && o.from == of && o.to == to && o.age == 0 &&
			o.index+o.n == n.last && o.commit == n.commit {
			return false
		}
	}
	return f.term != n.term || f.leader != of || f.commit != n.commit || n.match[to-1] != n.last || f.heard > 0 ||
		m.timed() && n.acked[to-1] > 0
}

// common returns up to where two logs are equal.
func (n *node) common(o *node) (index uint8) {
	for index < min(n.last, o.last) && n.log[index] == o.log[index] {
		index++
	}
	return index
}

// lastChange returns the kind of the last change of members in the log.
func (n *node) lastChange() (kind entry) {
	for _, e := range n.log[:n.last] {
		kind = max(kind, e&^termBits)
	}
	return kind
}
