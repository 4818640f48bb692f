package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// inFlightOps tracks the messages that raft's main loop has accepted and not answered. Heartbeats wait behind them;
// during some of them the transport answers heartbeats instead. Safe for concurrent use.
type inFlightOps struct {
	mu      sync.Mutex
	ops     map[*operation]struct{}
	changed chan struct{} // closed when an operation begins; nil while there is no waiter
}

// operation is one message inside raft's main loop. inFlightOps.mu guards its fields except received.
type operation struct {
	snapshot bool
	since    time.Time
	size     int64 // bytes of the snapshot
	received atomic.Uint64

	progress     uint64    // last observed
	lastProgress time.Time // last change of progress
}

// enter records that raft has accepted a message.
func (b *inFlightOps) enter(op *operation, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	op.since, op.lastProgress = now, now
	b.ops[op] = struct{}{}
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// leave records that raft has answered it.
func (b *inFlightOps) leave(op *operation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ops, op)
}

// status reports whether raft is inside an operation, and may be proxied. began is closed when the next one begins.
func (b *inFlightOps) status(now time.Time, restored uint64, t timing) (inside, mayProxy bool, began <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for op := range b.ops {
		inside = true
		op.observe(now, op.received.Load()+restored)
		mayProxy = mayProxy || op.mayProxyHeartbeat(now, t)
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return inside, mayProxy, b.changed
}

func (op *operation) observe(now time.Time, progress uint64) {
	if progress != op.progress {
		op.progress, op.lastProgress = progress, now
	}
}

// syncRate is the assumed minimum speed at which a snapshot is synced and checked, which shows no progress.
const syncRate = 32 << 20 // bytes a second

// mayProxyHeartbeat reports whether the transport may answer heartbeats during the operation: a store operation for
// storeTimeout, a snapshot while bytes arrive or the restore progresses, plus the time to sync it.
func (op *operation) mayProxyHeartbeat(now time.Time, t timing) bool {
	if !op.snapshot {
		return now.Sub(op.since) <= t.storeTimeout
	}
	quiet := t.stall + time.Duration(op.size/syncRate)*time.Second
	return now.Sub(op.lastProgress) <= quiet
}

// isHeartbeat reports whether a message only claims leadership: no other may be answered on raft's behalf.
func isHeartbeat(a *raft.AppendEntriesRequest) bool {
	return a.Term != 0 && len(a.Entries) == 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && a.LeaderCommitIndex == 0
}

// proxyAck is a heartbeat acknowledgement that the transport sent on raft's behalf. Raft's own last contact may be
// older if the operation failed. For TimeoutMin after a proxied acknowledgement this node neither votes for another
// candidate nor starts an election by its timer, so that the leader can rely on it. Evidence that the leader failed
// lifts this restriction.
type proxyAck struct {
	leader cluster.NodeID
	boot   string // the leader's boot ID
	at     time.Time
}

// boundByProxyAck reports whether a proxied acknowledgement to another node than candidate binds this node. One to a
// process that is dead or silent does not, also after raft has dropped the leader for a candidate that failed.
func (r *Raft) boundByProxyAck(now time.Time, candidate cluster.NodeID, term uint64) bool {
	p := r.proxyAck.Load()
	if p == nil || p.leader == candidate || now.Sub(p.at) >= r.t.cfg.TimeoutMin {
		return false
	}
	return r.t.Claim().LeaderBootID != p.boot || !r.t.cfg.Elections.MayIgnoreLeader(candidate, term, now)
}

func (r *Raft) recordProxyAck(now time.Time, leader cluster.NodeID, boot string) {
	r.proxyAck.Store(&proxyAck{leader, boot, now})
}
