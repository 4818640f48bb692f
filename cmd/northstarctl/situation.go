package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"northstar/api/apiv1"
)

// explainLeader returns why the leader leads, or why there is none, one paragraph a line.
func (s situation) explainLeader() []string {
	if s.cluster.LeaderID == "" {
		return s.explainNoLeader()
	}
	lines := []string{fmt.Sprintf("Node %s leads, in term %d.", s.cluster.LeaderID, s.cluster.Term)}
	lines = append(lines, s.explainTerm(s.cluster.Term)...)
	return append(append(lines, s.explainRank()), s.explainQuorum()...)
}

// explainTerm describes the elections of a term.
func (s situation) explainTerm(term uint64) (lines []string) {
	for _, el := range s.history.of(term) {
		if el.Won() { // attempts of other nodes explain nothing of this leader
			lines = append(lines, el.Explanation...)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, fmt.Sprintf("The node that answered has no record of the election of term %d "+
			"yet.", term))
	}
	return lines
}

// explainRank compares the leader's priority with those of the others.
func (s situation) explainRank() string {
	leader, _ := s.member(s.cluster.LeaderID)
	var better []string
	for _, m := range s.cluster.Members {
		if m.Suffrage == "voter" && m.Priority > leader.Priority {
			why := s.obstacle(m)
			if why == "" {
				why = "it takes leadership over once it has been stable for failover.takeover-delay, unless automatic " +
					"failover is paused"
			}
			better = append(better, fmt.Sprintf("node %s has priority %d; %s", m.ID, m.Priority, why))
		}
	}
	if len(better) > 0 {
		return fmt.Sprintf("Its priority is %d, and not the highest: %s.", leader.Priority, strings.Join(better, ". Also, "))
	}
	return fmt.Sprintf("Its priority, %d, is the highest of the voters, so no other node takes leadership over.",
		leader.Priority)
}

// explainQuorum returns how many voters are healthy, as a sentence.
func (s situation) explainQuorum() []string {
	return []string{"Quorum: " + quorumText(s.cluster) + "."}
}

// obstacle returns why a member starts no election now; "" if nothing is known to prevent it.
func (s situation) obstacle(m apiv1.Member) string {
	var why []string
	if m.Suffrage != "voter" {
		why = append(why, "it is not a voter")
	}
	if m.Priority == 0 {
		why = append(why, "its priority is 0, so it never leads")
	}
	if !m.Eligible {
		why = append(why, "it is not eligible")
	}
	if m.Lifecycle == "draining" {
		why = append(why, "it is draining")
	}
	r, asked := s.nodes[m.ID]
	switch {
	case asked && r.err != nil:
		why = append(why, "it does not answer ("+silence(r.err)+")")
	case asked && len(why) == 0 && r.status.ElectionObstacle != "":
		why = append(why, r.status.ElectionObstacle)
	case !asked && !m.Healthy:
		why = append(why, strings.Join(m.Reasons, ", "))
	}
	return strings.Join(why, ", ")
}

// silence returns why a node gave no view of itself.
func silence(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: its process does not run"
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("nothing heard for %v: it hangs, or cannot be reached", statusTimeout)
	}
	return err.Error()
}

func (s situation) member(id string) (apiv1.Member, bool) {
	i := slices.IndexFunc(s.cluster.Members, func(m apiv1.Member) bool { return m.ID == id })
	if i < 0 {
		return apiv1.Member{}, false
	}
	return s.cluster.Members[i], true
}

