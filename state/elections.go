package state

import (
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Election is the record of one election that gave a leader.
type Election struct {
	Term      uint64
	Node      cluster.NodeID
	Trigger   string
	Reason    string
	StartedAt int64  // Unix nanoseconds; 0: not known
	LedAt     int64  // when the leader proposed its leader-start, Unix nanoseconds
	Votes     []byte // opaque here
	Operator  string // "": nobody ordered it
	// LeaderlessAt is when the winner last heard the leader before it, or began to
	// know none, Unix nanoseconds; 0: not known.
	LeaderlessAt int64
}

// check does not look at what is only for people: a leader must not fail to
// start because somebody gave a long reason. Apply cuts that short.
func (p *LeaderStart) check() *cluster.Error { return checkNode("node", p.Node) }

// clip cuts text to what is kept of it.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "") }

// apply begins a reign. An entry of another term than the record says was
// proposed in an earlier reign of the same node: it must not pass for the
// beginning of this one.
func (p *LeaderStart) apply(w *txn) Result {
	if p.Term != w.term {
		return Result{Err: cluster.Errorf(cluster.CodeTermStale, "leader-start of term %d in term %d", p.Term, w.term)}
	}
	e := Election{
		Term: p.Term, Node: p.Node, Trigger: clip(p.Trigger), Reason: clip(p.Reason),
		StartedAt: p.StartedAt, LedAt: w.now, Operator: clip(p.Operator), LeaderlessAt: p.LeaderlessAt,
	}
	if len(p.Votes) <= maxVotes {
		e.Votes = p.Votes
	}
	// Copied, because older Views share it.
	kept := w.elections[max(0, len(w.elections)+1-MaxElections):]
	w.elections = append(slices.Clone(kept), e)
	return Result{}
}

// Gaps gives how long each recorded election of the triggers left the cluster
// without a leader, the shortest first; those of which that is not known are
// left out.
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
