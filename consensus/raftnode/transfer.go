package raftnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// UndeliveredError is an error of TimeoutNow. Undelivered: the message certainly did not reach the target's raft.Raft.
type UndeliveredError interface {
	error
	Undelivered() bool
}

// TransferAttempt is one leadership transfer of raft.Raft. The library's future is not awaited, because it reports
// only that leadership was lost. The result depends on whether TimeoutNow was sent, and on the next leader.
type TransferAttempt struct {
	Target  cluster.NodeID // the node that is to lead
	term    uint64
	Updated chan struct{} // capacity 1: it receives a value when the stage may have changed

	mu                  sync.Mutex
	revoked             bool // TimeoutNow must not be sent from now on
	timeoutNowAttempted bool // raft.Raft has come to the point of sending it
	timeoutNowSent      bool // it was sent, or may have been
	timeoutNowAccepted  bool // the target has accepted it
	err                 error
}

// TransferStage is how far an attempt has come.
type TransferStage int

// The stages of a transfer, in their order.
const (
	StageCatchUp        TransferStage = iota // raft.Raft sends the target the missing entries
	StageTimeoutNow                          // TimeoutNow is on its way
	StageTargetElecting                      // the target has accepted it
	StageLeadershipLost                      // this node does not lead any longer
	StageFailed                              // TimeoutNow was rejected, or no response came
)

func newTransferAttempt(target cluster.NodeID, term uint64) *TransferAttempt {
	return &TransferAttempt{Target: target, term: term, Updated: make(chan struct{}, 1)}
}

// Stage returns how far the attempt has come, and why it has failed.
func (a *TransferAttempt) Stage(leads bool) (TransferStage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !leads:
		return StageLeadershipLost, nil
	case a.err != nil:
		return StageFailed, a.err
	case a.timeoutNowAccepted:
		return StageTargetElecting, nil
	case a.timeoutNowSent:
		return StageTimeoutNow, nil
	}
	return StageCatchUp, nil
}

// Revoke forbids TimeoutNow from now on. It reports whether it was sent before.
func (a *TransferAttempt) Revoke() (timeoutNowSent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revoked = true
	return a.timeoutNowSent
}

// allowTimeoutNow reports whether TimeoutNow may still be sent.
func (a *TransferAttempt) allowTimeoutNow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeoutNowAttempted = true
	if a.revoked {
		return false
	}
	a.timeoutNowSent = true
	Notify(a.Updated)
	return true
}

func (a *TransferAttempt) finishTimeoutNow(err error) {
	var not UndeliveredError
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeoutNowAccepted, a.err = err == nil, err
	if errors.As(err, &not) && not.Undelivered() {
		a.timeoutNowSent = false
	}
	Notify(a.Updated)
}

// stuckIn reports whether this attempt was revoked in term, and may still be inside raft.Raft. A second one for the
// same peer would hang there, and the library's in-progress flag with it.
func (a *TransferAttempt) stuckIn(term uint64) bool {
	if a == nil || a.term != term {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revoked && !a.timeoutNowAttempted
}

// StartTransfer starts a transfer to target in term. The library's future is dropped: its nil means only that
// leadership was lost, and after a shutdown it is never answered.
func (i *Instance) StartTransfer(target cluster.Server, term uint64) *TransferAttempt {
	a := newTransferAttempt(target.ID, term)
	i.transferMu.Lock()
	i.transfers[target.ID] = a
	i.transferMu.Unlock()
	i.trans.transfer.Store(a)
	_ = i.Raft.LeadershipTransferToServer(raft.ServerID(target.ID), raft.ServerAddress(target.Address))
	return a
}

// TransferStuck reports whether a transfer to target was revoked in term, and may still be inside raft.Raft.
func (i *Instance) TransferStuck(target cluster.NodeID, term uint64) bool {
	i.transferMu.Lock()
	defer i.transferMu.Unlock()
	return i.transfers[target].stuckIn(term)
}

// flagProbe is a request to find out whether raft.Raft accepts entries again.
type flagProbe struct {
	term uint64
	done chan struct{}
}

// ProbeTransferFlag makes ProbeTransferFlags ask, after a failed transfer in term. done is closed when it has asked.
func (i *Instance) ProbeTransferFlag(term uint64) (done <-chan struct{}) {
	p := flagProbe{term, make(chan struct{})}
	select {
	case i.flagProbes <- p:
	default:
		close(p.done) // the probe that waits asks the same
	}
	return p.done
}

// ProbeTransferFlags asks after each failed transfer until raft.Raft accepts entries again, or this node no longer
// leads in that term. If raft.Raft never does, the watchdog replaces the instance, even when there are no writes. It
// must return before Shutdown: raft.Raft may lose the result of an entry while it shuts down.
func (i *Instance) ProbeTransferFlags(ctx context.Context) {
	tick := time.NewTicker(i.cfg.TimeoutMin)
	defer tick.Stop()
	for {
		select {
		case p := <-i.flagProbes:
			i.probeTransferFlag(ctx, p.term, tick.C)
			close(p.done)
		case <-ctx.Done():
			return
		}
	}
}

func (i *Instance) probeTransferFlag(ctx context.Context, term uint64, tick <-chan time.Time) {
	for ctx.Err() == nil && i.Leads(term) {
		err := i.ApplyNothing(2 * i.cfg.TimeoutMax)
		i.NoteResult(err)
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// transferWatchdog finds a transfer that raft.Raft never ends: its flag rejects every write, in later terms, too.
type transferWatchdog struct {
	after time.Duration // how long rejections may go on
	trip  func()

	mu    sync.Mutex
	since time.Time // of the first rejection in a row; zero: none
}

func (w *transferWatchdog) note(now time.Time, err error) {
	w.mu.Lock()
	tripped := false
	switch {
	case err == nil:
		w.since = time.Time{}
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if w.since.IsZero() {
			w.since = now
		}
		tripped = now.Sub(w.since) > w.after
	}
	w.mu.Unlock()
	if tripped {
		w.trip()
	}
}
