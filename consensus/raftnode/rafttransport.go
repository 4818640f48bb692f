package raftnode

import (
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Transport carries Raft's messages. RequestPreVote must be there: without it raft.Raft silently does without pre-vote.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// raftTransport withholds responses (asyncwrite.go), and sends TimeoutNow only for a transfer that is still wanted.
type raftTransport struct {
	Transport
	store    *raftStore
	transfer atomic.Pointer[TransferAttempt]
}

var _ Transport = (*raftTransport)(nil)

// AppendEntries sends entries. A success means that they are durable here, too: raft.Raft counts a real majority.
func (t *raftTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	last := args.PrevLogEntry + uint64(len(args.Entries))
	if err := t.Transport.AppendEntries(id, target, args, resp); err != nil || !resp.Success {
		return err
	}
	return t.store.waitAppended(last)
}

// RequestVote asks for a vote. It returns the response only when this node's own vote is durable: then the majority
// that raft.Raft counts is a real one. The response may come before raft.Raft votes for this node: the term is durable
// then, and that vote is written before it counts.
func (t *raftTransport) RequestVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	if err := t.Transport.RequestVote(id, target, args, resp); err != nil {
		return err
	}
	return t.store.flushBeforeReply()
}

// TimeoutNow sends TimeoutNow to the target of a transfer that is not revoked.
func (t *raftTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	attempt := t.transfer.Load()
	if attempt == nil || attempt.Target != cluster.NodeID(id) || !attempt.allowTimeoutNow() {
		return errors.New("transfer cancelled")
	}
	err := t.Transport.TimeoutNow(id, target, args, resp)
	attempt.finishTimeoutNow(err)
	return err
}
