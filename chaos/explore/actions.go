package explore

import (
	"northstar/cluster"
	"northstar/election"
	"northstar/transport"
)

// verb is what happens in a step.
type verb uint8

const (
	deliver verb = iota + 1
	write
	crash
	restart
	wipe
	tick
	timer
	learnTerm
	failOver
	detect
	request
	transfer
	replicate
	resend
	propose
	readmit
	promote
	stepDown
	cutLink
	healLink

	lastVerb = healLink
)

// action is one step: a verb, and up to two nodes, or a message by its place in the bag.
type action struct {
	verb verb
	a, b uint8
}

// next calls visit with every state that one step leads to.
func (m *Model) next(s *state, visit func(action, *state)) {
	try := func(a action, apply func(*state)) {
		t := *s
		apply(&t)
		m.tidy(&t)
		t.ghost.broken = m.check(&t)
		visit(a, &t)
	}
	for i := range s.inBag {
		if msg := s.bag[i]; s.deliverable(&msg) {
			try(action{deliver, i, 0}, func(t *state) { m.deliver(t, msg) })
		}
	}
	for n := id(1); n <= nodes; n++ {
		m.nodeSteps(s, n, try)
		if s.node(n).up {
			m.electionSteps(s, n, try)
		}
		if s.node(n).up && s.node(n).role == leader {
			m.leaderSteps(s, n, try)
		}
		if s.cut == 0 && s.left.cuts > 0 {
			try(action{cutLink, n, 0}, func(t *state) { t.cut = n; t.left.cuts-- })
		}
	}
	if s.cut != 0 {
		try(action{healLink, s.cut, 0}, func(t *state) { t.cut = 0 })
	}
	if t := *s; m.tick(&t) {
		try(action{tick, 0, 0}, func(t *state) { m.tick(t) })
	}
}

// deliverable reports whether a message may arrive now. A response of another node is handed on only when the product
// lets it count.
func (s *state) deliverable(m *message) bool {
	to := s.node(m.to)
	switch {
	case m.held || !to.up || !s.connected(m.from, m.to):
		return false
	case m.kind == voteResponse:
		return to.mayReply()
	case m.kind == appendResponse && m.ok:
		return to.mayCount(m.index)
	}
	return true
}

func (m *Model) deliver(s *state, msg message) {
	done := false
	s.remove(func(o *message) bool {
		same := !done && *o == msg
		done = done || same
		return same
	})
	switch msg.kind {
	case voteRequest:
		m.vote(s, msg)
	case voteResponse:
		m.voteAnswered(s, msg)
	case appendRequest:
		m.follow(s, msg)
	case appendResponse:
		s.appendAnswered(msg)
	case timeoutNow:
		n, v := s.node(msg.to), view{m, s, msg.to}
		if n.term == msg.term && n.leader == msg.from && v.admit(msg.from).Votes && m.mayForce(s, msg.to) {
			s.elect(msg.to, true, true)
		}
	}
}

// mayElect reports whether a node may be made a candidate, within the terms of this model.
func (m *Model) mayElect(s *state, of id) bool {
	n := s.node(of)
	return n.up && n.role != leader && n.last > 0 && n.term < m.maxTerm && of != m.Idle && s.isVoter(of, of) &&
		!m.blocked(s, of)
}

// mayForce is mayElect for a TimeoutNow. A candidacy that began with one has to be ended first, which takes a term.
func (m *Model) mayForce(s *state, of id) bool {
	return m.mayElect(s, of) && (!s.node(of).forced || s.node(of).term+1 < m.maxTerm)
}

// nodeSteps are what happens to a process and its disk.
func (m *Model) nodeSteps(s *state, of id, try func(action, func(*state))) {
	n := s.node(of)
	if n.up && !n.mayReply() {
		try(action{write, of, 0}, func(t *state) { t.flush(of) })
	}
	if n.up && s.left.crashes > 0 {
		try(action{crash, of, 0}, func(t *state) {
			t.left.crashes--
			t.crash(of, m.timed())
			// Without time its messages may take as long as it is down.
			t.node(of).up = !m.timed() && t.left.wipes == 0
		})
	}
	if !n.up {
		try(action{restart, of, 0}, func(t *state) { t.node(of).up = true })
	}
	if !n.up && s.left.wipes > 0 {
		try(action{wipe, of, 0}, func(t *state) {
			t.left.wipes--
			t.nodes[of-1] = node{wiped: true}
			t.node(of).stepDown()
		})
	}
}

