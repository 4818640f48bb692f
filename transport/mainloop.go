package transport

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// aliveRecheck is how often CheckMainLoop checks whether raft is busy with something that progresses.
const aliveRecheck = 50 * time.Millisecond

// leaderRestore is the restore in which a leader's main loop was last seen. It comes with no message, so inFlightOps
// has no operation for it.
type leaderRestore struct {
	mu sync.Mutex
	op *operation // guarded by mu; nil: none
}

// progresses reports whether a leader's restore of size bytes goes on, as that of a received snapshot. size 0: there is
// none.
func (l *leaderRestore) progresses(now time.Time, size int64, restored uint64, t timing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if size == 0 {
		l.op = nil
		return false
	}
	if l.op == nil || l.op.size != size {
		l.op = &operation{snapshot: true, size: size, lastProgress: now}
	}
	l.op.observe(now, restored)
	return l.op.mayProxyHeartbeat(now, t)
}

// CheckMainLoop returns nil once raft's main loop has answered a message, or is known to be busy with something that
// progresses, such as a snapshot. It has no effect on raft: the message is an append of term 0, which raft refuses
// unread. It also returns nil if raft does not run yet, or is in term 0.
func (r *Raft) CheckMainLoop(ctx context.Context) error {
	local := r.node()
	// In term 0 raft would take the message as its leader's.
	if local == nil || local.CurrentTerm() == 0 {
		return nil
	}
	reply := make(chan raft.RPCResponse, 1)
	consumer := r.consumer
	rpc := raft.RPC{Command: &raft.AppendEntriesRequest{RPCHeader: r.header()}, RespChan: reply}
	tick := time.NewTicker(aliveRecheck)
	defer tick.Stop()
	for {
		_, restored := local.Progress()
		now := time.Now()
		if inside, mayProxy, _ := r.busy.status(now, restored, r.t.params); inside && mayProxy {
			return nil
		}
		if r.restore.progresses(now, local.Restoring(), restored, r.t.params) {
			return nil
		}
		select {
		case consumer <- rpc:
			consumer = nil
		case <-reply:
			return nil
		case <-tick.C:
		case <-r.closed:
			return errClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitMainLoop returns nil once raft has finished its current message, so that log positions read afterwards include
// it. Like CheckMainLoop, it has no effect on raft.
func (r *Raft) WaitMainLoop(ctx context.Context) error {
	local := r.node()
	if local == nil || local.CurrentTerm() == 0 {
		return nil
	}
	reply := make(chan raft.RPCResponse, 1)
	select {
	case r.consumer <- raft.RPC{Command: &raft.AppendEntriesRequest{RPCHeader: r.header()}, RespChan: reply}:
	case <-r.closed:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-reply:
		return nil
	case <-r.closed:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitRaft reports whether raft runs. During a start it waits for that: the sender of a refused message waits longer
// before the next one.
func (m *incoming) awaitRaft() bool {
	if m.local = m.r.node(); m.local != nil {
		return true
	}
	limit := time.NewTimer(m.r.t.cfg.TimeoutMin)
	defer limit.Stop()
	select {
	case <-m.r.bound:
	case <-limit.C:
	case <-m.r.closed:
	}
	m.local = m.r.node()
	return m.local != nil
}
