package transport

import (
	"fmt"
	"time"

	"northstar/cluster"
)

// VoteRequest is a vote or pre-vote request of another node.
type VoteRequest struct {
	Candidate           cluster.NodeID
	Pre                 bool
	Transfer            bool // Raft is to ignore the leader that this node knows
	OverLiveLeader      bool // Transfer, as the candidate has set it
	Term                uint64
	LastIndex, LastTerm uint64
}

// VoterPolicy is what a voter decides besides Raft. Elections has it.
type VoterPolicy interface {
	VetoPreVote(candidate cluster.NodeID, now time.Time) (reason string)
	MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool
	VoteObstacle() (kind, why string)
}

// VoteGuard is what the guards in front of Raft know when they decide about a vote request. Its methods are pure, as
// far as the policy is.
type VoteGuard struct {
	Admission cluster.Admission // of the candidate
	// Committed is an entry that this node knows to be committed without its log; term 0 if unknown.
	CommittedIndex, CommittedTerm uint64
	VotedFor                      cluster.NodeID // got the vote of the request's term within TimeoutMin; "" if no node
	LastLeader                    LeaderContact
	Policy                        VoterPolicy
	Lease                         bool // leaders may have leases
	TimeoutMin, TimeoutMax        time.Duration
}

// Refuse returns why a request must not reach Raft, for the metric and as text; "" if it may.
func (g VoteGuard) Refuse(b VoteRequest, now time.Time) (kind, why string) {
	a := g.Admission
	obstacle, text := g.Policy.VoteObstacle()
	switch {
	case !a.OK():
		return string(a.Refusal), a.Reason
	case a.RecordStale:
		return "outdated", "no votes are exchanged: " + noVotesReason(a)
	case a.Outside:
		return "not_member", "no votes are exchanged: " + noVotesReason(a)
	case !a.Votes:
		return "no_cluster_id", "no votes are exchanged: " + noVotesReason(a)
	case b.missesCommitted(g.CommittedIndex, g.CommittedTerm) != "":
		// A node that was wiped and re-admitted may lack committed entries itself, and Raft compares logs only.
		return "behind", b.missesCommitted(g.CommittedIndex, g.CommittedTerm) + ", which is committed"
	case obstacle != "":
		return obstacle, text
	case b.Pre:
		if g.VotedFor != "" && g.VotedFor != b.Candidate {
			return "voted", fmt.Sprintf("already voted for %s", g.VotedFor)
		}
		if why := g.Policy.VetoPreVote(b.Candidate, now); why != "" {
			return "priority", why
		}
	}
	return "", ""
}

// missesCommitted returns why the candidate's log cannot hold a committed entry, "" if it can. A log that holds the
// entry ends at or after it, in the entry's term or a later one.
func (b VoteRequest) missesCommitted(index, term uint64) string {
	switch {
	case b.LastTerm < term:
		return fmt.Sprintf("log behind: term %d < %d", b.LastTerm, term)
	case b.LastIndex < index:
		return fmt.Sprintf("log behind: %d < %d", b.LastIndex, index)
	}
	return ""
}

// HeldByLeader reports whether Raft would refuse the request because it knows another leader.
func (b VoteRequest) HeldByLeader(leader, self cluster.NodeID, term uint64) bool {
	return leader != "" && leader != b.Candidate && leader != self && b.Term > term
}

// BoundByLease returns why a vote may contradict a lease, "" if it does not. The lease is of the leader that this
// process has acknowledged last. It ends less than TimeoutMin after it. This voter waits for TimeoutMax unless it has
// evidence that the leader has failed. A request with the LeadershipTransfer flag is not bound.
//
// raft's own rule, no vote while it knows a leader, is not enough. A replaced raft.Raft knows none. A vote request with
// the LeadershipTransfer flag makes raft forget its leader even when it refuses the vote.
func (g VoteGuard) BoundByLease(b VoteRequest, now time.Time) string {
	last := g.LastLeader
	if b.OverLiveLeader || !g.Lease || last.Leader == "" || last.Leader == b.Candidate {
		return ""
	}
	age := now.Sub(last.At)
	if age >= g.TimeoutMax || age >= g.TimeoutMin && g.Policy.MayIgnoreLeader(b.Candidate, b.Term, now) {
		return ""
	}
	return fmt.Sprintf("has acknowledged %s recently, which may have a lease", last.Leader)
}
