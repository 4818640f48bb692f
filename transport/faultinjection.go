package transport

import "github.com/hashicorp/raft"

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

// applyFaults lets the hook's faults happen to a frame; false when it is lost.
func (c *monitorConn) applyFaults(f *frame) bool {
	hook := c.t.cfg.Faults
	if hook == nil {
		return true
	}
	if liar, ok := hook.(ClaimFaults); ok {
		f.Claim = liar.Claim(c.m.id, f.Claim)
	}
	fault := hook.Outgoing(Message{From: c.t.cfg.Local().NodeID, To: c.m.id, Kind: "probe", Term: f.Claim.Term})
	if fault.Delay > 0 {
		sleep(fault.Delay, c.processDead)
	}
	return !fault.lost()
}

// entryBytes is about what entries take on the wire.
func entryBytes(entries []*raft.Log) int {
	n := 0
	for _, e := range entries {
		n += len(e.Data) + len(e.Extensions) + 96
	}
	return n
}