// crash ends a process: what was not on its disk is lost, and so are the messages to it.
func (s *state) crash(of id, timed bool) {
	n := s.node(of)
	n.stepDown()
	n.up, n.term, n.voteTerm, n.voteFor = false, n.diskTerm, n.diskVoteTerm, n.diskVoteFor
	n.last, n.commit = n.diskLast, 0
	clear(n.log[n.last:])
	n.running, n.votedAgo = 0, notAcked
	n.heard, n.heardFrom, n.heardTerm, n.heardGone, n.heardDead = 0, 0, 0, false, false
	s.remove(func(m *message) bool { return m.to == of || m.from == of && m.held })
	for i := range s.inBag {
		if m := &s.bag[i]; timed && m.from == of && m.kind == appendRequest {
			m.gone = true
		}
	}
	for i := range s.nodes {
		if o := &s.nodes[i]; timed && o.heardFrom == of {
			o.heardGone = true
		}
	}
}

// electionSteps are the ways in which a node becomes a candidate.
func (m *Model) electionSteps(s *state, of id, try func(action, func(*state))) {
	n := s.node(of)
	if m.timed() && n.heardGone && !n.heardDead && s.connected(of, n.heardFrom) {
		try(action{detect, of, 0}, func(t *state) { t.node(of).heardDead = true })
	}
	if !m.mayElect(s, of) {
		return
	}
	if s.left.requests > 0 && m.mayForce(s, of) {
		try(action{request, of, 0}, func(t *state) {
			t.left.requests--
			t.elect(of, true, true)
			t.node(of).servesIn = m.leaseWait()
		})
	}
	if m.mayForce(s, of) && m.decides(s, of) {
		try(action{failOver, of, 0}, func(t *state) { t.elect(of, true, false) })
	}
	if m.ago(n.quiet()) < timeoutMin {
		return
	}
	refused := *s
	if !m.asksPreVotes(&refused, of) {
		try(action{timer, of, 0}, func(t *state) { *t = refused })
		return
	}
	for i := id(1); i <= nodes; i++ {
		if i != of && m.preVote(&refused, of, i) && s.majority(of, 1<<(of-1)|1<<(i-1)) {
			try(action{timer, of, i}, func(t *state) { t.elect(of, false, false) })
		}
		if m.learns(s, of, i) {
			try(action{learnTerm, of, i}, func(t *state) { t.setTerm(of, t.node(i).term, 0) })
		}
	}
	if m.timed() {
		try(action{timer, of, 0}, func(t *state) { *t = refused })
	}
}

// asksPreVotes is what Raft's timer does. It reports whether the node asks for pre-votes. A candidate of the library
// goes on naming the leader that it has acknowledged. If that one is lost, the transport ends the candidacy instead.
func (m *Model) asksPreVotes(s *state, of id) bool {
	n := s.node(of)
	named := n.leader
	if n.role == follower {
		named = 0
	}
	n.stepDown()
	if named != 0 && !(view{m, s, of}).lastLeader().MayHoldLease(now, timeoutMin) {
		return false
	}
	n.role, n.leader = preCandidate, named
	return true
}

// quiet returns for how long Raft's timer has run: since the start of the candidacy, the last message of the leader, or
// the start of the process.
func (n *node) quiet() uint8 {
	switch {
	case n.role != follower:
		return n.candidacyAge
	case n.heardFrom != 0:
		return n.heard
	}
	return n.running
}

