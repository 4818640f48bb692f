package explore

// fairRounds is more than any state needs. In each round at most one node starts an election, and another node has the
// first turn.
const fairRounds = 40

// continues lets a cluster run on without further faults, and returns noLeader if no leader serves after fairRounds. A
// link that is cut stays cut, and one node may stay down.
func (m *Model) continues(s state) broken {
	lasting := *m
	lasting.maxTerm = maxTerm * 2
	s.left = budget{}
	m.repair(&s)
	for round := range uint8(fairRounds) {
		lasting.exchange(&s)
		if s.ghost.overfull || lasting.served(&s) {
			return intact
		}
		lasting.electInTurn(&s, round)
		lasting.tick(&s)
	}
	return noLeader
}

// repair starts nodes again, and mends the cut link, if no majority that can elect one of its own could talk otherwise.
func (m *Model) repair(s *state) {
	down, all := 0, m.Idle != 0
	for i := range s.nodes {
		all = all || s.nodes[i].wiped
		if !s.nodes[i].up {
			down++
		}
	}
	if down > 1 || all || down == 1 && s.cut != 0 {
		for i := range s.nodes {
			s.nodes[i].up = true
		}
	}
	if all {
		s.cut = 0
	}
}

// exchange delivers all messages, and those that follow from them.
func (m *Model) exchange(s *state) {
	for id := id(1); id <= nodes; id++ {
		m.sendAppends(s, id)
	}
	for delivered := 0; delivered < 20*maxBag; delivered++ {
		m.tidy(s)
		i := 0
		for i < int(s.inBag) && !s.deliverable(&s.bag[i]) {
			i++
		}
		if i == int(s.inBag) {
			break
		}
		msg := s.bag[i]
		m.deliver(s, msg)
		m.sendAppends(s, msg.to)
	}
	s.remove(func(m *message) bool { return !s.connected(m.from, m.to) || !s.node(m.to).up })
}

func (m *Model) sendAppends(s *state, from id) {
	for to := id(1); to <= nodes; to++ {
		n := s.node(from)
		if n.up && n.role == leader && to != from && s.node(to).up && s.connected(from, to) && m.newsFor(s, from, to) &&
			(view{m, s, from}).admit(to).OK() {
			common := n.common(s.node(to))
			s.replicate(from, to, common, min(n.last-common, maxBatch))
		}
	}
}

// served reports whether a leader serves and hears a majority.
func (m *Model) served(s *state) bool {
	for i := id(1); i <= nodes; i++ {
		if n := s.node(i); n.up && n.role == leader && n.serves() && !m.quorumLost(s, i) {
			return true
		}
	}
	return false
}

// electInTurn lets at most one node start an election: another one first in each round, as with random timeouts.
func (m *Model) electInTurn(s *state, round uint8) {
	for k := range uint8(nodes) {
		i := (round+k)%nodes + 1
		n := s.node(i)
		if n.up && n.role == leader && m.quorumLost(s, i) {
			n.stepDown()
		}
		if n.up && n.heardGone && s.connected(i, n.heardFrom) {
			n.heardDead = true
		}
		switch {
		case !m.mayElect(s, i):
		case m.mayForce(s, i) && m.decides(s, i):
			s.elect(i, true, false)
			return
		case m.ago(n.quiet()) >= timeoutMin && m.asksPreVotes(s, i):
			for j := id(1); j <= nodes; j++ {
				if j != i && m.preVote(s, i, j) && s.majority(i, 1<<(i-1)|1<<(j-1)) {
					s.elect(i, false, false)
					return
				}
			}
			for j := id(1); j <= nodes; j++ {
				if m.learns(s, i, j) {
					s.setTerm(i, s.node(j).term, 0)
				}
			}
		}
	}
}
