package raftnode

import (
	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// SoftState is role, term and leader, as this node sees them at one moment.
type SoftState struct {
	Role   cluster.Role
	Term   uint64
	Leader cluster.NodeID // "": none is known
	Addr   string         // Raft address of Leader
}

// SoftState samples raft.Raft until role, term and leader belong together, as far as the library allows that.
func (i *Instance) SoftState() SoftState {
	for {
		term, state := i.raft.CurrentTerm(), i.raft.State()
		addr, id := i.raft.LeaderWithID()
		if i.raft.CurrentTerm() != term || i.raft.State() != state {
			continue
		}
		s := SoftState{Role: cluster.Follower, Term: term, Leader: cluster.NodeID(id), Addr: string(addr)}
		switch state {
		case raft.Leader:
			if i.steppedDownTerm.Load() == term {
				s.Leader, s.Addr = "", ""
				break
			}
			s.Role, s.Leader = cluster.Leader, i.cfg.Self
		case raft.Candidate:
			s.Role = cluster.Candidate
		}
		return s
	}
}

// Changed receives a value when role, term or leader may have changed.
func (i *Instance) Changed() <-chan struct{} { return i.changed }

// Leads reports whether this node leads term now.
func (i *Instance) Leads(term uint64) bool {
	// raft.Raft leaves the leader state before it raises the term.
	return i.raft.CurrentTerm() == term && i.raft.State() == raft.Leader && i.steppedDownTerm.Load() != term
}

// StepDown ends this node's leadership of term. raft.Raft does not know of it and has to be replaced. It reports false
// if this node does not lead term, or has stepped down before.
func (i *Instance) StepDown(term uint64) bool {
	if !i.Leads(term) || !i.steppedDownTerm.CompareAndSwap(0, term) {
		return false
	}
	notify(i.changed)
	return true
}

// StepDownNow ends this node's leadership of the current term, if it leads it.
func (i *Instance) StepDownNow() { i.steppedDownTerm.Store(i.raft.CurrentTerm()) }

// SteppedDown reports whether StepDown or StepDownNow was called.
func (i *Instance) SteppedDown() bool { return i.steppedDownTerm.Load() != 0 }

// notify sends to a channel of capacity 1 unless it is full.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
