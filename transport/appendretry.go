package transport

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// awaitRetryable delays the error of a failed append or snapshot until a retry makes sense, the peer is no longer a
// member at that address, or this node's leadership of term has ended. raft.Raft backs off up to 10 s after repeated
// append failures, even rare ones, and a returning peer would get no entries meanwhile.
func (r *Raft) awaitRetryable(err error, to cluster.NodeID, target raft.ServerAddress, term uint64) {
	failed := time.Now()
	var over func() bool
	switch {
	case unreachable(err):
		// A refusal is a response, too. A peer in a newer term refuses heartbeats, and the library ignores the
		// responses to heartbeats: only an append shows it that term.
		over = func() bool { return r.t.acks.Peer(to).LastContact.After(failed) }
	case errors.Is(err, errNoSpace):
		over = func() bool { return r.hasSpace(to, failed) }
	default:
		return
	}
	look := time.NewTicker(r.t.cfg.TimeoutMin / 3)
	defer look.Stop()
	for {
		if !r.leads(term) {
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

// hasSpace reports whether a peer that refused entries for lack of disk space has claimed to have space since, and
// requests its claim if not. Without a connected monitor it returns true.
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

// isServer reports whether a node is in Raft's configuration at that address, or the configuration is unknown.
func (r *Raft) isServer(id cluster.NodeID, at raft.ServerAddress) bool {
	servers := r.t.cfg.Membership.Servers()
	s, ok := cluster.FindServer(servers, id)
	return len(servers) == 0 || ok && s.Address == string(at)
}
