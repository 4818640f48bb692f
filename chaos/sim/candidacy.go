package sim

import (
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/transport"
)

// candidacy is a node's in a term.
type candidacy struct {
	node cluster.NodeID
	term uint64
}

// voteRequested is called with every vote request that a node sends. It counts terms with two candidates, and second
// candidacies in a term.
func (sim *Simulation) voteRequested(m, to *member, term uint64, proc *Proc) {
	sim.mu.Lock()
	before := sim.candidates[candidacy{m.id, term}]
	sim.candidates[candidacy{m.id, term}] = proc
	rivals := 0
	for _, other := range sim.members {
		if other != m && sim.candidates[candidacy{other.id, term}] != nil {
			rivals++
		}
	}
	sim.mu.Unlock()
	switch before {
	case nil:
		if sim.steps.at(stepVoteAsked, m, to); rivals > 0 {
			sim.reach("two candidates in a term")
		}
	case proc:
	default:
		sim.reach("second candidacy in a term")
	}
}

// storedBy hears of entries on a disk.
func (sim *Simulation) storedBy(m *member, term uint64) {
	sim.mu.Lock()
	first := sim.leaderTerm == term && sim.leader == m.index && sim.storedTerm < term
	if first {
		sim.storedTerm = term
	}
	sim.mu.Unlock()
	if first {
		m.atStep(stepLedStored)
	}
}

// answered hears of every message that a node's Raft has answered. wipes is how often the node's disk had been emptied
// when the message was sent.
func (sim *Simulation) answered(m transport.Message, from, to *member, wipes int) {
	switch m.Kind {
	case "vote":
		sim.steps.at(stepVoteAnswered, from, to)
	case "append", "heartbeat", "snapshot": // a node answers them in the same term, or in a later one
		if term := to.disk.CurrentTerm(); term < m.Term && to.disk.Wipes() == wipes {
			sim.violatedf(check.DurableAnswers, "%s has answered %s of %s in term %d, and its disk is in term %d", m.To,
				m.Kind, m.From, m.Term, term)
		}
	}
}

// checkOwnVote reports a new leader whose vote for itself is not durable.
func (sim *Simulation) checkOwnVote(m *member, term uint64) {
	if at, whom := m.disk.Vote(); at < term || at == term && whom != raftAddress(m.id) {
		sim.violatedf(check.DurableAnswers, "%s leads term %d, and the vote on its disk is of term %d for %s", m.id, term, at,
			whom)
	}
}