// explainNode returns why a node leads or does not. known is false if it is not a member.
func (s situation) explainNode(id string) (lines []string, known bool) {
	m, known := s.member(id)
	switch {
	case !known:
		return nil, false
	case id == s.cluster.LeaderID:
		return s.explainLeader(), true
	case s.cluster.LeaderID == "":
		return s.explainNoLeader(), true
	}
	lines = []string{fmt.Sprintf("Node %s does not lead, because node %s does, in term %d.", id, s.cluster.LeaderID,
		s.cluster.Term)}
	leader, _ := s.member(s.cluster.LeaderID)
	switch why := s.obstacle(m); {
	case why != "":
		lines = append(lines, fmt.Sprintf("It starts no election now: %s.", why))
	case m.Priority > leader.Priority:
		lines = append(lines, fmt.Sprintf("Its priority, %d, is higher than the leader's, %d: it takes leadership over "+
			"once it has been stable for failover.takeover-delay.", m.Priority, leader.Priority))
	default:
		lines = append(lines, fmt.Sprintf("It could lead. Its priority, %d, is not higher than the leader's, %d, so "+
			"leadership stays where it is until that node fails or an operator moves it: northstarctl transfer --to %s.",
			m.Priority, leader.Priority, id))
	}
	return append(lines, s.explainTerm(s.cluster.Term)...), true
}

// explainNoLeader returns why there is no leader, and what to do.
func (s situation) explainNoLeader() []string {
	lines := []string{fmt.Sprintf("There is no leader, as node %s sees it.", orDash(s.cluster.ObservedBy))}
	var answering, silent, able, unable []string
	for _, m := range s.cluster.Members {
		if m.Suffrage != "voter" {
			continue
		}
		if r := s.nodes[m.ID]; r.err != nil {
			silent = append(silent, fmt.Sprintf("%s (%s)", m.ID, silence(r.err)))
			continue
		}
		answering = append(answering, m.ID)
		if why := s.obstacle(m); why != "" {
			unable = append(unable, fmt.Sprintf("node %s: %s", m.ID, why))
		} else {
			able = append(able, m.ID)
		}
	}
	q := s.cluster.Quorum
	if len(answering) < q.Needed && s.apart() {
		lines = append(lines, fmt.Sprintf("From here, %d of %d voters answer at their HTTP addresses. These do not: %s. "+
			"Node %s, which answered, sees %d healthy voters, and %d are needed. Repeat this where the members' addresses "+
			"can be reached, for example on the machine or in the pod of a node.",
			len(answering), q.Voters, strings.Join(silent, "; "), orDash(s.cluster.ObservedBy), q.Healthy, q.Needed))
		if !s.cluster.AutoFailover {
			lines = append(lines, s.explainPause())
		}
		return append(lines, s.explainLastElections()...)
	}
	switch {
	case len(answering) < q.Needed:
		lines = append(lines, s.explainLostQuorum(answering, silent)...)
	case !s.cluster.AutoFailover:
		lines = append(lines, s.explainPause()+" Start an election with: northstarctl failover.")
	case len(able) == 0:
		lines = append(lines, "No node that answers starts an election: "+strings.Join(unable, "; ")+".")
	default:
		lines = append(lines, fmt.Sprintf("%d of %d voters answer, and %d are enough to elect a leader: an election should "+
			"be under way. If it stays so, the nodes may not reach each other: northstarctl splitbrain --check.",
			len(answering), q.Voters, q.Needed))
	}
	return append(lines, s.explainLastElections()...)
}

// apart reports whether this program cannot reach the members, so that their silence means nothing: the node that
// answered does not answer at its own HTTP address, or it sees enough healthy voters.
func (s situation) apart() bool {
	q := s.cluster.Quorum
	return s.nodes[s.cluster.ObservedBy].err != nil || q.Healthy >= q.Needed
}

func (s situation) explainLostQuorum(answering, silent []string) []string {
	return []string{
		fmt.Sprintf("The quorum is LOST: %d of %d voters answer (%s), and %d are needed to elect a leader or to write.",
			len(answering), s.cluster.Quorum.Voters, orDash(strings.Join(answering, ", ")), s.cluster.Quorum.Needed),
		fmt.Sprintf("These do not answer: %s.", strings.Join(silent, "; ")),
		"Start them again: nothing is lost then. Only if their data is lost permanently: northstarctl recover --survivors " +
			strings.Join(answering, ",") + " --confirm " + orDash(s.cluster.ClusterID) +
			" --dry-run. What the survivors never received is lost by that.",
	}
}

