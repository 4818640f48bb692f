package raftnode

import (
	"fmt"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// SendCommitIndex sends one follower the commit index of the leader of term, which may be this node. raft.Raft itself
// tells followers with the next entries only, or after commitTimeout. What the follower answers matters only to the
// acknowledgements of the transport, since raft.Raft has not sent it.
func (i *Instance) SendCommitIndex(to cluster.NodeID, term uint64) error {
	at, ok := cluster.FindServer(i.Servers(), to)
	if !ok {
		return fmt.Errorf("node %s is not in the configuration", to)
	}
	request, err := i.CommitMessage(term)
	if err != nil {
		return err
	}
	var response raft.AppendEntriesResponse
	return i.trans.AppendEntries(raft.ServerID(to), raft.ServerAddress(at.Address), request, &response)
}

// CommitMessage returns an append with the commit index of the leader of term, which is this node.
//
// The message is one that raft.Raft could send: an append without entries behind the entry at the commit index. The
// follower applies its log up to there if it has that entry.
func (i *Instance) CommitMessage(term uint64) (*raft.AppendEntriesRequest, error) {
	commit := i.Raft.CommitIndex()
	var last raft.Log
	if err := i.store.GetLog(commit, &last); err != nil {
		return nil, fmt.Errorf("entry %d: %w", commit, err)
	}
	if !i.Leads(term) { // the commit index may be of another leader's term
		return nil, fmt.Errorf("this node does not lead term %d", term)
	}
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(i.cfg.Self),
			Addr: i.trans.EncodePeer(raft.ServerID(i.cfg.Self), i.trans.LocalAddr()),
		},
		Term: term, PrevLogEntry: commit, PrevLogTerm: last.Term, LeaderCommitIndex: commit,
	}, nil
}
