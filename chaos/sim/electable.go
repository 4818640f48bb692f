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

// survivors gives the nodes that run now, and whether one of them leads.
func (w *World) survivors() (all []survivor, led bool) {
	hushed := w.rpc.hushed()
	for _, m := range w.members {
		if _, node := m.current(); node != nil {
			term, index := m.disk.Last()
			all = append(all, survivor{term, index, slices.Contains(hushed, m.id)})
			led = led || node.Status().Role == cluster.Leader
		}
	}
	return all, led
}

// wanting says whether somebody could be elected, if only those that are hushed could
// ask for votes.
func wanting(voters int, all []survivor) bool {
	heard := slices.Clone(all)
	for i := range heard {
		heard[i].hushed = false
	}
	return !electable(voters, all) && electable(voters, heard)
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
// leads, and nobody can be elected for want of a node that cannot ask: it alone has the
// newest log, and no majority is to be had without it. It does so until the function
// that it gives is called.
func (cs *clients) excuseGaps() (stop func()) {
	if !slices.ContainsFunc(cs.w.cfg.Plan, func(f Fault) bool { return f.Kind == Hush }) {
		return func() {}
	}
	const each = 10 * time.Millisecond
	return cs.w.every(each, func() {
		if all, led := cs.w.survivors(); led || !wanting(cs.w.cfg.Nodes, all) {
			return
		}
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if !cs.lastAck.IsZero() && time.Since(cs.lastAck) > each {
			cs.lastAck = cs.lastAck.Add(each)
		}
	})
}
