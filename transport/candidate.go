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

// What this node does as a candidate: it asks for votes, and it can be made to
// stand.

// RequestVote asks for a vote, from nodes that exchange votes with this one. The
// flag that lets voters pass over a leader that they know goes out only with a
// warrant; otherwise each voter goes by evidence of its own.
func (r *Raft) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	r.ballots.cast(args.Term, r.t.cfg.Membership.LocalPeer().NodeID, time.Now())
	if args.LeadershipTransfer && !r.mayUseTransferFlag(time.Now()) {
		bare := *args // the library gives the same one to all its goroutines
		bare.LeadershipTransfer = false
		args = &bare
	}
	term := args.Term
	m := r.message(id, "vote", term, 0)
	err := r.sendVoteRequest(m, target, func(out *libTransport) error { return out.RequestVote(id, target, args, resp) })
	why := popReason(&resp.RPCHeader)
	r.reportVote(cluster.VoteResponse{Term: term, Voter: m.To, Granted: resp.Granted, Reason: why}, err)
	return err
}

// RequestPreVote asks whether a vote would be given.
func (r *Raft) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	if !r.t.cfg.Elections.MayStartElection() || r.boundByProxyAck(time.Now(), r.t.cfg.Membership.LocalPeer().NodeID, args.Term) {
		return r.fail(time.Now(), errMayNot)
	}
	term := args.Term
	m := r.message(id, "prevote", term, 0)
	err := r.sendVoteRequest(m, target, func(out *libTransport) error { return out.RequestPreVote(id, target, args, resp) })
	if err != nil && strings.Contains(err.Error(), "unexpected command") {
		err = errors.New("pre-vote failed at the peer") // the library takes the original text for a grant
	}
	why := popReason(&resp.RPCHeader)
	r.reportVote(cluster.VoteResponse{Term: term, Voter: m.To, Pre: true, Granted: resp.Granted, Reason: why}, err)
	return err
}

// reportVote passes a voter's answer on to whoever explains elections.
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

// noAnswer says why a voter did not answer, in a few words.
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

// sendVoteRequest makes a vote RPC. When it fails because a pooled connection was dead
// it is sent once more, on a new one: a lost vote costs an election timeout.
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

// busyPollInterval is how often a node that is to stand looks again whether it still
// should, while raft is inside something.
const busyPollInterval = time.Millisecond

// StartElection makes this node stand for election now, without pre-vote: it puts a
// TimeoutNow into its own queue. It fails when the node leads, may not stand,
// has moved past term, or when raft does not take the message before ctx ends.
//
// Elections.MayStartElection counts only with MandateEvidence, and
// RaftNode.ElectionBlocked always. With MandateOrder voters are asked to pass over
// the leader that they know; otherwise a voter grants only what its own evidence
// allows.
func (r *Raft) StartElection(ctx context.Context, term uint64, by cluster.ElectionCause) error {
	local := r.node()
	if local == nil {
		return errNotReady
	}
	if local.ElectionBlocked() {
		return fmt.Errorf("%w: %w", errMayNot, errBarred)
	}
	if by == cluster.CauseLeaderFailed && !r.t.cfg.Elections.MayStartElection() {
		return errMayNot
	}
	if local.Leader() == "" {
		if err := r.injectLocal(ctx, local, term, by, r.endPreVoteAppend(term)); err != nil {
			return err
		}
	}
	return r.injectLocal(ctx, local, term, by, &raft.TimeoutNowRequest{RPCHeader: r.header()})
}

// endPreVoteAppend ends a candidacy that waits for pre-votes, without any other
// effect: a candidate takes any append of its own term for the end of it, before
// it finds that it does not have the entry that the append builds on. One cannot
// be told to stand: it would go on waiting. Raft's own timer makes such a
// candidate of a node that voters turn down, because they still know the leader;
// and while failover is paused a node without a leader is one for good.
func (r *Raft) endPreVoteAppend(term uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: term,
		PrevLogEntry: math.MaxUint64, PrevLogTerm: math.MaxUint64,
	}
}

// injectLocal puts a message of this node's own into its queue and waits for the answer,
// unless this node leaves the term or leads before raft takes it.
func (r *Raft) injectLocal(ctx context.Context, local RaftNode, term uint64, by cluster.ElectionCause, command any) error {
	reply := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: command, RespChan: reply}
	look := time.NewTicker(busyPollInterval)
	defer look.Stop()
	for {
		// Whatever raft is inside of may end the reason to stand: told later, it
		// would depose the leader that was elected meanwhile.
		if now := local.CurrentTerm(); now != term {
			return fmt.Errorf("not standing: the term is %d, not %d", now, term)
		}
		if local.Leader() == r.t.cfg.Membership.LocalPeer().NodeID {
			return errors.New("not standing: this node leads")
		}
		if by == cluster.CauseOperator {
			r.mark(&r.transferFlagAllowedAt, time.Now())
		}
		select {
		case r.consumer <- rpc:
			return waitAnswer(ctx, r.closed, reply)
		case <-look.C:
		case <-r.closed:
			return errClosed
		case <-ctx.Done():
			return fmt.Errorf("not standing: raft is busy: %w", ctx.Err())
		}
	}
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

// mayUseTransferFlag says whether this node was told to stand less than an election
// timeout ago, by the leader or by an operator. The library's own mark of that
// can outlive its election.
func (r *Raft) mayUseTransferFlag(now time.Time) bool {
	return r.within(&r.transferFlagAllowedAt, now, r.t.cfg.TimeoutMax)
}
