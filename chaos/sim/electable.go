package sim

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
)

// survivor is a node that runs, with the term and index of its last entry.
type survivor struct {
	term, index uint64
	hushed      bool // its requests for votes do not arrive
}

// electable says whether one of those that run can win, of so many voters: it has to
// be heard by a majority of them, none of which has a newer log than it has.
func electable(voters int, all []survivor) bool {
	return slices.ContainsFunc(all, func(c survivor) bool {
		granted := 0
		for _, v := range all {
			if cmp.Or(cmp.Compare(v.term, c.term), cmp.Compare(v.index, c.index)) <= 0 {
				granted++
			}
		}
		return !c.hushed && granted > voters/2
	})
}

// survivors gives the nodes that run now.
func (w *World) survivors() (all []survivor) {
	hushed := w.rpc.hushed()
	for _, m := range w.members {
		if m.runs() {
			term, index := m.disk.Last()
			all = append(all, survivor{term, index, slices.Contains(hushed, m.id)})
		}
	}
	return all
}

// hushed gives the nodes whose requests for votes are lost now.
func (r *rpcFaults) hushed() (ids []cluster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.active {
		if f.Kind == Hush {
			ids = append(ids, r.w.members[f.A].id)
		}
	}
	return ids
}

// excuseGaps leaves the time out of the gap between acknowledgements in which nobody
// can be elected for want of a node that cannot ask: it alone has the newest log, and
// no majority is to be had without it. It does so until the function that it gives is
// called.
func (cs *clients) excuseGaps() (stop func()) {
	if !slices.ContainsFunc(cs.w.cfg.Plan, func(f Fault) bool { return f.Kind == Hush }) {
		return func() {}
	}
	return cs.w.every(10*time.Millisecond, func() {
		if electable(cs.w.cfg.Nodes, cs.w.survivors()) {
			return
		}
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if cs.measureGap(); !cs.lastAck.IsZero() {
			cs.lastAck = time.Now()
		}
	})
}
