package raftnode

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Transport carries Raft's messages. RequestPreVote must be there: without it raft.Raft silently does without pre-vote.
type Transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// errDeposed is why a message of replication is not sent. raft.Raft ends its replication only once it has dealt with
// the message that deposed it: it writes the new term to disk first.
var errDeposed = errors.New("this node does not lead that term any longer")

// deposedPause is how long the refusal of a deposed leader's message takes.
const deposedPause = 10 * time.Millisecond

// commitPollInterval is how often an append looks whether the entry that it waits for is committed.
const commitPollInterval = time.Millisecond

// raftTransport withholds responses (asyncwrite.go). It sends entries and snapshots only while raft.Raft leads, a
// demotion last to the demoted node, and TimeoutNow only for a transfer that is still wanted.
type raftTransport struct {
	Transport
	store    *raftStore
	running  *atomic.Pointer[raft.Raft]
	transfer atomic.Pointer[TransferAttempt]
}

var _ Transport = (*raftTransport)(nil)

// checkLeads fails unless raft.Raft leads term, which it has led. It pauses first: a raft.Raft that is shut down during
// a transfer sends again without a pause, until its main loop ends (leadershipTransfer and replicate in the library).
func (t *raftTransport) checkLeads(term uint64) error {
	r := t.running.Load()
	if r != nil && r.State() == raft.Leader && r.CurrentTerm() == term { // in this order: the term only grows
		return nil
	}
	time.Sleep(deposedPause)
	return errDeposed
}

// demotion returns the index of the last entry of args with a configuration in which id is no voter, 0 if there is none
// that may lack its commit. An earlier leader's is committed if id is a voter in the latest configuration: a leader
// appends a configuration only once the previous one is committed, and a recovered node commits all before it does.
func (t *raftTransport) demotion(id raft.ServerID, args *raft.AppendEntriesRequest) uint64 {
	for _, e := range slices.Backward(args.Entries) {
		if e.Type != raft.LogConfiguration || isVoter(raft.DecodeConfiguration(e.Data), id) {
			continue
		}
		if e.Term == args.Term || !isVoter(t.running.Load().GetConfiguration().Configuration(), id) {
			return e.Index
		}
	}
	return 0
}

func isVoter(c raft.Configuration, id raft.ServerID) bool {
	s, _ := cluster.FindServer(Servers(c), cluster.NodeID(id))
	return s.Suffrage == cluster.Voter
}

// waitCommitted waits until index is committed, and fails once raft.Raft no longer leads term.
//
// A node gets a configuration in which it has no vote only after that. Before, the other voters may still need its
// vote to elect a leader: it would refuse them for its longer log, and may not start an election itself.
func (t *raftTransport) waitCommitted(index, term uint64) error {
	for index > t.running.Load().CommitIndex() {
		time.Sleep(commitPollInterval)
		if err := t.checkLeads(term); err != nil {
			return err
		}
	}
	return nil
}

// AppendEntries sends entries. A success means that they are durable here, too: raft.Raft counts a real majority. What
// was read once raft.Raft was deposed is not sent: then the log may show what precedes a restore (snapshotLog).
func (t *raftTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if err := t.checkLeads(args.Term); err != nil {
		return err
	}
	if err := t.waitCommitted(t.demotion(id, args), args.Term); err != nil {
		return err
	}
	if err := t.checkLeads(args.Term); err != nil { // what demotion and waitCommitted read is of this leadership
		return err
	}
	last := args.PrevLogEntry + uint64(len(args.Entries))
	if err := t.Transport.AppendEntries(id, target, args, resp); err != nil || !resp.Success {
		return err
	}
	return t.store.waitAppended(last)
}

// InstallSnapshot sends the newest snapshot. Once raft.Raft was deposed that may be one that the next leader has sent.
func (t *raftTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	if err := t.checkLeads(args.Term); err != nil {
		return err
	}
	return t.Transport.InstallSnapshot(id, target, args, resp, data)
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
