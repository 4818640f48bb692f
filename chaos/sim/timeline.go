package sim

import (
	"slices"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
	"northstar/cluster"
)

// timeline collects what a report of a run shows: faults, leaderships,
// acknowledgements. It may be added to from any goroutine.
type timeline struct {
	start time.Time

	mu          sync.Mutex
	faults      []report.Fault
	downtimes   []check.FaultInterval // of these, those that kept a node, or all, from taking part
	leaderships []report.Leadership
	byTerm      map[uint64]int // place in leaderships, by term
	acks        []time.Duration
}

// fault records a fault that begins now. What hits more than one node is in no node's lane.
func (t *timeline) fault(f Fault) {
	node := nodeName(f.A)
	switch f.Kind {
	case KillAll, Split, Loss, LossReply, Delay, LateReply, Repeat, Lie, PauseAuto, Recover:
		node = ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	t.faults = append(t.faults, report.Fault{Node: node, What: f.String(), From: now, To: now + f.For})
	if f.Kind == KillAll || slices.Contains(singleNodeFaults, f.Kind) {
		t.downtimes = append(t.downtimes, check.FaultInterval{Node: node, From: now, To: now + f.For})
	}
}

// leads records a message of a leader.
func (t *timeline) leads(id cluster.NodeID, term uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	i, known := t.byTerm[term]
	if !known || t.leaderships[i].Node != string(id) {
		i = len(t.leaderships)
		t.byTerm[term] = i
		t.leaderships = append(t.leaderships, report.Leadership{Node: string(id), Term: term, From: now})
	}
	t.leaderships[i].To = now
}

func (t *timeline) acked() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acks = append(t.acks, time.Since(t.start))
}
