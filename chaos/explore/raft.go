package explore

import (
	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/raftnode"
	"northstar/transport"
)

// The model of raft.Raft v1.8.0 on raftStore and the transport: what a node does with a message or a timer once the
// product's functions have decided. One step is one message in the main loop, with the writes that it waits for.

func (n *node) lastTerm() uint8 {
	if n.last == 0 {
		return 0
	}
	return n.log[n.last-1] & termBits
}

// voters is the number of voters, of which no node can do without the others.
func voters() int { return nodes }

// flush makes everything durable that the node has accepted.
func (n *node) flush() {
	n.diskTerm, n.diskVoteTerm, n.diskVoteFor, n.diskLast = n.term, n.voteTerm, n.voteFor, n.last
}

// flush is node.flush, after which held responses leave the node.
func (s *state) flush(of id) {
	s.node(of).flush()
	for i := range s.inBag {
		if m := &s.bag[i]; m.from == of && m.held {
			m.held = false
			s.ghost.left(m)
		}
	}
}

// setTerm takes a term from another node. The write waits for the vote that may follow if the product allows that.
func (s *state) setTerm(of id, term uint8, votesInFlight int) {
	s.flush(of)
	n := s.node(of)
	n.stepDown()
	n.term = term
	if !raftnode.TermMayWait(false, false, votesInFlight) {
		s.flush(of)
	}
}

func (n *node) stepDown() {
	n.role, n.leader, n.grants, n.forced, n.flagged, n.leaseOff, n.servesIn = follower, 0, 0, false, false, false, 0
	n.candidacyAge = 0
	n.acked, n.match = [nodes]uint8{notAcked, notAcked, notAcked}, [nodes]uint8{}
}

// isVoter reports whether a node is a voter in the configuration of another one.
func (s *state) isVoter(in, of id) bool {
	n := s.node(in)
	voter := true
	if s.node(of).wiped {
		for _, e := range n.log[:n.last] {
			switch e &^ termBits {
			case admits:
				voter = false
			case promotes:
				voter = true
			}
		}
	}
	return voter
}

// majority reports whether the nodes of the set are a majority of the voters that a node knows.
func (s *state) majority(in id, set uint8) bool {
	voters, have := 0, 0
	for i := id(1); i <= nodes; i++ {
		if s.isVoter(in, i) {
			voters++
			have += int(set >> (i - 1) & 1)
		}
	}
	return have > voters/2
}

// blocked reports whether a node must not start an election.
func (m *Model) blocked(s *state, of id) bool {
	n := s.node(of)
	if !n.wiped {
		return false
	}
	v := view{m, s, of}
	inRoster := cluster.Record{Incarnation: incarnation(of, n.rosterIndex > 1)}
	return !n.joined ||
		consensus.BeforeAdmission(inRoster, v.peer().Incarnation, uint64(n.rosterIndex), uint64(n.last))
}

// elect makes a node a candidate of the next term, which votes for itself and asks the others. A candidacy that began
// with a TimeoutNow does not end at another one, and the transport raises the term for that.
func (s *state) elect(of id, forced, flagged bool) {
	n := s.node(of)
	if forced && n.forced {
		s.setTerm(of, n.term+1, 0)
	}
	s.flush(of)
	n.stepDown()
	n.role, n.forced, n.flagged = candidate, forced, flagged
	n.term++
	if !raftnode.TermMayWait(true, true, 0) {
		n.flush()
	}
	n.voteTerm, n.voteFor, n.votedAgo, n.grants = n.term, of, 0, 1<<(of-1)
	if !raftnode.SelfVoteMayOverlap(raftStates[n.role], voters) {
		n.flush()
	}
	for i := id(1); i <= nodes; i++ {
		if i != of && s.isVoter(of, i) {
			s.send(message{
				kind: voteRequest, from: of, to: i, term: n.term, ok: flagged, index: n.last,
				prevTerm: n.lastTerm(),
			})
		}
	}
}

// vote handles a vote request.
func (m *Model) vote(s *state, msg message) {
	v, n := view{m, s, msg.to}, s.node(msg.to)
	b := transport.VoteRequest{
		Candidate: ids[msg.from], Term: uint64(msg.term), LastIndex: uint64(msg.index), LastTerm: uint64(msg.prevTerm),
		Transfer: msg.ok, OverLiveLeader: msg.ok,
	}
	if !(view{m, s, msg.from}).admit(msg.to).Votes {
		return // the candidate does not send it
	}
	granted := false
	g := v.guard(b, msg.from)
	if _, why := g.Refuse(b, now); why == "" {
		if !b.Transfer && b.HeldByLeader(ids[n.leader], ids[msg.to], uint64(n.term)) && v.MayIgnoreLeader("", 0, now) {
			b.Transfer = true
		}
		granted = g.BoundByLease(b, now) == "" && s.raftVote(msg, b.Transfer)
	}
	s.respond(message{kind: voteResponse, from: msg.to, to: msg.from, term: n.term, ok: granted, index: msg.term})
}

// raftVote is raft.Raft's own decision about a vote request.
func (s *state) raftVote(msg message, ignoreLeader bool) bool {
	n := s.node(msg.to)
	configured := n.last > 0
	if n.leader != 0 && n.leader != msg.from && !ignoreLeader || msg.term < n.term {
		return false
	}
	if msg.term > n.term {
		s.setTerm(msg.to, msg.term, 1)
	}
	switch {
	case configured && !s.isVoter(msg.to, msg.from):
		return false
	case n.voteTerm == msg.term:
		return n.voteFor == msg.from
	case n.lastTerm() > msg.prevTerm, n.lastTerm() == msg.prevTerm && n.last > msg.index:
		return false
	}
	n.voteTerm, n.voteFor, n.votedAgo = msg.term, msg.from, 0
	n.flush() // the term with it
	return true
}

