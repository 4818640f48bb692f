package election

import (
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// vetoTimeouts is how many timeouts after the last contact with a leader a lower
// placed candidate is refused: longer, and a preferred node that cannot win
// would keep the cluster without a leader.
const vetoTimeouts = 3

// PreVoteInput is a question whether a candidate may have this node's pre-vote.
type PreVoteInput struct {
	Now         time.Time
	Candidate   cluster.NodeID
	LastContact time.Time // of this node with a leader; zero: never, and nothing is vetoed
	Servers     []cluster.Server
	Mine        cluster.Claim
	Claims      map[cluster.NodeID]cluster.ReceivedClaim // the newest claims
	Params      Params
}

// MayPreVote says whether the candidate may have this node's pre-vote, as far as
// placement goes, and why not. It is bounded in time. Of claims, only what was
// heard on a standing connection within TimeoutMin counts, so that a preferred
// node that is down costs nothing.
func MayPreVote(in PreVoteInput) (ok bool, reason string) {
	if in.LastContact.IsZero() || in.Now.Sub(in.LastContact) >= vetoTimeouts*in.Params.TimeoutMin {
		return true, ""
	}
	candidate, known := in.Claims[in.Candidate]
	if !known || !in.fresh(candidate) || candidate.Claim.Paused {
		return true, ""
	}
	if why := ineligibleReason(candidate.Claim); why != "" {
		return false, fmt.Sprintf("node %s may not lead: %s", in.Candidate, why)
	}
	rivals := []cluster.Claim{in.Mine}
	for _, sv := range in.Servers {
		if s, ok := in.Claims[sv.ID]; ok && sv.Suffrage == cluster.Voter && sv.ID != in.Candidate && in.fresh(s) {
			rivals = append(rivals, s.Claim)
		}
	}
	// A rival that leads, or leads still, does not stand.
	rivals = slices.DeleteFunc(rivals, func(c cluster.Claim) bool { return c.Role == cluster.Leader || c.Paused })
	ranking := in.Params.rank(rivals, in.Servers)
	if len(ranking) == 0 {
		return true, ""
	}
	i := slices.IndexFunc(rivals, func(c cluster.Claim) bool { return c.NodeID == ranking[0].ID })
	best, cand := rivals[i], candidate.Claim
	// Only priority is worth a veto: everything else that ranks is a tie-break
	// for who begins, and both would do.
	if best.Priority <= cand.Priority || lessUpToDate(best, cand) {
		return true, ""
	}
	return false, fmt.Sprintf("higher priority %s alive: %d > %d", best.NodeID, best.Priority, cand.Priority)
}

func (in PreVoteInput) fresh(s cluster.ReceivedClaim) bool {
	return s.Connected && in.Now.Sub(s.At) < in.Params.TimeoutMin
}

// lessUpToDate says whether the log of a is older than that of b.
func lessUpToDate(a, b cluster.Claim) bool {
	return a.LastLogTerm < b.LastLogTerm || a.LastLogTerm == b.LastLogTerm && a.LastLogIndex < b.LastLogIndex
}

// LogReason is the reason of a voter whose own log is newer than a candidate's,
// "" when it is not.
func LogReason(lastTerm, lastIndex uint64, mine cluster.Claim) string {
	switch {
	case lastTerm < mine.LastLogTerm:
		return fmt.Sprintf("log behind: term %d < %d", lastTerm, mine.LastLogTerm)
	case lastTerm == mine.LastLogTerm && lastIndex < mine.LastLogIndex:
		return fmt.Sprintf("log behind: %d < %d", lastIndex, mine.LastLogIndex)
	}
	return ""
}
