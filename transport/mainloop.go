package transport

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// aliveRecheck is how often Alive looks whether raft is excused.
const aliveRecheck = 50 * time.Millisecond

// CheckMainLoop returns nil once raft's main loop has answered a message of its own,
// or is known to be busy with something that moves on, such as a snapshot. It
// has no effect on raft: the message is an append of term 0, which is refused
// unread. A raft that does not run yet, or waits to be taken in, counts as
// alive.
func (r *Raft) CheckMainLoop(ctx context.Context) error {
	local := r.node()
	// At term 0 raft would take the message for its leader's.
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
		if inside, excused, _ := r.busy.status(time.Now(), restored, r.t.params); inside && excused {
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

// WaitMainLoop returns nil once raft has finished the message that it may be inside
// of: what this node says of its log afterwards is no older than the call. Like
// Alive, it has no effect on raft.
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
