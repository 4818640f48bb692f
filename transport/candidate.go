package transport

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// RequestVote requests a vote from a node that exchanges votes with this one. The request carries the
// LeadershipTransfer flag only if the leader or an operator allowed it recently. Otherwise each voter decides by its
// own evidence.
func (r *Raft) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	r.ballots.cast(args.Term, r.t.cfg.Membership.LocalPeer().NodeID, time.Now())
	// The library's own flag can outlive its election.
	if args.LeadershipTransfer && !r.within(&r.transferFlagAllowedAt, time.Now(), r.t.cfg.TimeoutMax) {
		bare := *args // all goroutines of the library share args
		bare.LeadershipTransfer = false
		args = &bare
	}
	term := args.Term
	m := r.message(id, "vote", term, 0)
	err := r.sendVoteRequest(m, target,
		func(out *libTransport) error { return out.RequestVote(id, target, args, resp) })
	why := popReason(&resp.RPCHeader)
	r.reportVote(cluster.VoteResponse{Term: term, Voter: m.To, Granted: resp.Granted, Reason: why}, err)
	return err
}

// RequestPreVote asks a node whether it would grant a vote.
func (r *Raft) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	now := time.Now()
	if !r.t.cfg.Elections.MayStartElection() || r.boundByProxyAck(now, r.t.cfg.Membership.LocalPeer().NodeID,
		args.Term) || r.t.cfg.Lease && r.t.lastLeaderContact().MayHoldLease(now, r.t.cfg.TimeoutMin) {
		return r.fail(now, errElectionNotAllowed)
	}
	term := args.Term
	m := r.message(id, "prevote", term, 0)
	err := r.sendVoteRequest(m, target,
		func(out *libTransport) error { return out.RequestPreVote(id, target, args, resp) })
	if err != nil && strings.Contains(err.Error(), "unexpected command") {
		err = errors.New("pre-vote failed at the peer") // the library counts the original text as a grant
	}
	why := popReason(&resp.RPCHeader)
	r.reportVote(cluster.VoteResponse{Term: term, Voter: m.To, Pre: true, Granted: resp.Granted, Reason: why}, err)
	return err
}

func (r *Raft) reportVote(a cluster.VoteResponse, err error) {
	switch {
	case err != nil:
		a.Granted, a.Reason = false, noAnswer(err)
	case a.Granted:
		a.Reason = ""
	case a.Reason == "":
		a.Reason = "refused"
	}
	r.t.cfg.Elections.VoteReceived(a)
}

// noAnswer returns in a few words why a voter did not respond.
func noAnswer(err error) string {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		return refused.Error()
	case errors.Is(err, errNoVotes):
		return err.Error()
	case unreachable(err):
		return "not reached"
	}
	return "no answer: " + cutReason(err.Error())
}

// sendVoteRequest makes a vote RPC, again if a pooled connection was dead: a lost vote costs an election timeout.
func (r *Raft) sendVoteRequest(m Message, target raft.ServerAddress, do func(*libTransport) error) error {
	start := time.Now()
	r.t.monitors.FastPoll()
	p, err := r.peer(m.To)
	if err != nil {
		return r.fail(start, err)
	}
	a, err := p.ensureHello(string(target))
	if err != nil {
		return r.fail(start, err)
	}
	if !a.Votes {
		return r.fail(start, fmt.Errorf("%w with node %s: %s", errNoVotes, m.To, noVotesReason(a)))
	}
	err = r.call(m, start, do)
	if connectionDied(err) {
		p.forget()
		err = r.call(m, start, do)
	}
	return err
}

// busyPollInterval is how often a pending TimeoutNow checks, while raft is busy, whether the election is still due.
const busyPollInterval = time.Millisecond

