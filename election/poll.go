package election

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// ClusterPoll is what one node knows at one moment: its own claim, and those of the servers that responded.
type ClusterPoll struct {
	Servers   []cluster.Server
	Mine      cluster.Claim
	Responses map[cluster.NodeID]cluster.ReceivedClaim // of the other servers
	Params    Params
}

// claim returns a server's claim, if it responded.
func (s ClusterPoll) claim(id cluster.NodeID) (cluster.Claim, bool) {
	if id == s.Mine.NodeID {
		return s.Mine, true
	}
	seen, ok := s.Responses[id]
	return seen.Claim, ok
}

// claims returns all claims, this node's first.
func (s ClusterPoll) claims() []cluster.Claim {
	all := []cluster.Claim{s.Mine}
	for _, sv := range s.Servers {
		if seen, ok := s.Responses[sv.ID]; ok && sv.ID != s.Mine.NodeID {
			all = append(all, seen.Claim)
		}
	}
	return all
}

// Term returns the highest term of all claims.
func (s ClusterPoll) Term() uint64 {
	term := uint64(0)
	for _, c := range s.claims() {
		term = max(term, c.Term)
	}
	return term
}

// Leader returns the leader if it can take part in a transfer, otherwise "" and the reason. It must have
// responded, no claim may have a later term, its disk must work, and a majority of voters must hear it.
func (s ClusterPoll) Leader() (id cluster.NodeID, why string) {
	claims := s.claims()
	i := slices.IndexFunc(claims, func(c cluster.Claim) bool { return c.Role == cluster.Leader && c.Term == s.Term() })
	if i < 0 {
		return "", "no node that answers leads"
	}
	leader := claims[i]
	if leader.Disk.Stalled {
		return "", fmt.Sprintf("the disk of the leader %s is stalled", leader.NodeID)
	}
	if leader.Yields != "" {
		return "", fmt.Sprintf("the leader %s lets the others elect: %v", leader.NodeID, leader.Yields)
	}
	notHearing := 0
	for _, c := range claims {
		if c.NodeID != leader.NodeID && isVoter(s.Servers, c.NodeID) &&
			(c.LeaderID != leader.NodeID || c.LeaderSilence >= s.Params.TimeoutMin) {
			notHearing++
		}
	}
	if notHearing >= cluster.Quorum(cluster.CountVoters(s.Servers)) {
		return "", fmt.Sprintf("%d of %d voters do not hear the leader %s", notHearing, cluster.CountVoters(s.Servers),
			leader.NodeID)
	}
	return leader.NodeID, ""
}

// Leads reports whether a server claims to lead, whether or not it can take part in a transfer. It starts no election.
func (s ClusterPoll) Leads(id cluster.NodeID) bool {
	c, answered := s.claim(id)
	return answered && c.Role == cluster.Leader
}

// ExclusionReason returns why a server takes part in no election, requested or not; "" if it may, or is silent.
func (s ClusterPoll) ExclusionReason(id cluster.NodeID) string {
	c, _ := s.claim(id)
	switch {
	case c.Superseded:
		return "a peer has a newer generation of the cluster"
	case c.ServiceRefused:
		return "part of a split brain"
	}
	return ""
}

// Responding returns the number of voters that responded, with this node, and of those needed to elect a leader.
func (s ClusterPoll) Responding() (n, need int) {
	for _, sv := range s.Servers {
		if _, ok := s.claim(sv.ID); ok && sv.Suffrage == cluster.Voter {
			n++
		}
	}
	return n, cluster.Quorum(cluster.CountVoters(s.Servers))
}

// PredictVotes predicts each voter's response to a candidate from the logs, by Raft's own rule. lost reports
// that the votes of all silent voters would not give a majority; enough reports that none of them is needed. A
// voter's response stays valid, because logs grow and only a leader shortens them.
func (s ClusterPoll) PredictVotes(candidate cluster.NodeID) (votes []cluster.Vote, enough, lost bool) {
	own, known := s.claim(candidate)
	granted, open := 0, 0
	for _, sv := range s.Servers {
		if sv.Suffrage != cluster.Voter {
			continue
		}
		v := cluster.Vote{Voter: sv.ID}
		c, answered := s.claim(sv.ID)
		behind := LogReason(own.LastLogTerm, own.LastLogIndex, c)
		switch {
		case sv.ID == candidate:
			v.Granted, v.Reason = true, "itself"
		case !answered:
			v.Reason = "does not respond"
			open++
		case known && behind != "":
			v.Reason = behind
		default:
			v.Granted, v.Reason = true, "would grant"
		}
		if v.Granted {
			granted++
		}
		votes = append(votes, v)
	}
	slices.SortFunc(votes, func(a, b cluster.Vote) int { return cmp.Compare(a.Voter, b.Voter) })
	need := cluster.Quorum(cluster.CountVoters(s.Servers))
	return votes, granted >= need, granted+open < need
}

