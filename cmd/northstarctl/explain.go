package main

import (
	"fmt"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// step is a phase of a failover: how long after the failure was noticed it was reached.
type step struct {
	after time.Duration
	text  string
}

// explainElection describes one election in full sentences, one paragraph a line. before is the leader until then, ""
// if unknown.
func explainElection(el apiv1.Election, before string, steps []step) []string {
	end := el.StartedAt.Add(time.Duration(el.DurationMS) * time.Millisecond)
	lines := []string{fmt.Sprintf("Term %d: node %s was elected leader at %s.", el.Term, el.CandidateID, formatTime(&end))}
	switch {
	case el.Result == "open":
		lines[0] = fmt.Sprintf("Term %d: node %s had been trying to be elected since %s when it reported this, at %s.",
			el.Term, el.CandidateID, formatTime(&el.StartedAt), formatTime(&end))
	case !el.Won():
		lines[0] = fmt.Sprintf("Term %d: node %s tried to be elected from %s on, and was not.", el.Term,
			el.CandidateID, formatTime(&el.StartedAt))
	}
	lines = append(lines, "Cause: "+cause(el, before))
	if el.Reason != "" {
		lines = append(lines, "Recorded reason: "+strings.TrimSuffix(el.Reason, ".")+".")
	}
	switch el.Needless {
	case "late":
		lines = append(lines, "It was needless: the previous leader lived, and was heard again within the election timeout. "+
			"All nodes tolerate longer silences for a time.")
	case "stopped":
		lines = append(lines, "It was needless in the end: the previous leader's process had only stopped for a while.")
	}
	if el.Operator != "" {
		lines = append(lines, fmt.Sprintf("It was requested by %s.", el.Operator))
	}
	lines = append(lines, votes(el))
	if len(steps) > 0 {
		line := "Steps, from when the failure was noticed:"
		for _, s := range steps {
			line += fmt.Sprintf(" after %s %s;", milliseconds(s.after), s.text)
		}
		lines = append(lines, strings.TrimSuffix(line, ";")+".")
	}
	return append(lines, duration(el))
}

// cause returns why the election began.
func cause(el apiv1.Election, before string) string {
	previous := "the previous leader"
	if before != "" {
		previous = "the previous leader, " + before + ","
	}
	switch el.Trigger {
	case "startup":
		return fmt.Sprintf("node %s had heard no leader since its start.", el.CandidateID)
	case "timeout":
		if before == el.CandidateID {
			return fmt.Sprintf("node %s, which led before, had lost contact with a majority.", before)
		}
		return fmt.Sprintf("node %s had not heard from %s in time.", el.CandidateID, previous)
	case "connection_lost":
		return fmt.Sprintf("%s failed, and the survivors agreed on it without waiting for Raft's timer.", previous)
	case "transfer":
		return fmt.Sprintf("a planned transfer: %s transferred leadership.", previous)
	case "manual":
		return "an operator requested it."
	case "emergency":
		return "an operator asked for an emergency failover, without health checks."
	case "priority":
		return fmt.Sprintf("node %s has a higher priority: %s transferred leadership to it.", el.CandidateID, previous)
	case "disk_stall":
		return fmt.Sprintf("the disk of %s was stalled, so it transferred leadership.", previous)
	}
	return el.Trigger + "."
}

// votes returns what each voter answered.
func votes(el apiv1.Election) string {
	if len(el.Votes) == 0 && !el.Won() {
		return "Votes: it is not recorded that it got so far as to ask for any."
	}
	if len(el.Votes) == 0 {
		return "Votes: none are recorded."
	}
	granted := 0
	var each []string
	for _, v := range el.Votes {
		if v.Granted {
			granted++
		}
		each = append(each, v.VoterID+" "+vote(v))
	}
	if el.Votes[0].Pre {
		return fmt.Sprintf("Pre-votes: asked whether they would vote for it, %d of %d voters agreed, which is not binding: %s. "+
			"No answer to a vote is recorded.", granted, len(el.Votes), strings.Join(each, "; "))
	}
	return fmt.Sprintf("Votes: %d of %d voters granted theirs, %d were needed: %s.", granted, len(el.Votes),
		len(el.Votes)/2+1, strings.Join(each, "; "))
}

// vote returns what one voter answered.
func vote(v apiv1.Vote) string {
	answer := "refused"
	switch {
	case v.Granted:
		answer = "granted"
	case v.Reason == cluster.VotePending:
		return "had not answered"
	case v.Reason == "not reached":
		answer = "did not answer"
	case strings.HasPrefix(v.Reason, "no answer: "):
		answer, v.Reason = "did not answer", strings.TrimPrefix(v.Reason, "no answer: ")
	}
	if v.Reason != "" && v.Reason != answer {
		answer += " (" + v.Reason + ")"
	}
	return answer
}

// duration returns how long the election and the time without a leader took.
func duration(el apiv1.Election) string {
	took := fmt.Sprintf("The election took %d ms.", el.DurationMS)
	switch {
	case el.Result == "open":
		took = fmt.Sprintf("The attempt had lasted %d ms by then.", el.DurationMS)
	case !el.Won():
		took = fmt.Sprintf("The attempt took %d ms.", el.DurationMS)
	}
	switch {
	case el.LeaderlessMS > 0 && el.Result == "open":
		return took + fmt.Sprintf(" Node %s had heard no leader for %d ms.", el.CandidateID, el.LeaderlessMS)
	case el.LeaderlessMS > 0 && el.Won() && el.Trigger == "startup":
		return took + fmt.Sprintf(" Node %s had started %d ms before its end. How long there was no leader before that is "+
			"not known.", el.CandidateID, el.LeaderlessMS)
	case el.LeaderlessMS > 0 && el.Won():
		return took + fmt.Sprintf(" The cluster was without a leader for %d ms in all.", el.LeaderlessMS)
	case el.LeaderlessMS > 0:
		return took + fmt.Sprintf(" At its end node %s had heard no leader for %d ms.", el.CandidateID, el.LeaderlessMS)
	}
	return took + " No time without a leader is recorded."
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
