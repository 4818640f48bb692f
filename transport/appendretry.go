package transport

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// firstHeartbeatDelay is between a failed heartbeat and the next one; it doubles up to half of TimeoutMin, as the
// library's does.
const firstHeartbeatDelay = 10 * time.Millisecond

// maxAttempts bounds the immediate attempts for one append.
const maxAttempts = 3

// repeatHeartbeat sends a heartbeat until the peer answers, is no longer a member at that address, or this node's
// leadership has ended. raft.Raft would wait between two heartbeats even if the peer has just started again. Here a
// hello of the peer, with which every start begins, ends the wait. A leader that has yielded, and leads on, is heard
// again immediately. err is the error of the first attempt.
func (r *Raft) repeatHeartbeat(err error, id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	to, longest := cluster.NodeID(id), r.t.cfg.TimeoutMin/2
	p, gone := r.peer(to)
	if gone != nil {
		return gone
	}
	for wait := min(firstHeartbeatDelay, longest); err != nil; wait = min(2*wait, longest) {
		if errors.Is(err, errReplicationPaused) {
			wait = min(firstHeartbeatDelay, longest) // the peer listens, and would soon elect
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.saidHello:
		case <-r.closed:
		}
		timer.Stop()
		if r.ctx.Err() != nil || !r.leads(args.Term) || !r.isServer(to, target) {
			return err
		}
		err = r.sendAppend(id, target, args, resp)
	}
	return nil
}

// resumeAppends returns after a failed append when the next one makes sense. raft.Raft sends that after a pause, or
// when there is a new entry, and it must get an error: the peer may lack what this append holds. So that the peer does
// not wait for the pause, it gets the commit index here. If it lacks entries, it refuses. raft.Raft gets this refusal
// as the answer, and goes on immediately with what follows the peer's last entry.
//
// If the peer's log is not shorter than what the append follows, the refusal is none of that append. raft.Raft would
// skip it, and step back before it: the peer may have a snapshot there, and nothing that precedes its end.
func (r *Raft) resumeAppends(err error, id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	if !r.awaitRetryable(err, cluster.NodeID(id), target, args.Term) {
		return err
	}
	local := r.node()
	if local == nil {
		return err
	}
	current, unknown := local.CommitMessage(args.Term)
	if unknown != nil {
		return err
	}
	var answer raft.AppendEntriesResponse
	if r.sendAppend(id, target, current, &answer) != nil || answer.Success {
		return err
	}
	if answer.Term <= args.Term && answer.LastLog >= args.PrevLogEntry {
		return err
	}
	*resp = answer
	return nil
}

var errOutdatedAppend = errors.New("the append is older than this leader's first entry, and the peer has a longer log")

// outdatedRefusal returns an error if a peer has refused an append that raft.Raft began before it stored its first
// entry as leader, and the peer has a longer log. After a refusal, raft.Raft would go back in its log without ever
// sending that entry. A peer with the snapshot of an abandoned restore needs it. It refuses each append that begins
// before the end of the snapshot, and only an entry of the new leader shows it that the restore is abandoned. After an
// error raft.Raft begins again at the same index, with that entry.
//
// That is safe: to raft.Raft it is an append whose answer was lost. It counts nothing as stored, and the peer discards
// a snapshot only when an entry of the current term's leader conflicts with it.
func outdatedRefusal(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if resp.Success || resp.Term > args.Term || isHeartbeat(args) || len(args.Entries) > 0 ||
		args.PrevLogTerm == args.Term || resp.LastLog <= args.PrevLogEntry {
		return nil
	}
	return errOutdatedAppend
}

// awaitRetryable returns after a failed append or snapshot when a retry makes sense, the peer is no longer a member at
// that address, or this node's leadership of term has ended. It reports whether the peer was heard meanwhile. raft.Raft
// backs off up to 10 s after repeated append failures, even rare ones, and a returning peer would get no
// entries meanwhile.
func (r *Raft) awaitRetryable(err error, to cluster.NodeID, target raft.ServerAddress, term uint64) (heard bool) {
	failed := time.Now()
	// A refusal is a response, too. A peer in a newer term refuses heartbeats, and the library ignores the responses to
	// heartbeats: only an append shows it that term.
	over := func() bool { return r.t.acks.Peer(to).LastContact.After(failed) }
	heard = true
	switch {
	case errors.Is(err, errNoSpace):
		over, heard = func() bool { return r.hasSpace(to, failed) }, false
	case errors.Is(err, errReplicationPaused):
		over, heard = func() bool { return !r.t.cfg.Replication.ReplicationPaused() }, false
	}
	look := time.NewTicker(r.t.cfg.TimeoutMin / 3)
	defer look.Stop()
	for {
		if !r.leads(term) {
			return false
		}
		changed := r.t.acks.Changed()
		if over() {
			return heard
		}
		select {
		case <-changed:
		case <-look.C:
			if !r.isServer(to, target) {
				return false
			}
		case <-r.closed:
			return false
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