// explainPause returns who paused automatic failover, as far as that is known.
func (s situation) explainPause() string {
	line := "Automatic failover is paused"
	if s.pause.Operator != "" {
		line += fmt.Sprintf(" by %s (%s)", s.pause.Operator, orDash(s.pause.Reason))
	}
	if s.pause.PausedUntil != nil {
		line += ", until " + formatTime(s.pause.PausedUntil)
	}
	return line + ": no node starts an election by itself."
}

// explainLastElections describes the last leader's election, and the newest attempt after it.
func (s situation) explainLastElections() []string {
	h := s.history
	i := slices.IndexFunc(h.elections, apiv1.Election.Won)
	lines, since, last, lost := []string{"No won election is recorded."}, "", apiv1.Election{}, h.elections
	if i >= 0 {
		since, last, lost = " since then", h.elections[i], h.elections[:i]
		lines[0] = fmt.Sprintf("The last leader was node %s, elected in term %d at %s.", last.CandidateID, last.Term,
			formatTime(&last.StartedAt))
	}
	newest, found := h.openAfter(last.Term)
	switch {
	case found && (len(lost) == 0 || newest.StartedAt.After(lost[0].StartedAt)):
		lines = append(lines, "The newest attempt"+since+":")
	case len(lost) > 0:
		newest = lost[0]
		lines = append(lines, fmt.Sprintf("%d attempts%s were lost. The newest:", len(lost), since))
	case i >= 0:
		return append(lines, "No later attempt is recorded.")
	default:
		return lines
	}
	return append(lines, explainElection(newest, last.CandidateID, nil)...)
}

// quorumText returns in words how many voters are healthy, and how many more may fail, as the answering node sees it.
func quorumText(cl apiv1.Cluster) string {
	q := cl.Quorum
	text := fmt.Sprintf("%d of %d voters healthy", q.Healthy, q.Voters)
	switch {
	case q.Healthy < q.Needed && cl.LeaderID != "":
		return quorumOfLeader(cl, text)
	case q.Healthy < q.Needed:
		return fmt.Sprintf("LOST: %s, %d needed; no leader can be elected, and no write is possible", text, q.Needed)
	case q.Tolerates == 0 && q.Healthy < q.Voters:
		return fmt.Sprintf("at risk: %s, %d needed: none may fail", text, q.Needed)
	case q.Tolerates == 0:
		return fmt.Sprintf("ok: %s, none may fail", text)
	}
	return fmt.Sprintf("ok: %s, %d may fail", text, q.Tolerates)
}

// quorumOfLeader explains a leader without a healthy majority. A voter whose disk takes no writes still answers the
// leader, so the leader stays. Without such a voter, the leader has either just come or is about to go. A leader that
// has just come may soon hear from a majority that can write.
func quorumOfLeader(cl apiv1.Cluster, healthy string) string {
	var unhealthy []string
	blocked, able := false, cl.Quorum.Healthy
	for _, m := range cl.Members {
		if m.Suffrage == "voter" && !m.Healthy {
			why := strings.Join(m.Reasons, ", ") // silence is said first
			blocked = blocked || strings.HasPrefix(why, "disk is ")
			if strings.HasPrefix(why, "not heard from since") {
				able++
			}
			unhealthy = append(unhealthy, fmt.Sprintf("%s (%s)", m.ID, why))
		}
	}
	if blocked && able < cl.Quorum.Needed {
		return fmt.Sprintf("NO WRITES: %s, %d needed; nothing can be written: %s", healthy, cl.Quorum.Needed,
			strings.Join(unhealthy, ", "))
	}
	return fmt.Sprintf("unclear: %s so far, %d needed; %s has just been elected, or is about to step down", healthy,
		cl.Quorum.Needed, cl.LeaderID)
}
