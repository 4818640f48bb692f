package transport

import (
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Message describes an outgoing Raft message to the fault hook.
type Message struct {
	From, To cluster.NodeID
	Kind     string // append, heartbeat, vote, prevote, snapshot, timeout_now, or probe with the claim's term
	Term     uint64
	Size     int // bytes of the entries, or of the snapshot
}

// Fault is what goes wrong with one message.
type Fault struct {
	Drop      bool          // the message is lost, and its sender times out
	Delay     time.Duration // before the message is sent
	DropReply bool          // the message arrives, its response is lost
	Twice     bool          // the message arrives twice; not for a snapshot
	// Late delays the response; nil means no delay. gone is closed when the sender no longer waits. A monitor frame
	// has no response, and arrives once.
	Late func(gone <-chan struct{})
}

// Faults decides about faults of outgoing messages. It is called once per message, concurrently.
type Faults interface {
	Outgoing(Message) Fault
}

// ClaimFaults is an optional extension of Faults that changes this node's claims.
type ClaimFaults interface {
	Claim(to cluster.NodeID, c cluster.Claim) cluster.Claim
}

func (f Fault) lost() bool { return f.Drop || f.DropReply }

// fault returns the fault of a message, after its delay.
func (r *Raft) fault(m Message) Fault {
	if r.t.cfg.Faults == nil {
		return Fault{}
	}
	f := r.t.cfg.Faults.Outgoing(m)
	if f.Delay > 0 {
		sleep(f.Delay, r.closed)
	}
	return f
}

// entryBytes returns the approximate size of entries on the wire.
func entryBytes(entries []*raft.Log) int {
	n := 0
	for _, e := range entries {
		n += len(e.Data) + len(e.Extensions) + 96
	}
	return n
}