// decides reports whether failover makes the node a candidate, with the claims of any of the others.
func (m *Model) decides(s *state, of id) bool {
	v, n := view{m, s, of}, s.node(of)
	if n.heardFrom == 0 || !n.heardDead && m.ago(n.heard) < timeoutMin {
		return false
	}
	var others []id
	for i := id(1); i <= nodes; i++ {
		if i != of && s.node(i).up && s.connected(of, i) {
			others = append(others, i)
		}
	}
	in := election.Input{
		Now: now, Servers: v.servers(), Mine: v.claim(), Params: m.params(),
		Evidence: election.Evidence{
			Leader: ids[n.heardFrom], BootID: lifeOf(n.heardGone), ProcessDead: n.heardDead, At: now,
			Term: uint64(n.heardTerm),
		},
	}
	for set := 1; set < 1<<len(others); set++ {
		in.Responses = map[cluster.NodeID]cluster.ReceivedClaim{}
		for k, i := range others {
			if set>>k&1 == 1 {
				in.Responses[ids[i]] = v.received(i)
			}
		}
		if election.DecideElection(in).StartElection {
			return true
		}
	}
	return false
}

// learns reports whether the answer to a pre-vote request shows a later term, which the node then takes.
func (m *Model) learns(s *state, of, from id) bool {
	return of != from && s.node(from).up && s.connected(of, from) && s.node(from).term > s.node(of).term+1 &&
		(view{m, s, of}).admit(from).Votes && s.isVoter(of, from)
}

// preVote reports whether a node grants a candidate its pre-vote.
func (m *Model) preVote(s *state, from, to id) bool {
	c, n, v := s.node(from), s.node(to), view{m, s, to}
	asks := view{m, s, from}
	if !n.up || !s.connected(from, to) || !s.isVoter(from, to) || !asks.admit(to).Votes ||
		m.Lease && asks.lastLeader().MayHoldLease(now, timeoutMin) {
		return false
	}
	b := transport.VoteRequest{
		Candidate: ids[from], Pre: true, Term: uint64(c.term + 1), LastIndex: uint64(c.last),
		LastTerm: uint64(c.lastTerm()),
	}
	g := v.guard(b, from)
	if _, why := g.Refuse(b, now); why != "" || g.BoundByLease(b, now) != "" {
		return false
	}
	return (n.leader == 0 || n.leader == from) && c.term+1 >= n.term && (n.last == 0 || s.isVoter(to, from)) &&
		(n.lastTerm() < c.lastTerm() || n.lastTerm() == c.lastTerm() && n.last <= c.last)
}

// leaderSteps are what a leader does.
func (m *Model) leaderSteps(s *state, of id, try func(action, func(*state))) {
	n := s.node(of)
	for i := id(1); i <= nodes; i++ {
		if i == of || !s.node(i).up || !(view{m, s, of}).admit(i).OK() {
			continue
		}
		common := n.common(s.node(i))
		if m.newsFor(s, of, i) {
			entries := min(n.last-common, maxBatch)
			try(action{replicate, of, i}, func(t *state) { t.replicate(of, i, common, entries) })
		}
		if m.Resends && common > 0 && n.match[i-1] == 0 {
			try(action{resend, of, i}, func(t *state) { t.replicate(of, i, common-1, 1) })
		}
		if s.left.transfers > 0 && n.serves() && s.isVoter(of, i) {
			try(action{transfer, of, i}, func(t *state) {
				t.left.transfers--
				t.node(of).leaseOff = true
				t.send(message{kind: timeoutNow, from: of, to: i, term: n.term})
			})
		}
	}
	if s.left.writes > 0 && n.serves() {
		try(action{propose, of, 0}, func(t *state) { t.left.writes--; t.append(of, ordinary) })
	}
	for i := id(1); i <= nodes && n.serves() && n.commit == n.last; i++ {
		switch kind := n.lastChange(); {
		case !s.node(i).wiped || i == of:
		case kind == ordinary:
			try(action{readmit, of, i}, func(t *state) { t.append(of, admits) })
		case kind == admits && n.match[i-1] > 0:
			try(action{promote, of, i}, func(t *state) { t.append(of, promotes) })
		}
	}
	if m.quorumLost(s, of) {
		try(action{stepDown, of, 0}, func(t *state) { t.node(of).stepDown() })
	}
}