// StartElection starts an election now, without pre-vote: it puts a TimeoutNow into this node's own queue. It fails if
// the node leads, may not start elections, has left term, or if raft does not accept the message before ctx ends.
//
// Elections.MayStartElection counts only for CauseLeaderFailed, RaftNode.ElectionBlocked always. With CauseOperator
// the vote requests carry the LeadershipTransfer flag; otherwise a voter that knows a leader decides by its own
// evidence. It returns the term of the election, which is the next one, or the one after that if a candidacy had to be
// ended.
func (r *Raft) StartElection(ctx context.Context, term uint64, by cluster.ElectionCause) (uint64, error) {
	local := r.node()
	if local == nil {
		return 0, errNotReady
	}
	if local.ElectionBlocked() {
		return 0, fmt.Errorf("%w: %w", errElectionNotAllowed, errElectionBlocked)
	}
	if by == cluster.CauseLeaderFailed && !r.t.cfg.Elections.MayStartElection() {
		return 0, errElectionNotAllowed
	}
	inject := func(term uint64, command any) error { return r.injectLocal(ctx, local, term, by, command) }
	if local.Candidate() && local.Leader() == "" {
		if err := inject(term, r.endCandidacyAppend(term)); err != nil {
			return 0, err
		}
	}
	if local.Candidate() {
		if err := inject(term, r.endCandidacyAppend(term+1)); err != nil {
			return 0, err
		}
		term++
		r.t.cfg.Elections.TermRaised(term)
	}
	return term + 1, inject(term, &raft.TimeoutNowRequest{RPCHeader: r.header()})
}

// endCandidacyAppend returns an append that ends a candidacy without any other effect. A candidate ignores TimeoutNow:
// it goes on waiting for votes until its timer fires. It steps back at an append, before it finds that the previous
// entry is missing.
//
// A candidate that waits for pre-votes, or began with them, steps back at an append of its own term. A node becomes one
// by its own timer, while its voters still know the leader. While failover is paused, a node without a leader remains
// one. A candidacy that began with a TimeoutNow ends only in a higher term, even if it has lost: in the next one, which
// has no election then.
func (r *Raft) endCandidacyAppend(term uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term,
		PrevLogEntry: math.MaxUint64, PrevLogTerm: math.MaxUint64,
	}
}

// injectLocal puts a message of this node into its own queue and waits for the answer. It gives up if this node leaves
// the term or leads before raft accepts the message.
func (r *Raft) injectLocal(ctx context.Context, local RaftNode, term uint64, by cluster.ElectionCause,
	command any,
) error {
	// What raft handles now may end the reason: a later TimeoutNow would depose a leader elected meanwhile.
	due := func() error {
		if now := local.CurrentTerm(); now != term {
			return fmt.Errorf("election not started: term is %d, expected %d", now, term)
		}
		if local.Leader() == r.t.cfg.Membership.LocalPeer().NodeID {
			return errors.New("election not started: this node leads")
		}
		return nil
	}
	look := time.NewTicker(busyPollInterval)
	defer look.Stop()
	for {
		reply, err := r.offerElection(command, by == cluster.CauseOperator, due, look.C)
		switch {
		case err != nil:
			return err
		case reply != nil:
			return waitAnswer(ctx, r.closed, reply)
		case r.ctx.Err() != nil:
			return errClosed
		case ctx.Err() != nil:
			return fmt.Errorf("election not started: raft is busy: %w", ctx.Err())
		}
	}
}

// offerElection offers raft a message that makes it start an election, until giveUp. It returns the channel with raft's
// answer, nil if raft did not take the message, or the error of due.
//
// Only the election of an ordered message may have the LeadershipTransfer flag. Its permission ends with an offer that
// raft did not take: the leader that sent the message keeps its lease. One message is offered at a time, until raft
// has answered it, so that no message uses the permission of another.
func (r *Raft) offerElection(command any, ordered bool, due func() error, giveUp <-chan time.Time,
) (<-chan raft.RPCResponse, error) {
	select {
	case r.offering <- struct{}{}:
		defer func() { <-r.offering }()
	case <-giveUp:
		return nil, nil
	case <-r.closed:
		return nil, nil
	}
	if err := due(); err != nil {
		return nil, err
	}
	r.transferFlagAllowedAt.Store(nil)
	if ordered {
		r.mark(&r.transferFlagAllowedAt, time.Now())
	}
	reply := make(chan raft.RPCResponse, 1)
	select {
	case r.consumer <- raft.RPC{Command: command, RespChan: reply}:
	case <-giveUp:
		r.transferFlagAllowedAt.Store(nil)
		return nil, nil
	case <-r.closed:
		return nil, nil
	}
	select {
	case answer := <-reply:
		reply <- answer
	case <-r.closed:
	}
	return reply, nil
}

// waitAnswer waits for raft's answer to a message of this node.
func waitAnswer(ctx context.Context, closed <-chan struct{}, reply <-chan raft.RPCResponse) error {
	select {
	case answer := <-reply:
		return answer.Error
	case <-closed:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
