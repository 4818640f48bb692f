package state

import (
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Election is the record of a won election.
type Election struct {
	Term      uint64
	Node      cluster.NodeID
	Trigger   string
	Reason    string
	StartedAt int64  // Unix nanoseconds; 0: unknown
	LedAt     int64  // the state's time at the leader-start entry: an earlier leader's, if its clock was ahead
	Votes     []byte // opaque here
	Operator  string // "": no operator requested it
	// LeaderlessAt is when the winner last heard the previous leader, or lost it. Unix nanoseconds; 0: unknown.
	LeaderlessAt int64
}

// check ignores the texts for human readers: a long reason must not keep a leader from starting. apply truncates them.
func (p *LeaderStart) check() *cluster.Error { return checkNode("node", p.Node) }

// truncate returns the first maxText bytes of a text.
func truncate(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "") }

// apply records a won election. It rejects a record of another term: the same node proposed it in an earlier
// leadership, and it must not pass for the beginning of this one.
func (p *LeaderStart) apply(w *txn) Result {
	if p.Term != w.term {
		return failed(cluster.CodeTermStale, "leader-start of term %d in term %d", p.Term, w.term)
	}
	e := Election{
		Term: p.Term, Node: p.Node, Trigger: truncate(p.Trigger), Reason: truncate(p.Reason),
		StartedAt: p.StartedAt, LedAt: w.now, Operator: truncate(p.Operator), LeaderlessAt: p.LeaderlessAt,
	}
	if len(p.Votes) <= maxVotes {
		e.Votes = p.Votes
	}
	kept := w.elections[max(0, len(w.elections)+1-MaxElections):]
	w.elections = append(slices.Clone(kept), e) // older Views share the list
	return Result{}
}

// Gaps returns how long the cluster had no leader before each recorded election with one of the triggers, shortest
// first. It skips elections for which that is unknown.
func (v *View) Gaps(triggers ...string) []time.Duration {
	var gaps []time.Duration
	for _, e := range v.elections {
		if gap := e.LedAt - e.LeaderlessAt; e.LeaderlessAt != 0 && gap >= 0 && slices.Contains(triggers, e.Trigger) {
			gaps = append(gaps, time.Duration(gap))
		}
	}
	slices.Sort(gaps)
	return gaps
}
