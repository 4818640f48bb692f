package transport

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// maxInstallDelay bounds the delay before a repeated snapshot.
const maxInstallDelay = 10 * time.Second

// snapshotInstalls remembers the last snapshot that each peer has installed. A peer that has installed one needs it
// again only if something is wrong: raft.Raft would send it without end and without a pause. Safe for concurrent use.
type snapshotInstalls struct {
	mu   sync.Mutex
	last map[cluster.NodeID]snapshotInstall
}

// snapshotInstall is a snapshot that a peer has installed.
type snapshotInstall struct {
	incarnation string // of the peer's data directory
	leaderTerm  uint64
	index, term uint64 // where the snapshot ends
	times       int    // how often the peer has installed it
}

// installOf describes a snapshot about to be sent.
func installOf(s sentAppend, args *raft.InstallSnapshotRequest) snapshotInstall {
	return snapshotInstall{
		incarnation: s.incarnation, leaderTerm: args.Term, index: args.LastLogIndex, term: args.LastLogTerm,
	}
}

// done records that a peer has installed a snapshot.
func (i *snapshotInstalls) done(peer cluster.NodeID, of snapshotInstall) {
	of.times = i.repeated(peer, of) + 1
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.last == nil {
		i.last = map[cluster.NodeID]snapshotInstall{}
	}
	i.last[peer] = of
}

// repeated returns how often a peer has already installed a snapshot.
func (i *snapshotInstalls) repeated(peer cluster.NodeID, of snapshotInstall) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	last := i.last[peer]
	of.times = last.times
	if last != of {
		return 0
	}
	return last.times
}

// installDelay returns how long the leader waits before it sends a snapshot that the peer has already installed so
// many times.
func installDelay(times int, timeoutMin time.Duration) time.Duration {
	if times == 0 {
		return 0
	}
	return min(timeoutMin<<min(times-1, 20), maxInstallDelay)
}

// delayRepeatedInstall reports a snapshot that the peer has already installed, and delays it. It returns early when
// this node's leadership has ended.
func (r *Raft) delayRepeatedInstall(peer cluster.NodeID, of snapshotInstall) {
	times := r.installs.repeated(peer, of)
	if times == 0 {
		return
	}
	r.t.cfg.Events.InstallRepeated(peer, of.index, times)
	ctx, cancel := context.WithTimeout(r.ctx, installDelay(times, r.t.cfg.TimeoutMin))
	defer cancel()
	look := time.NewTicker(r.t.cfg.TimeoutMin / 3)
	defer look.Stop()
	for r.leads(of.leaderTerm) {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// leads reports whether raft leads in term.
func (r *Raft) leads(term uint64) bool {
	local := r.node()
	return local != nil && local.Leader() == r.t.cfg.Membership.LocalPeer().NodeID && local.CurrentTerm() == term
}
