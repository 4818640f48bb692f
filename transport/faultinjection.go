package transport

import (
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Message describes an outgoing Raft message to the fault hook.
type Message struct {
	From, To cluster.NodeID
	Kind     string // append, heartbeat, vote, prevote, snapshot, timeout_now; probe, with the claim's term
	Term     uint64
	Size     int // bytes of the entries, or of the snapshot
}

// Fault is what shall go wrong with one message.
type Fault struct {
	Drop      bool          // it never arrives, and the sender finds out by timeout
	Delay     time.Duration // before it is sent
	DropReply bool          // it arrives, its answer does not
	Twice     bool          // it arrives a second time; not for a snapshot
	// Late holds the answer up; gone is closed when nobody waits for it any more.
	// nil: it is not held up. A probe's frame has no answer, and comes once.
	Late func(gone <-chan struct{})
}

// Faults decides on faults of outgoing messages. It is called once a message,
// from many goroutines.
type Faults interface {
	Outgoing(Message) Fault
}

// ClaimFaults is what Faults may be as well: then it changes what a node claims
// to a peer.
type ClaimFaults interface {
	Claim(to cluster.NodeID, c cluster.Claim) cluster.Claim
}

func (f Fault) lost() bool { return f.Drop || f.DropReply }

// fault asks the hook, and lets its delay pass.
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

// entryBytes is about what entries take on the wire.
func entryBytes(entries []*raft.Log) int {
	n := 0
	for _, e := range entries {
		n += len(e.Data) + len(e.Extensions) + 96
	}
	return n
}
