package election

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// ClusterPoll is what one node knows of all servers at one moment: its own claim, and
// the answers to a poll made for this. Who did not answer is not in it.
type ClusterPoll struct {
	Now       time.Time
	Servers   []cluster.Server
	Mine      cluster.Claim
	Responses map[cluster.NodeID]cluster.ReceivedClaim // the answers of others
	Params    Params
}

// claim gives a server's claim, if it has answered.
func (s ClusterPoll) claim(id cluster.NodeID) (cluster.Claim, bool) {
	if id == s.Mine.NodeID {
		return s.Mine, true
	}
	seen, ok := s.Responses[id]
	return seen.Claim, ok
}

// claims gives every claim there is, this node's first.
func (s ClusterPoll) claims() []cluster.Claim {
	all := []cluster.Claim{s.Mine}
	for _, sv := range s.Servers {
		if seen, ok := s.Responses[sv.ID]; ok && sv.ID != s.Mine.NodeID {
			all = append(all, seen.Claim)
		}
	}
	return all
}

// Term is the highest term that any of them is in.
func (s ClusterPoll) Term() uint64 {
	term := uint64(0)
	for _, c := range s.claims() {
		term = max(term, c.Term)
	}
	return term
}

// Leader gives the node that leads and can take part in handing leadership over,
// "" and the reason when there is none: it has answered, nobody is in a later
// term, its disk works, and a majority of the voters hears it.
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
	deaf := 0
	for _, c := range claims {
		if c.NodeID != leader.NodeID && isVoter(s.Servers, c.NodeID) && (c.LeaderID != leader.NodeID || c.LeaderSilence >= s.Params.TimeoutMin) {
			deaf++
		}
	}
	if deaf >= cluster.Quorum(cluster.CountVoters(s.Servers)) {
		return "", fmt.Sprintf("%d of %d voters do not hear the leader %s", deaf, cluster.CountVoters(s.Servers), leader.NodeID)
	}
	return leader.NodeID, ""
}

// Responding counts the voters that have answered, this node among them, and how
// many are needed to elect a leader.
func (s ClusterPoll) Responding() (n, need int) {
	for _, sv := range s.Servers {
		if _, ok := s.claim(sv.ID); ok && sv.Suffrage == cluster.Voter {
			n++
		}
	}
	return n, cluster.Quorum(cluster.CountVoters(s.Servers))
}

// PredictVotes foretells what each voter would answer to a candidate, from the logs:
// Raft's own rule. lost says that even with the votes of all that have not
// answered there would be no majority; enough that there is one without them.
// What a voter has answered stays true: logs grow, and only a leader shortens
// them.
func (s ClusterPoll) PredictVotes(candidate cluster.NodeID) (votes []cluster.Vote, enough, lost bool) {
	stands, known := s.claim(candidate)
	granted, open := 0, 0
	for _, sv := range s.Servers {
		if sv.Suffrage != cluster.Voter {
			continue
		}
		v := cluster.Vote{Voter: sv.ID}
		c, answered := s.claim(sv.ID)
		behind := LogReason(stands.LastLogTerm, stands.LastLogIndex, c)
		switch {
		case sv.ID == candidate:
			v.Granted, v.Reason = true, "itself"
		case !answered:
			v.Reason = "does not answer"
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

// lastResort is how many timeouts a cluster must have been without a leader until
// a drained voter stands: everybody else has had time to, and priorities veto
// nobody any more.
const lastResort = 2 * vetoTimeouts

// forcedLastResort is the same where somebody could win by all that is claimed, and has not:
// a voter that missed a change of the members, for one, refuses whoever was none by
// the configuration that it goes by.
const forcedLastResort = 4 * lastResort

// LastResort says that this node, a drained voter, is to stand for election all
// the same: for leaderless nobody has led, and of the others that answer none
// that may lead could win, or none has for long. Its log is the newest then, as a rule, and the others
// get what they lack only from a leader. It hands over once one of them has
// caught up. Seen holds claims that are no older than that.
func (s ClusterPoll) LastResort(leaderless time.Duration) bool {
	switch {
	case leaderless < lastResort*s.Params.TimeoutMin:
		return false
	case leaderless >= forcedLastResort*s.Params.TimeoutMin:
		return true
	}
	for _, sv := range s.Servers {
		c, answers := s.claim(sv.ID)
		if !answers || sv.ID == s.Mine.NodeID || ineligibleReason(c) != "" {
			continue
		}
		if _, enough, _ := s.PredictVotes(sv.ID); enough {
			return false
		}
	}
	return true
}

// TargetOptions judges every server as one to be elected by order, the best first: by
// its log, then as Judge ranks survivors.
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
			return cmp.Compare(btoi(okB), btoi(okA))
		}
		return s.Params.compare(ca, cb, order)
	})
	choices := make([]cluster.TargetOption, len(servers))
	for i, sv := range servers {
		choices[i] = s.choice(sv, end)
	}
	slices.SortStableFunc(choices, func(a, b cluster.TargetOption) int { return cmp.Compare(btoi(b.Eligible), btoi(a.Eligible)) })
	return choices
}

func (s ClusterPoll) choice(sv cluster.Server, end uint64) cluster.TargetOption {
	ch := cluster.TargetOption{ID: sv.ID, Voter: sv.Suffrage == cluster.Voter}
	c, answered := s.claim(sv.ID)
	if answered {
		ch.Priority, ch.LagEntries = c.Priority, end-min(end, c.LastLogIndex)
	}
	_, enough, _ := s.PredictVotes(sv.ID)
	switch why := ineligibleReason(c); {
	case !ch.Voter:
		ch.Reason = fmt.Sprintf("node %s is not a voter", sv.ID)
	case !answered:
		ch.Reason = fmt.Sprintf("node %s does not answer", sv.ID)
	case why != "":
		ch.Reason = fmt.Sprintf("node %s may not lead: %s", sv.ID, why)
	case !enough:
		ch.Reason = fmt.Sprintf("node %s would not get the votes of a majority", sv.ID)
		ch.LogBehind = slices.ContainsFunc(s.Servers, func(voter cluster.Server) bool {
			v, answered := s.claim(voter.ID)
			return answered && voter.Suffrage == cluster.Voter && lessUpToDate(c, v)
		})
	}
	ch.Eligible = ch.Reason == ""
	return ch
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