// lastResort is how many timeouts a cluster must be without a leader before a voter that may not lead starts an
// election. By then all others had time to start one, and pre-vote vetoes have ended.
const lastResort = 2 * vetoTimeouts

// forcedLastResort is the same while some node could win by its claims but has not. For example, a voter that
// missed a membership change rejects candidates that its configuration does not have.
const forcedLastResort = 4 * lastResort

// LastResort reports whether this node, a voter that is drained or not eligible, starts an election nevertheless.
// The cluster had no leader for the duration leaderless, and no responding eligible node could win. Usually this
// node's log is the most up-to-date one, and the others get its entries only from a leader. It transfers
// leadership once one of them has caught up. Responses holds only claims received during leaderless.
//
// A drained node also starts one when no other has won for a long time. A node that is not eligible does so only
// when those that respond would elect it, and one of them is eligible: to that it transfers leadership. The only voter
// needs no other.
func (s ClusterPoll) LastResort(leaderless time.Duration) bool {
	ineligible := !s.Mine.Eligible || s.Mine.Priority <= 0
	_, enough, _ := s.PredictVotes(s.Mine.NodeID)
	switch {
	case leaderless < lastResort*s.Params.TimeoutMin, ineligible && !enough:
		return false
	case !ineligible && leaderless >= forcedLastResort*s.Params.TimeoutMin:
		return true
	}
	eligible := 0
	for _, sv := range s.Servers {
		c, answers := s.claim(sv.ID)
		if !answers || sv.ID == s.Mine.NodeID || ineligibleReason(c) != "" {
			continue
		}
		if _, enough, _ := s.PredictVotes(sv.ID); enough {
			return false
		}
		eligible++
	}
	return !ineligible || eligible > 0 || cluster.CountVoters(s.Servers) == 1
}

// TargetOptions evaluates every server as the target of a requested election, the best first.
func (s ClusterPoll) TargetOptions() []cluster.TargetOption {
	end := uint64(0)
	for _, c := range s.claims() {
		end = max(end, c.LastLogIndex)
	}
	order, servers := serverIndex(s.Servers), slices.Clone(s.Servers)
	slices.SortStableFunc(servers, func(a, b cluster.Server) int {
		ca, okA := s.claim(a.ID)
		cb, okB := s.claim(b.ID)
		if okA != okB || !okA {
			return cluster.CompareBool(okB, okA)
		}
		return s.Params.compare(ca, cb, order)
	})
	choices := make([]cluster.TargetOption, len(servers))
	for i, sv := range servers {
		choices[i] = s.choice(sv, end)
	}
	slices.SortStableFunc(choices, func(a, b cluster.TargetOption) int {
		return cluster.CompareBool(b.Eligible, a.Eligible)
	})
	return choices
}

func (s ClusterPoll) choice(sv cluster.Server, end uint64) cluster.TargetOption {
	ch := cluster.TargetOption{ID: sv.ID, Voter: sv.Suffrage == cluster.Voter}
	c, answered := s.claim(sv.ID)
	if answered {
		ch.Priority, ch.LagEntries = c.Priority, max(end-min(end, c.LastLogIndex), c.Replaying())
	}
	_, enough, _ := s.PredictVotes(sv.ID)
	switch why := ineligibleReason(c); {
	case !ch.Voter:
		ch.Reason = fmt.Sprintf("node %s is not a voter", sv.ID)
	case !answered:
		ch.Reason = fmt.Sprintf("node %s does not respond", sv.ID)
	case why != "":
		ch.Reason = fmt.Sprintf("node %s is not eligible to lead: %s", sv.ID, why)
	case s.Leads(sv.ID):
		ch.Reason = fmt.Sprintf("node %s leads", sv.ID)
	case !enough:
		ch.Reason = fmt.Sprintf("a majority would not vote for node %s", sv.ID)
		ch.LogBehind = slices.ContainsFunc(s.Servers, func(voter cluster.Server) bool {
			v, answered := s.claim(voter.ID)
			return answered && voter.Suffrage == cluster.Voter && lessUpToDate(c, v)
		})
	}
	ch.Eligible = ch.Reason == ""
	return ch
}
