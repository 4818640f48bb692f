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
	now := time.Now()
	if err := r.checkSuffrage(); err != nil {
		r.reportVote(cluster.VoteResponse{Term: args.Term, Voter: cluster.NodeID(id)}, err)
		return r.fail(now, err)
	}
	r.ballots.cast(args.Term, r.t.cfg.Membership.LocalPeer().NodeID, now)
	// The library's own flag can outlive its election.
	if args.LeadershipTransfer && !r.flag.Load().allows(args.LastLogTerm, now, r.t.cfg.TimeoutMax) {
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

// flagPermission permits the LeadershipTransfer flag of vote requests, from a moment on.
type flagPermission struct {
	at   time.Time
	term uint64 // of the leader that sent the TimeoutNow; 0: an operator requested it
}

// allows reports whether a vote request may have the flag, with a log that ends with an entry of lastLogTerm. The
// permission of a leader does not hold against a later leader. That one serves only once its first entry is committed,
// and without this entry no candidate wins.
func (f *flagPermission) allows(lastLogTerm uint64, now time.Time, timeoutMax time.Duration) bool {
	return f != nil && now.Sub(f.at) < timeoutMax && (f.term == 0 || lastLogTerm <= f.term)
}

// RequestPreVote asks a node whether it would grant a vote.
func (r *Raft) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	now := time.Now()
	if local := r.node(); local != nil && r.forgetLeader(local, args.Term-1, now) {
		return r.fail(now, errCandidacyEnded)
	}
	if err := r.checkSuffrage(); err != nil {
		return r.fail(now, err)
	}
	if !r.t.cfg.Elections.MayStartElection(cluster.CauseLeaderFailed) ||
		r.boundByProxyAck(now, r.t.cfg.Membership.LocalPeer().NodeID, args.Term) ||
		r.t.cfg.Lease && r.t.lastLeaderContact().MayHoldLease(now, r.t.cfg.TimeoutMin) {
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

// checkSuffrage fails if this node's newest configuration does not list it as a voter. raft.Raft starts an
// election after a TimeoutNow without a look at it, and voters do not refuse a candidate for its suffrage (fromAVoter).
func (r *Raft) checkSuffrage() error {
	servers := r.t.cfg.Membership.Servers()
	s, _ := cluster.FindServer(servers, r.t.cfg.Membership.LocalPeer().NodeID)
	if len(servers) > 0 && s.Suffrage != cluster.Voter {
		return fmt.Errorf("%w: it is not a voter", errElectionNotAllowed)
	}
	return nil
}

var errCandidacyEnded = errors.New("the candidacy has ended: raft knew a leader")

// forgetLeader ends a candidacy of term with pre-votes in which raft names a leader that was not heard for TimeoutMin,
// and reports whether there was one. In the library only a follower's timer makes it forget its leader. A candidate
// that began with a TimeoutNow, and then acknowledged the leader of its term, would name that one in all later
// candidacies. It would refuse its pre-vote to the only node that can win, permanently.
func (r *Raft) forgetLeader(local RaftNode, term uint64, now time.Time) bool {
	lost := func() bool {
		return local.Candidate() && local.Leader() != "" && local.CurrentTerm() == term &&
			!r.t.lastLeaderContact().MayHoldLease(now, r.t.cfg.TimeoutMin)
	}
	if !lost() {
		return false
	}
	giveUp := time.NewTimer(r.t.cfg.TimeoutMin)
	defer giveUp.Stop()
	_, _ = r.offerElection(r.endCandidacyAppend(term), nil, func() error {
		if !lost() {
			return errCandidacyEnded
		}
		return nil
	}, giveUp.C)
	return true
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
	case errors.Is(err, errNoVotes), errors.Is(err, errElectionNotAllowed):
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
// With CauseOperator the vote requests carry the LeadershipTransfer flag; otherwise a voter that knows a leader decides
// by its own evidence. It returns the term of the election, which is the next one, or the one after that if a candidacy
// had to be ended. After an error the term may be one higher.
func (r *Raft) StartElection(ctx context.Context, term uint64, by cluster.ElectionCause) (uint64, error) {
	local := r.node()
	if local == nil {
		return 0, errNotReady
	}
	if local.ElectionBlocked() {
		return 0, fmt.Errorf("%w: %w", errElectionNotAllowed, errElectionBlocked)
	}
	if !r.t.cfg.Elections.MayStartElection(by) {
		return 0, errElectionNotAllowed
	}
	due := r.electionDue(local, term, by)
	inject := func(command any, flag *flagPermission) error { return r.injectLocal(ctx, due, command, flag) }
	if local.Candidate() && local.Leader() == "" {
		if err := inject(r.endCandidacyAppend(term), nil); err != nil {
			return 0, err
		}
	}
	if local.Candidate() {
		if err := inject(r.endCandidacyAppend(term+1), nil); err != nil {
			return 0, err
		}
		term++
		r.t.cfg.Elections.TermRaised(term)
		due = r.raisedDue(local, term)
	}
	var flag *flagPermission
	if by == cluster.CauseOperator {
		flag = &flagPermission{}
	}
	return term + 1, inject(&raft.TimeoutNowRequest{RPCHeader: r.header()}, flag)
}

// electionDue returns what reports why this node must not start an election in term any more. What raft handles before
// the message may end the reason: it would depose a leader that was elected meanwhile. Another leader's message counts
// from its arrival, since an append of endCandidacyAppend may make raft forget that leader.
func (r *Raft) electionDue(local RaftNode, term uint64, by cluster.ElectionCause) func() error {
	known := r.t.lastLeaderContact().Leader
	return func() error {
		if now := local.CurrentTerm(); now != term {
			return fmt.Errorf("election not started: term is %d, expected %d", now, term)
		}
		if local.Leader() == r.t.cfg.Membership.LocalPeer().NodeID {
			return errors.New("election not started: this node leads")
		}
		if err := r.checkSuffrage(); err != nil {
			return err
		}
		last := r.t.lastLeaderContact()
		if last.Leader != known && by != cluster.CauseOperator {
			return fmt.Errorf("election not started: node %s leads", last.Leader)
		}
		if by == cluster.CauseLeaderFailed && r.t.cfg.Lease && last.MayHoldLease(time.Now(), r.t.cfg.TimeoutMin) {
			return fmt.Errorf("election not started: node %s may have a lease", last.Leader)
		}
		return nil
	}
}

// raisedDue is as electionDue, after raft has gone to term to end a candidacy.
func (r *Raft) raisedDue(local RaftNode, term uint64) func() error {
	return func() error {
		if now, leader := local.CurrentTerm(), local.Leader(); now != term || leader != "" {
			return fmt.Errorf("election not started: term is %d, expected %d, and the leader is %q", now, term, leader)
		}
		return r.checkSuffrage()
	}
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

// injectLocal puts a message of this node into its own queue and waits for the answer. It gives up with the error of
// due, if that has one before raft accepts the message.
func (r *Raft) injectLocal(ctx context.Context, due func() error, command any, flag *flagPermission) error {
	look := time.NewTicker(busyPollInterval)
	defer look.Stop()
	for {
		reply, err := r.offerElection(command, flag, due, look.C)
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
// flag, if any, permits the LeadershipTransfer flag from now on. The permission ends with an offer that raft did not
// take: the leader that sent the message keeps its lease. One message is offered at a time, until raft has answered it,
// so that no message uses the permission of another.
func (r *Raft) offerElection(command any, flag *flagPermission, due func() error, giveUp <-chan time.Time,
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
	r.flag.Store(nil)
	if flag != nil {
		r.flag.Store(&flagPermission{at: time.Now(), term: flag.term})
	}
	reply := make(chan raft.RPCResponse, 1)
	select {
	case r.consumer <- raft.RPC{Command: command, RespChan: reply}:
	case <-giveUp:
		r.flag.Store(nil)
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
