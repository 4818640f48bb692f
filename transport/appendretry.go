package transport

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// awaitRetryable waits, after entries or a snapshot could not be sent to a peer, until that
// is worth another try, is no member at that address any more, or this node leads
// no more. Told of each failure at once, the library would soon wait up to 10 s
// between two tries, and a peer that came back would get no entries for so long;
// told of one every now and then, it would so after an hour.
func (r *Raft) awaitRetryable(err error, to cluster.NodeID, target raft.ServerAddress, term uint64) {
	failed := time.Now()
	var over func() bool
	switch {
	case unreachable(err):
		// It answers again, be it with a refusal. A peer in a newer term refuses
		// heartbeats, of which the library does not look at the answers: only an
		// append shows it that term.
		over = func() bool { return r.t.acks.Peer(to).LastContact.After(failed) }
	case errors.Is(err, errNoSpace):
		over = func() bool { return r.hasSpace(to, failed) }
	default:
		return
	}
	self := r.t.cfg.Membership.LocalPeer().NodeID
	look := time.NewTicker(r.t.cfg.TimeoutMin / 3)
	defer look.Stop()
	for {
		local := r.node()
		if local == nil || local.Leader() != self || local.CurrentTerm() != term {
			return
		}
		changed := r.t.acks.Changed()
		if over() {
			return
		}
		select {
		case <-changed:
		case <-look.C:
			if !r.isServer(to, target) {
				return
			}
		case <-r.closed:
			return
		}
	}
}

// hasSpace says whether a peer that has refused entries for want of disk space
// claims to have some since, and asks it when it does not. Of a peer that says
// nothing nobody knows.
func (r *Raft) hasSpace(id cluster.NodeID, refused time.Time) bool {
	seen, ok := r.t.monitors.Latest(id)
	if !ok || !seen.Connected || seen.At.After(refused) && !seen.Claim.Disk.ReadOnly {
		return true
	}
	if time.Since(seen.At) >= r.t.cfg.TimeoutMin/3 {
		r.t.monitors.Ask(id)
	}
	return false
}

// isServer says whether a node is in Raft's configuration, at that address. Where
// that is not known, it is.
func (r *Raft) isServer(id cluster.NodeID, at raft.ServerAddress) bool {
	servers := r.t.cfg.Membership.Servers()
	s, ok := cluster.FindServer(servers, id)
	return len(servers) == 0 || ok && s.Address == string(at)
}
