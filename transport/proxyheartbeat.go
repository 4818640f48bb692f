package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// inFlightOps knows which messages raft's main loop has taken and not answered yet.
// While it is inside one, heartbeats wait behind it; for some of them the
// transport answers instead. Safe for concurrent use.
type inFlightOps struct {
	mu      sync.Mutex
	ops     map[*operation]struct{}
	changed chan struct{} // closed when an operation begins; nil while nobody waits
}

// operation is one message inside raft's main loop. Its fields are guarded by
// busy.mu, but for received.
type operation struct {
	snapshot bool
	since    time.Time
	size     int64 // of the snapshot
	received atomic.Uint64

	progress     uint64    // last seen
	lastProgress time.Time // when it last changed
}

func newBusy() *inFlightOps { return &inFlightOps{ops: make(map[*operation]struct{})} }

// enter notes that raft has taken a message; leave that it has answered.
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

func (b *inFlightOps) leave(op *operation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ops, op)
}

// status says whether raft is inside an operation, and whether that excuses it
// from answering heartbeats. began is closed when the next operation begins.
func (b *inFlightOps) status(now time.Time, restored uint64, t timing) (inside, excused bool, began <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for op := range b.ops {
		inside = true
		op.observe(now, op.received.Load()+restored)
		excused = excused || op.mayProxyHeartbeat(now, t)
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return inside, excused, b.changed
}

func (op *operation) observe(now time.Time, progress uint64) {
	if progress != op.progress {
		op.progress, op.lastProgress = progress, now
	}
}

// syncRate is how fast, at the least, a disk is taken to sync and check what
// was received: for that time a snapshot shows no progress.
const syncRate = 32 << 20 // bytes a second

// mayProxyHeartbeat says whether a node may be taken for alive during the operation. A
// store operation has until the disk counts as stalled. A snapshot has as long
// as bytes arrive or the restore moves on, and the time to sync it.
func (op *operation) mayProxyHeartbeat(now time.Time, t timing) bool {
	if !op.snapshot {
		return now.Sub(op.since) <= t.storeTimeout
	}
	quiet := t.stall + time.Duration(op.size/syncRate)*time.Second
	return now.Sub(op.lastProgress) <= quiet
}

// isHeartbeat says whether the message claims nothing but leadership. Only such
// a message may be answered for raft.
func isHeartbeat(a *raft.AppendEntriesRequest) bool {
	return a.Term != 0 && len(a.Entries) == 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && a.LeaderCommitIndex == 0
}

// proxyAck is that a heartbeat of leader was answered for raft. Raft's own last
// contact may be older, when the operation failed; so that the leader can rely on
// the answer as on any other, this node neither votes for another nor stands for
// TimeoutMin after it, unless it has evidence that the leader is gone.
type proxyAck struct {
	leader cluster.NodeID
	boot   string // of its process
	at     time.Time
}

// boundByProxyAck says whether a promise to another than candidate binds this node. One
// to a process that is dead does not, also when raft has forgotten that leader
// because of a candidate: should that one fail, the next is not to wait for it.
func (r *Raft) boundByProxyAck(now time.Time, candidate cluster.NodeID, term uint64) bool {
	p := r.proxyAck.Load()
	if p == nil || p.leader == candidate || now.Sub(p.at) >= r.t.cfg.TimeoutMin {
		return false
	}
	c := r.t.Claim()
	return !c.LeaderProcessDead || c.LeaderBootID != p.boot || !r.t.cfg.Elections.MayIgnoreLeader(candidate, term, now)
}

func (r *Raft) recordProxyAck(now time.Time, leader cluster.NodeID, boot string) {
	r.proxyAck.Store(&proxyAck{leader, boot, now})
}

// mark notes a moment; within says whether it is less than d ago.
func (r *Raft) mark(at *atomic.Int64, now time.Time) { at.Store(max(1, int64(now.Sub(r.epoch)))) }

func (r *Raft) within(at *atomic.Int64, now time.Time, d time.Duration) bool {
	v := at.Load()
	return v != 0 && now.Sub(r.epoch)-time.Duration(v) < d
}
