package raftnode

import "github.com/hashicorp/raft"

// TermMayWait reports whether a new term may stay unwritten until the vote that follows it: of a candidate that needs
// other voters, or while raft.Raft handles vote requests.
func TermMayWait(candidate, needsOthers bool, votesInFlight int) bool {
	return candidate && needsOthers || !candidate && votesInFlight > 0
}

// SelfVoteMayOverlap reports whether a node may ask others for votes while it writes its own one. voters returns the
// number of voters.
func SelfVoteMayOverlap(state raft.RaftState, voters func() int) bool {
	return state == raft.Candidate && voters() > 1
}

// AppendMayOverlap reports whether a node may send ordinary entries while it writes them.
func AppendMayOverlap(state raft.RaftState, voters func() int) bool {
	return state == raft.Leader && voters() > 1
}

// Unwritten is what raft.Raft has stored and what is not durable yet.
type Unwritten struct {
	Term       bool
	SelfVote   bool
	FirstEntry uint64 // of an append; 0: none
}

// BeforeReply returns what must be durable before a response may leave the node, and before another voter's vote counts
// here.
func (u Unwritten) BeforeReply() Unwritten { return u }

// BeforeAck returns what must be durable before another node's acknowledgement of the entries up to index counts here.
func (u Unwritten) BeforeAck(index uint64) Unwritten {
	if u.FirstEntry > index {
		return Unwritten{}
	}
	return Unwritten{FirstEntry: u.FirstEntry}
}

// unwritten returns what is not durable. The caller holds mu. A pending no-op is not part of it: no node has it.
func (s *raftStore) unwritten() Unwritten {
	u := Unwritten{Term: s.termPending, SelfVote: s.inFlightSelfVote != nil}
	if s.inFlightAppend != nil {
		u.FirstEntry = s.inFlightAppend.entries[0].Index
	}
	return u
}
