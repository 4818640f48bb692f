package raftnode

import (
	"io"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// CurrentTerm returns the current term.
func (i *Instance) CurrentTerm() uint64 { return i.raft.CurrentTerm() }

// LastIndex returns the last index in log or snapshot.
func (i *Instance) LastIndex() uint64 { return i.raft.LastIndex() }

// CommitIndex returns the commit index that this node knows.
func (i *Instance) CommitIndex() uint64 { return i.raft.CommitIndex() }

// AppliedIndex returns the last index that raft.Raft has handed to the FSM.
func (i *Instance) AppliedIndex() uint64 { return i.raft.AppliedIndex() }

// LastContact returns when the leader was last heard; the zero time: never.
func (i *Instance) LastContact() time.Time { return i.raft.LastContact() }

// Leader returns the leader that raft.Raft knows, "" for none.
func (i *Instance) Leader() cluster.NodeID {
	_, id := i.raft.LeaderWithID()
	return cluster.NodeID(id)
}

// Servers returns the latest configuration. It does not ask the main loop.
func (i *Instance) Servers() []cluster.Server {
	return Servers(i.raft.GetConfiguration().Configuration())
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

// Apply appends one entry. wait covers only the hand-over to the main loop, which a slow disk may hold up: nothing is
// appended when it passes.
func (i *Instance) Apply(data []byte, wait time.Duration) raft.ApplyFuture {
	return i.raft.ApplyLog(raft.Log{Data: data}, wait)
}

// AddVoter adds a voter, promotes a non-voter, or changes a voter's address. It fails when the configuration has
// changed since the entry prev; see Apply for wait.
func (i *Instance) AddVoter(id cluster.NodeID, address string, prev uint64, wait time.Duration) raft.IndexFuture {
	return i.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(address), prev, wait)
}

// AddNonvoter adds a non-voter, or changes its address; see AddVoter.
func (i *Instance) AddNonvoter(id cluster.NodeID, address string, prev uint64, wait time.Duration) raft.IndexFuture {
	return i.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), prev, wait)
}

// DemoteVoter makes a non-voter of a voter; see AddVoter.
func (i *Instance) DemoteVoter(id cluster.NodeID, prev uint64, wait time.Duration) raft.IndexFuture {
	return i.raft.DemoteVoter(raft.ServerID(id), prev, wait)
}

// RemoveServer removes a server; see AddVoter.
func (i *Instance) RemoveServer(id cluster.NodeID, prev uint64, wait time.Duration) raft.IndexFuture {
	return i.raft.RemoveServer(raft.ServerID(id), prev, wait)
}

// Restore replaces the cluster's state by a snapshot of size bytes, in term. It is not bound by time: with the
// library's timeout a long restore would return an error as if nothing had been done.
func (i *Instance) Restore(term uint64, size int64, snapshot io.Reader) error {
	meta := &raft.SnapshotMeta{Version: 1, Index: i.raft.LastIndex(), Term: term, Size: size}
	return i.raft.Restore(meta, snapshot, 0)
}

// Raft returns the library's node, for tests only.
func (i *Instance) Raft() *raft.Raft { return i.raft }
