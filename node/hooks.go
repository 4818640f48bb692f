package node

import (
	"fmt"
	"strings"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/telemetry"
	"northstar/transfer"
)

// hooks turn the callbacks of consensus into metrics and events.
func (n *Node) hooks() consensus.Hooks {
	return consensus.Hooks{
		Proposal: n.countProposal,
		Applied:  n.metrics.Apply,
		Leader:   func(id cluster.NodeID, term uint64) { recordLeader(n.eventLog, id, term) },
		Election: n.election,
		Snapshot: func(restored bool) {
			what := "a snapshot was written"
			if restored {
				what = "snapshot installed"
			}
			n.eventLog.Append(cluster.Event{Type: "node", Message: what})
		},
		Recovered: func(r consensus.Recovered) { n.eventLog.Warn(recoveredEvent(n.cfg.ID, r)) },
		SetAside:  n.requestRestart,
		CaughtUp:  func(t consensus.StartTimes) { n.eventLog.Append(n.readyEvent(t)) },
		Unaudited: func() { n.metrics.Audit("lost", 1) },
	}
}

// readyEvent is the event of a node that has caught up, with the duration of the steps up to each point of its start.
func (n *Node) readyEvent(t consensus.StartTimes) cluster.Event {
	steps := map[string]any{"started_at": n.builtAt.UTC()}
	for name, at := range map[string]time.Time{
		"storage_us": n.storageAt, "raft_us": t.Raft, "leader_us": t.Leader, "commit_us": t.Commit,
		"applied_us": t.Applied,
	} {
		steps[name] = at.Sub(n.builtAt).Microseconds()
	}
	return cluster.Event{
		Type: "node",
		Message: fmt.Sprintf("this node has caught up, %v after its start (%d entries)",
			t.Applied.Sub(n.builtAt).Round(time.Millisecond), t.Entries),
		Fields: map[string]any{"steps": steps, "entries": t.Entries},
	}
}

// recordLeader records, and so logs, a change of the leader. The loss of a leader is a warning.
func recordLeader(eventLog *telemetry.EventLog, id cluster.NodeID, term uint64) {
	if id == "" {
		eventLog.Warn(cluster.Event{Type: "election", Term: term, Message: "no leader known"})
		return
	}
	eventLog.Append(cluster.Event{
		Type: "election", Term: term, Message: fmt.Sprintf("node %s leads in term %d", id, term),
		Fields: map[string]any{"leader_id": string(id)},
	})
}

// recoveredEvent reports that the cluster continues from this node's data alone.
func recoveredEvent(self cluster.NodeID, r consensus.Recovered) cluster.Event {
	before := make([]string, len(r.Voters))
	for i, id := range r.Voters {
		before[i] = string(id)
	}
	return cluster.Event{
		Type: "failover",
		Message: fmt.Sprintf(
			"cluster recovered from a lost quorum: node %s is the only voter of generation %d; voters before: %s", self,
			r.Generation.Number, strings.Join(append(before, string(self)), ", ")),
		Fields: map[string]any{
			"recovered_id": string(self), "generation": r.Generation.Number, "recovery_id": r.Generation.RecoveryID,
			"voters_before": before, "operator": r.Operator, "reason": r.Reason, "severity": "critical",
		},
	}
}

// electionEvent reports the end of a candidacy, or one that has not won while no leader is known.
func electionEvent(e consensus.Election, result string, steps map[string]any) cluster.Event {
	ev := cluster.Event{
		Type: "election", Term: e.Term, Fields: electionFields(e),
		Message: fmt.Sprintf("node %s %s the election of term %d (%s)", e.Candidate, result, e.Term, e.Trigger),
	}
	if e.Open {
		ev.Message = fmt.Sprintf("node %s has been a candidate for %v and no leader is elected", e.Candidate,
			e.Duration.Round(time.Millisecond))
	}
	ev.Fields["result"] = result
	if steps != nil {
		ev.Fields["steps"] = steps
	}
	return ev
}

func electionFields(e consensus.Election) map[string]any {
	fields := map[string]any{
		"trigger": e.Trigger, "candidate_id": string(e.Candidate),
		"duration_ms": e.Duration.Milliseconds(), "leaderless_ms": e.Leaderless.Milliseconds(),
	}
	if !e.StartedAt.IsZero() { // the candidacy can be too short to be sampled
		fields["started_at"] = e.StartedAt.UTC()
	}
	if e.Reason != "" {
		fields["reason"] = e.Reason
	}
	if e.Operator != "" {
		fields["operator"] = e.Operator
	}
	if len(e.Votes) > 0 {
		fields["votes"] = e.Votes
	}
	return fields
}

// onTransfer counts and records a planned transfer that this node started.
func (n *Node) onTransfer(r transfer.Result) {
	result, message := telemetry.ResultOK, fmt.Sprintf("leadership moved from node %s to node %s", r.OldLeader,
		r.NewLeader)
	e := cluster.Event{Type: "transfer", Term: r.Term, Fields: map[string]any{
		"old_leader_id": string(r.OldLeader), "target_leader_id": string(r.Target),
		"new_leader_id": string(r.NewLeader), "duration_ms": r.Duration.Milliseconds(),
	}}
	if r.Err != nil {
		result, message = telemetry.ResultFailed, fmt.Sprintf("leadership transfer from node %s to node %s failed: %v",
			r.OldLeader, r.Target, r.Err)
	}
	n.metrics.Transfer(result, r.Duration)
	e.Message = message
	e.Fields["result"] = result
	n.eventLog.Append(e)
}
