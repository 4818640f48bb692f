package election

import (
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// vetoTimeouts is how many timeouts after the last contact with a leader a lower-priority candidate is
// rejected. A longer veto would leave the cluster without a leader if the preferred node cannot win.
const vetoTimeouts = 3

// PreVoteInput is the input for a decision about one pre-vote.
type PreVoteInput struct {
	Now         time.Time
	Candidate   cluster.NodeID
	LastContact time.Time // of this node with a leader; zero: never, and there is no veto
	Servers     []cluster.Server
	Mine        cluster.Claim
	Claims      map[cluster.NodeID]cluster.ReceivedClaim // the newest ones
	Params      Params
}

// MayPreVote reports whether the candidate may have this node's pre-vote with regard to priorities, and why not. The
// veto is limited in time. Only recent claims on a current connection count.
func MayPreVote(in PreVoteInput) (ok bool, reason string) {
	if in.LastContact.IsZero() || in.Now.Sub(in.LastContact) >= vetoTimeouts*in.Params.TimeoutMin {
		return true, ""
	}
	candidate, known := in.Claims[in.Candidate]
	if !known || !in.fresh(candidate) || candidate.Claim.Paused {
		return true, ""
	}
	if why := ineligibleReason(candidate.Claim); why != "" {
		return false, fmt.Sprintf("node %s is not eligible to lead: %s", in.Candidate, why)
	}
	rivals := []cluster.Claim{in.Mine}
	for _, sv := range in.Servers {
		if s, ok := in.Claims[sv.ID]; ok && sv.Suffrage == cluster.Voter && sv.ID != in.Candidate && in.fresh(s) {
			rivals = append(rivals, s.Claim)
		}
	}
	// A node that leads, or believes so, does not become a candidate.
	rivals = slices.DeleteFunc(rivals, func(c cluster.Claim) bool { return c.Role == cluster.Leader || c.Paused })
	ranking := in.Params.rank(rivals, in.Servers)
	if len(ranking) == 0 {
		return true, ""
	}
	i := slices.IndexFunc(rivals, func(c cluster.Claim) bool { return c.NodeID == ranking[0].ID })
	best, cand := rivals[i], candidate.Claim
	// Only a higher priority justifies a veto: all other criteria only decide who starts.
	if best.Priority <= cand.Priority || lessUpToDate(best, cand) {
		return true, ""
	}
	return false, fmt.Sprintf("higher priority %s alive: %d > %d", best.NodeID, best.Priority, cand.Priority)
}

func (in PreVoteInput) fresh(s cluster.ReceivedClaim) bool {
	return s.Connected && in.Now.Sub(s.At) < in.Params.TimeoutMin
}

// lessUpToDate reports whether log a is less up-to-date than log b.
func lessUpToDate(a, b cluster.Claim) bool {
	return a.LastLogTerm < b.LastLogTerm || a.LastLogTerm == b.LastLogTerm && a.LastLogIndex < b.LastLogIndex
}

// LogReason returns the reason of a voter with a more up-to-date log than the candidate's, "" otherwise.
func LogReason(lastTerm, lastIndex uint64, mine cluster.Claim) string {
	switch {
	case lastTerm < mine.LastLogTerm:
		return fmt.Sprintf("log behind: term %d < %d", lastTerm, mine.LastLogTerm)
	case lastTerm == mine.LastLogTerm && lastIndex < mine.LastLogIndex:
		return fmt.Sprintf("log behind: %d < %d", lastIndex, mine.LastLogIndex)
	}
	return ""
}

// MayIgnoreLeader reports whether a voter has its own evidence that its leader failed, so that leader stickiness does
// not apply: it has been silent for too long, or, without a lease, its process is confirmed dead.
func MayIgnoreLeader(mine cluster.Claim, p Params) bool {
	if mine.Role == cluster.Leader {
		return false
	}
	return p.silent(mine) || mine.LeaderProcessDead && !p.Lease
}
