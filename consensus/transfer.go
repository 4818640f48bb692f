package consensus

import (
	"context"
	"errors"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// transferLag is how many entries a target may lack when a transfer begins: one message, as no writes are proposed.
const transferLag = raftnode.MaxAppendEntries

// TransferError is a transfer that failed.
type TransferError struct {
	Reason         string
	timeoutNowSent bool
}

// Error returns the reason.
func (e *TransferError) Error() string { return e.Reason }

// TimeoutNowSent reports whether TimeoutNow may have been sent: an election follows. If not, this node still leads.
func (e *TransferError) TimeoutNowSent() bool { return e.timeoutNowSent }

// TransferTo makes one library transfer of leadership to h.To, which must be a voter other than this node, in contact
// and nearly caught up. The caller checks whether it is fit to lead. The target is notified of the reason first. Writes
// wait until the target leads, or the attempt has ended. It returns nil when this node has sampled the target as
// leader. Errors: CodeNoLeader, CodeBusy during another change, CodeBadRequest, CodeTransferFailed with status 504 when
// this node stops after TimeoutNow, or a *TransferError.
func (n *Node) TransferTo(ctx context.Context, h cluster.TransferNotice) error {
	release, err := n.tryChangeLock()
	if err != nil {
		return err
	}
	defer release()
	inst := n.inst.Load()
	if inst == nil || !n.leads() {
		return n.notLeading()
	}
	return n.transferLocked(ctx, inst, h)
}

func (n *Node) tryChangeLock() (release func(), err error) {
	select {
	case n.changeSem <- struct{}{}:
		return func() { <-n.changeSem }, nil
	default:
		return nil, cluster.Errorf(cluster.CodeBusy, "another change of membership or leadership is in progress")
	}
}

// transferLocked is TransferTo for a caller that holds the change lock.
func (n *Node) transferLocked(ctx context.Context, inst *raftnode.Instance, h cluster.TransferNotice) error {
	server, ok := cluster.FindServer(inst.Servers(), h.To)
	if !ok {
		return notFound(h.To)
	}
	if server.Suffrage != cluster.Voter || h.To == n.cfg.Self.NodeID {
		return cluster.Errorf(cluster.CodeBadRequest, "target: must be a voter other than the leader (got %q)", h.To)
	}
	term := inst.CurrentTerm()
	if n.electedOverLiveLeader(term) {
		return &TransferError{Reason: "this node waits for the lease of the previous leader to expire"}
	}
	if why := n.transferRisk(inst, h.To, term); why != "" {
		return &TransferError{Reason: why}
	}
	if n.deps.Announce != nil {
		defer n.deps.Announce(ctx, h)()
	}
	release, err := n.pauseWrites(ctx, term)
	defer release()
	if err != nil {
		return &TransferError{Reason: "the writes in flight did not end in time: " + err.Error()}
	}
	restoreLease := n.lease.revokeTerm(term)
	attempt := inst.StartTransfer(server, term)
	err = n.awaitTransfer(ctx, inst, attempt, term)
	var failed *TransferError
	if errors.As(err, &failed) && !failed.TimeoutNowSent() {
		restoreLease()
	}
	if err != nil && inst.Leads(term) {
		inst.ProbeTransferFlag(term)
	}
	return err
}

// pauseWrites closes the gate and waits for the batch in flight: a TimeoutNow before its commit would make its outcome
// unknown. release opens the gate again if it was open and this leadership continues.
func (n *Node) pauseWrites(ctx context.Context, term uint64) (release func(), err error) {
	if term == 0 || n.readyTerm.Load() != term {
		return func() {}, nil // no user's write is in flight
	}
	n.queue.setGate(false)
	release = func() {
		if n.readyTerm.Load() == term {
			n.queue.setGate(true)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TimeoutMax)
	defer cancel()
	return release, n.queue.idle(ctx)
}

// stuckTransfer returns why no transfer to target may begin in term, "" if it may. Another target is possible.
func stuckTransfer(inst *raftnode.Instance, target cluster.NodeID, term uint64) string {
	if !inst.TransferStuck(target, term) {
		return ""
	}
	return "a transfer to node " + string(target) +
		" was cancelled in this term before TimeoutNow was sent: no second one in this term"
}

// transferRisk returns why a transfer to target could get stuck in the library; "" when it should not. The library
// waits for a peer that lags, and that wait may never end.
func (n *Node) transferRisk(inst *raftnode.Instance, target cluster.NodeID, term uint64) string {
	if why := stuckTransfer(inst, target, term); why != "" {
		return why
	}
	if !n.inContact(target) {
		return "node " + string(target) + " is not in contact"
	}
	ack := n.deps.PeerAck(target)
	if last := inst.LastIndex(); ack.Term != term || last-min(last, ack.MatchIndex) > transferLag {
		return "node " + string(target) + " is not caught up"
	}
	return ""
}

// stageTimeout returns how long a stage of an attempt may last. The library gives the target timeout-min to catch up,
// and TimeoutNow has timeout-max. The target then starts its election within a few milliseconds.
func (n *Node) stageTimeout(stage raftnode.TransferStage) time.Duration {
	switch stage {
	case raftnode.StageCatchUp:
		return n.cfg.TimeoutMax
	case raftnode.StageTimeoutNow:
		return n.cfg.TimeoutMax + n.cfg.TimeoutMin
	}
	return n.cfg.TimeoutMin
}

func (n *Node) awaitTransfer(ctx context.Context, inst *raftnode.Instance, attempt *raftnode.TransferAttempt,
	term uint64,
) error {
	fail := func(why string) error { return &TransferError{timeoutNowSent: attempt.Revoke(), Reason: why} }
	reached := raftnode.StageCatchUp
	limit := time.NewTimer(n.stageTimeout(reached))
	defer limit.Stop()
	silent := time.NewTimer(n.cfg.TimeoutMin)
	defer silent.Stop()
	for {
		changed := n.LeaderChanged()
		s := n.currentSoftState()
		switch {
		case s.Leader == attempt.Target && s.Term > term:
			return nil
		case s.Leader != "" && s.Term > term:
			return fail("node " + string(s.Leader) + " was elected instead")
		}
		stage, err := attempt.Stage(inst.Leads(term))
		if stage == raftnode.StageFailed {
			return fail("TimeoutNow failed: " + err.Error())
		}
		if stage != reached {
			reached = stage
			limit.Reset(n.stageTimeout(stage))
		}
		select {
		case <-changed:
		case <-attempt.Updated:
		case <-silent.C: // writes wait; a target that lags and answers gets longer
			left := n.cfg.TimeoutMin - time.Since(n.deps.PeerAck(attempt.Target).LastContact)
			switch {
			case left > 0:
				silent.Reset(left)
			case reached == raftnode.StageCatchUp:
				return fail("the target does not answer")
			}
		case <-limit.C:
			if reached == raftnode.StageCatchUp {
				return fail("the target could not be brought up to date in time")
			}
			return fail("the target was not seen leading in time")
		case <-inst.Stopping:
			if !inst.Final.Load() {
				return fail("raft is restarted")
			}
			// No TransferError: this node must not start an election now.
			if !attempt.Revoke() {
				return n.notLeading()
			}
			err := cluster.Errorf(cluster.CodeTransferFailed, "node %s got TimeoutNow, and this node stops", attempt.Target)
			err.Status = 504
			return err
		case <-ctx.Done():
			return fail("the deadline passed: " + ctx.Err().Error())
		}
	}
}

// StepDown ends this node's leadership of a term because of evidence that Raft does not have: another node leads. From
// its return on this node rejects what only a leader does. Entries in flight may still be committed in that term, and
// their callers learn it. The library has no such call, so its node is replaced by another one, which follows. No term
// is raised and no node gets TimeoutNow. StepDown does nothing when this node does not lead in that term.
func (n *Node) StepDown(term uint64, why string) {
	inst := n.inst.Load()
	if inst == nil || !inst.StepDown(term) {
		return
	}
	n.log.Error("stepping down", "term", term, "reason", why)
	n.closeGate()
	n.RestartRaft("stepped down")
}

// StepDownPending reports whether a Raft node that has stepped down is still to be replaced: its appends must fail.
func (n *Node) StepDownPending() bool {
	inst := n.inst.Load()
	return inst != nil && inst.SteppedDown()
}