// respond sends a response, which stays on the node until the product lets it leave.
func (s *state) respond(m message) {
	m.held = !s.node(m.from).mayReply()
	if !m.held {
		s.ghost.left(&m)
	}
	s.send(m)
}

// voteAnswered handles a vote response.
func (m *Model) voteAnswered(s *state, msg message) {
	n := s.node(msg.to)
	switch {
	case msg.term > n.term:
		s.setTerm(msg.to, msg.term, 0)
	case msg.ok:
		n.grants |= 1 << (msg.from - 1)
		if s.majority(msg.to, n.grants) {
			s.lead(msg.to)
		}
	}
}

// lead makes a candidate the leader of its term, with the first entry of the term.
func (s *state) lead(of id) {
	n := s.node(of)
	n.role, n.leader, n.grants, n.forced, n.candidacyAge = leader, of, 0, false, 0
	s.ghost.elected(of, n)
	s.append(of, ordinary)
}

// append adds an entry to a leader's log.
func (s *state) append(of id, kind entry) {
	n := s.node(of)
	if n.last == maxLog {
		s.ghost.overfull = true
		return
	}
	n.log[n.last] = n.term | kind
	n.last++
	if kind != ordinary || !raftnode.AppendMayOverlap(raftStates[n.role], voters) {
		s.flush(of) // a configuration is written first
	}
	if kind != ordinary {
		for i := range n.match {
			if s.nodes[i].wiped {
				n.match[i] = 0 // the library forgets a server that is no voter
			}
		}
	}
}

// replicate sends a follower what it lacks from the entry after prev on. The library waits for one answer before it
// sends the next: an earlier append and its answer are lost.
func (s *state) replicate(from, to id, prev, entries uint8) {
	n := s.node(from)
	msg := message{kind: appendRequest, from: from, to: to, term: n.term, index: prev, commit: n.commit, n: entries}
	if prev > 0 {
		msg.prevTerm = n.log[prev-1] & termBits
	}
	copy(msg.entries[:entries], n.log[prev:])
	s.remove(func(m *message) bool {
		return m.kind == appendRequest && m.from == from && m.to == to ||
			m.kind == appendResponse && m.from == to && m.to == from
	})
	s.send(msg)
}

// follow handles an append.
func (m *Model) follow(s *state, msg message) {
	v, n := view{m, s, msg.to}, s.node(msg.to)
	from := view{m, s, msg.from}
	if a := v.admit(msg.from); !a.OK() || !from.admit(msg.to).OK() || !a.Votes && !from.node().joined {
		return
	}
	if msg.term >= n.term {
		n.heard, n.heardFrom, n.heardTerm, n.heardGone, n.heardDead = 0, msg.from, msg.term, msg.gone, false
		if !n.joined { // the node adopts the cluster ID with the leader's roster
			n.joined, n.rosterIndex, n.rosterTerm = true, from.node().rosterIndex, from.node().rosterTerm
		}
	}
	ok := s.raftAppend(msg)
	s.respond(message{
		kind: appendResponse, from: msg.to, to: msg.from, term: n.term, ok: ok, index: msg.index + msg.n, age: msg.age,
		prevTerm: msg.term,
	})
}

// raftAppend is what raft.Raft does with an append. It reports whether the log holds its entries.
func (s *state) raftAppend(msg message) bool {
	n := s.node(msg.to)
	if msg.term < n.term {
		return false
	}
	if msg.term > n.term || n.role != follower && !(n.role == candidate && n.forced) {
		s.setTerm(msg.to, msg.term, 0)
	}
	n.leader = msg.from
	if msg.index > n.last || msg.index > 0 && n.log[msg.index-1]&termBits != msg.prevTerm {
		return false
	}
	for i := range msg.n {
		at := msg.index + i
		if at < n.last && n.log[at] == msg.entries[i] {
			continue
		}
		if at < n.commit {
			s.ghost.violate(committedLost)
		}
		copy(n.log[at:], msg.entries[i:msg.n])
		clear(n.log[msg.index+msg.n:])
		n.last = msg.index + msg.n
		s.flush(msg.to)
		break
	}
	limit := transport.CommitLimit(uint64(msg.commit), uint64(msg.index), int(msg.n))
	s.commit(msg.to, uint8(min(limit, uint64(n.last))))
	return true
}

// appendAnswered handles an append response on a leader.
func (s *state) appendAnswered(msg message) {
	n := s.node(msg.to)
	switch {
	case msg.term > n.term:
		s.setTerm(msg.to, msg.term, 0)
		return
	case !msg.ok:
		return
	}
	n.acked[msg.from-1] = min(n.acked[msg.from-1], msg.age)
	n.match[msg.from-1] = max(n.match[msg.from-1], msg.index)
	for index := n.last; index > n.commit && n.log[index-1]&termBits == n.term; index-- {
		held := uint8(1) << (msg.to - 1) // raft.Raft counts itself immediately
		for i, match := range n.match {
			if match >= index {
				held |= 1 << i
			}
		}
		if s.majority(msg.to, held) {
			s.commit(msg.to, index)
			return
		}
	}
}

// commit advances a node's commit index. The roster on its disk follows the records of members.
func (s *state) commit(of id, index uint8) {
	n := s.node(of)
	for n.commit < index {
		n.commit++
		e := n.log[n.commit-1]
		s.ghost.commit(n.commit, n.term, e)
		if e&^termBits != ordinary && n.commit > n.rosterIndex {
			n.rosterIndex, n.rosterTerm = n.commit, e&termBits
		}
	}
}
