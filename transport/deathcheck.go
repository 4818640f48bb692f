package transport

import (
	"context"
	"errors"
	"syscall"
	"time"

	"northstar/cluster"
)

// Limits of a confirmation. One long deadline could land in the backlog of a
// listener that is about to die, so it is many short ones.
const (
	confirmTry   = 3 * time.Millisecond // of one try, or three times the measured handshake
	confirmPause = 50 * time.Microsecond
	confirmAll   = 60 * time.Millisecond
	confirmTries = 256
)

// Confirm finds out, by dialling again, whether the process bootID of a peer
// still runs. It takes as long as ctx allows, and at most about 60 ms. Nobody
// listens, at that process's canary or at the node's address: dead. A hello with that boot ID: alive; with another: restarted.
// Nothing clear in time: unclear.
func (t *Transport) Confirm(ctx context.Context, peer cluster.NodeID, bootID string) cluster.Liveness {
	target := t.monitors.address(peer)
	if target == "" {
		return cluster.LivenessUnclear
	}
	ctx, cancel := context.WithTimeout(ctx, confirmAll)
	defer cancel()
	try := confirmTry
	if m := t.monitors.find(peer); m != nil {
		try = max(try, 3*m.handshakeTime())
		if addr := m.crashSocketOf(bootID); addr != "" && t.refused(ctx, addr, try) {
			t.markProcessDead(peer, bootID)
			return cluster.LivenessDead // the rest of the process may take its time to go
		}
	}
	for range confirmTries {
		if l, clear := t.confirmOnce(ctx, target, try, peer, bootID); clear {
			if l == cluster.LivenessDead {
				t.markProcessDead(peer, bootID)
			}
			return l
		}
		if ctx.Err() != nil {
			break
		}
		preciseSleep(confirmPause)
	}
	return cluster.LivenessUnclear
}

// refused says whether nobody listens at addr.
func (t *Transport) refused(ctx context.Context, addr string, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := t.cfg.Dial(ctx, addr)
	if err == nil {
		_ = closeNow(conn)
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// confirmOnce makes one try.
func (t *Transport) confirmOnce(ctx context.Context, target string, limit time.Duration, peer cluster.NodeID, bootID string) (l cluster.Liveness, clear bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, x, err := t.open(ctx, target, purposeProbe, peer)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return cluster.LivenessDead, true
	case err != nil:
		return cluster.LivenessUnclear, false
	}
	_ = closeNow(conn)
	if x.peer.BootID == bootID {
		return cluster.LivenessAlive, true
	}
	return cluster.LivenessRestarted, true
}

// deadDialBackoff is for how long a process that was found dead is not dialled by Raft:
// while the survivors elect a leader they have better things to do.
const deadDialBackoff = 30 * time.Millisecond

// markProcessDead notes that a process of a peer was found dead.
func (t *Transport) markProcessDead(id cluster.NodeID, bootID string) {
	if p, err := t.Raft().peer(id); err == nil {
		p.backoff.Store(&dialBackoff{bootID, time.Now().Add(deadDialBackoff)})
	}
}

// dialBackoff is a process of a peer that is dead, and until when it is not dialled.
type dialBackoff struct {
	bootID string
	until  time.Time
}

// checkBackoff gives a dial error for a peer whose last known process was found dead a
// moment ago.
func (p *peer) checkBackoff(now time.Time) error {
	b := p.backoff.Load()
	if b == nil || !now.Before(b.until) {
		return nil
	}
	if facts, known := p.known(); !known || facts.BootID != b.bootID {
		return nil // another one has said hello since
	}
	return &dialError{errProcessDead}
}
