package raftnode

import (
	"io"

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
//
// A candidate that began with a TimeoutNow remains one in the library when it acknowledges its term's leader. It is a
// follower for all others. When it then asks for votes again, the library still names the leader of the term before.
func (i *Instance) SoftState() SoftState {
	for {
		term, state := i.Raft.CurrentTerm(), i.Raft.State()
		addr, id := i.Raft.LeaderWithID()
		if i.Raft.CurrentTerm() != term || i.Raft.State() != state {
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
			if !follows(id, i.leaderTerm.Load(), term) {
				s.Role, s.Leader, s.Addr = cluster.Candidate, "", ""
			}
		}
		return s
	}
}

// follows reports whether a candidate of term has acknowledged the leader of that term. learned is the term in which it
// learned of leader.
func follows(leader raft.ServerID, learned, term uint64) bool { return leader != "" && learned == term }

// Changed receives a value when role, term or leader may have changed.
func (i *Instance) Changed() <-chan struct{} { return i.changed }

// Leads reports whether this node leads term now.
func (i *Instance) Leads(term uint64) bool {
	// raft.Raft leaves the leader state before it raises the term.
	return i.Raft.CurrentTerm() == term && i.Raft.State() == raft.Leader && i.steppedDownTerm.Load() != term
}

// StepDown ends this node's leadership of term. raft.Raft does not know of it and has to be replaced. It reports false
// if this node does not lead term, or has stepped down before.
func (i *Instance) StepDown(term uint64) bool {
	if !i.Leads(term) || !i.steppedDownTerm.CompareAndSwap(0, term) {
		return false
	}
	Notify(i.changed)
	return true
}

// StepDownNow ends this node's leadership of the current term, if it leads it.
func (i *Instance) StepDownNow() { i.steppedDownTerm.Store(i.Raft.CurrentTerm()) }

// SteppedDown reports whether StepDown or StepDownNow was called.
func (i *Instance) SteppedDown() bool { return i.steppedDownTerm.Load() != 0 }

// Notify sends to a channel of capacity 1 unless it is full.
func Notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Leader returns the leader that raft.Raft knows, "" for none.
func (i *Instance) Leader() cluster.NodeID {
	_, id := i.Raft.LeaderWithID()
	return cluster.NodeID(id)
}

// Candidate reports whether raft.Raft is a candidate. After a TimeoutNow it remains one until its timer fires, even
// when it acknowledges its term's leader.
func (i *Instance) Candidate() bool { return i.Raft.State() == raft.Candidate }

// Servers returns the latest configuration. It does not ask the main loop.
func (i *Instance) Servers() []cluster.Server {
	return Servers(i.Raft.GetConfiguration().Configuration())
}

// Servers converts a configuration of the library.
func Servers(conf raft.Configuration) []cluster.Server {
	servers := make([]cluster.Server, len(conf.Servers))
	for i, s := range conf.Servers {
		servers[i] = cluster.Server{ID: cluster.NodeID(s.ID), Address: string(s.Address), Suffrage: cluster.NonVoter}
		if s.Suffrage == raft.Voter {
			servers[i].Suffrage = cluster.Voter
		}
	}
	return servers
}

// Restore replaces the cluster's state by a snapshot of size bytes, in term. It is not bound by time: with the
// library's timeout a long restore would return an error as if nothing had been done.
func (i *Instance) Restore(term uint64, size int64, snapshot io.Reader) error {
	meta := &raft.SnapshotMeta{Version: 1, Index: i.Raft.LastIndex(), Term: term, Size: size}
	return i.Raft.Restore(meta, snapshot, 0)
}
