package consensus

import (
	"time"

	"northstar/cluster"
	"northstar/state"
)

// View is the replicated state as this node has applied it.
func (n *Node) View() *state.View { return n.state.View() }

// Feed gives the changes of the replicated state as this node applies them.
func (n *Node) Feed() *state.Feed { return n.state.Feed() }

// RoleFeed gives the elections and vacancies of roles as this node applies them.
func (n *Node) RoleFeed() *state.Feed { return n.state.RoleFeed() }

// NodeFeed gives the changes of application nodes as this node applies them.
func (n *Node) NodeFeed() *state.Feed { return n.state.NodeFeed() }

// Identity is who this data directory is now.
func (n *Node) Identity() cluster.Identity { return n.ident.get().Identity }

// SetDraining says whether this node is being drained; it only shows.
func (n *Node) SetDraining(draining bool) { n.draining.Store(draining) }

// Status is what this node knows of itself and of the cluster now. It takes no
// lock for longer than a copy, and asks nobody.
func (n *Node) Status() cluster.NodeStatus {
	s := n.currentSoftState()
	st := cluster.NodeStatus{
		Identity: n.Identity(), Role: s.role, Term: s.term, LeaderID: s.leader, LeaderRaftAddress: s.addr,
		LeaderContactAge: -1, AppliedIndex: n.fsm.applied.Load(), CaughtUp: n.caughtUp.Load(),
		Disk: cluster.DiskState{Stalled: n.store.Stalled(), ReadOnly: n.store.ReadOnly()},
	}
	st.Disk.FsyncP99, st.Disk.Syncs = n.store.SyncP99()
	if inst := n.inst.Load(); inst != nil {
		st.CommitIndex, st.LastLogIndex = inst.raft.CommitIndex(), inst.raft.LastIndex()
		st.Servers = inst.servers()
		st.LeaseRemaining = n.leaseRemaining()
		if last := inst.raft.LastContact(); !last.IsZero() {
			st.LeaderContactAge = n.now().Sub(last)
		}
		if s.role == cluster.Leader {
			st.LeaderContactAge = 0
		}
	}
	n.mu.Lock()
	st.LeaderSince = n.leadershipSince
	n.mu.Unlock()
	st.DeadReason = n.deadReason()
	st.Lifecycle = n.lifecycle(st)
	return st
}

func (n *Node) lifecycle(st cluster.NodeStatus) cluster.Lifecycle {
	switch {
	case st.DeadReason != "":
		return cluster.Dead
	case n.draining.Load():
		return cluster.Draining
	case st.ClusterID == "" || len(st.Servers) == 0:
		return cluster.Joining
	}
	if m, ok := n.View().Member(st.NodeID); ok {
		return m.Lifecycle
	}
	return cluster.Joining
}

// Peers is what this node knows of the other servers of the configuration: on
// the leader from their answers, elsewhere of the leader only, and without one
// from whether they answer at all.
func (n *Node) Peers() []cluster.PeerStatus {
	inst := n.inst.Load()
	if inst == nil {
		return nil
	}
	st := n.Status()
	var peers []cluster.PeerStatus
	for _, s := range st.Servers {
		if s.ID != st.NodeID {
			p := n.peerStatus(st, s.ID)
			if st.Role == cluster.Leader {
				p.TransferBlocked = inst.stuckTransfer(s.ID, st.Term)
			}
			peers = append(peers, p)
		}
	}
	return peers
}

func (n *Node) peerStatus(st cluster.NodeStatus, id cluster.NodeID) cluster.PeerStatus {
	p := cluster.PeerStatus{ID: id}
	n.peers.mu.Lock()
	refused, isRefused := n.peers.refusedPeers[id]
	refusing, isRefusing := n.peers.refusedBy[id]
	hello, met := n.peers.lastHellos[id]
	answered := n.peers.admittedBy[id]
	n.peers.mu.Unlock()
	if isRefused {
		p.Dead, p.Reasons = true, append(p.Reasons, refused.reason)
	}
	if isRefusing {
		p.Dead, p.Reasons = true, append(p.Reasons, refusing.reason)
	}
	if met && hello.ClusterID == "" && st.ClusterID != "" {
		// The others would not vote for it, nor this node follow it.
		p.Reasons = append(p.Reasons, "has not adopted the cluster's ID yet")
	}
	switch {
	case st.Role == cluster.Leader:
		ack := n.deps.PeerAck(id)
		if !ack.LastContact.IsZero() {
			p.Contacted, p.LastContact = true, n.now().Sub(ack.LastContact)
		}
		if ack.Term == st.Term {
			p.MatchIndex = ack.MatchIndex
		}
		p.LagEntries = st.LastLogIndex - min(p.MatchIndex, st.LastLogIndex)
	case id == st.LeaderID && st.LeaderContactAge >= 0:
		p.Contacted, p.LastContact = true, st.LeaderContactAge
	case st.LeaderID == "":
		now := n.now()
		if p.Contacted = !answered.IsZero(); p.Contacted {
			p.LastContact = now.Sub(answered)
		}
		n.mu.Lock()
		leaderless := n.leaderlessFor(now)
		n.mu.Unlock()
		if silent := unanswered(leaderless, p); silent > 0 {
			p.AddSilence(silent)
		}
	}
	if st.Role == cluster.Leader || id == st.LeaderID {
		if !p.Contacted {
			p.Reasons = append(p.Reasons, "not heard from yet")
		} else if p.LastContact > n.contactLimit() {
			p.AddSilence(p.LastContact)
		}
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}

// answerLimit is how long a peer may owe an answer to a node without a leader,
// which asks each of them every probeInterval.
const answerLimit = 3 * probeInterval

// unanswered is for how long a peer has left a node without a leader without an
// answer; 0 while that says nothing. Followers do not talk to each other while
// there is a leader.
func unanswered(leaderless time.Duration, p cluster.PeerStatus) time.Duration {
	silent := leaderless
	if p.Contacted {
		silent = min(silent, p.LastContact)
	}
	if silent <= answerLimit {
		return 0
	}
	return silent
}

// contactLimit is how long a peer may be silent before it counts as lost.
func (n *Node) contactLimit() time.Duration { return 2 * n.cfg.TimeoutMax }

// inContact says whether a peer has answered this leader lately.
func (n *Node) inContact(id cluster.NodeID) bool {
	last := n.deps.PeerAck(id).LastContact
	return !last.IsZero() && n.now().Sub(last) <= n.contactLimit()
}

func (n *Node) serverIDs() []cluster.NodeID {
	inst := n.inst.Load()
	if inst == nil {
		return nil
	}
	servers := inst.servers()
	ids := make([]cluster.NodeID, len(servers))
	for i, s := range servers {
		ids[i] = s.ID
	}
	return ids
}

// ReadsVersion is the highest command version that all servers can apply.
func (n *Node) ReadsVersion() uint32 { return n.View().MinSupportedVersion(n.serverIDs()) }

// LoadFile and SaveFile keep a small file of another package in the data
// directory, as storage.Storage does.
func (n *Node) LoadFile(name string) ([]byte, error) { return n.store.Load(name) }

// SaveFile replaces such a file, durably.
func (n *Node) SaveFile(name string, data []byte) error { return n.store.Save(name, data) }
