package consensus

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// View returns the replicated state as this node has applied it.
func (n *Node) View() *state.View { return n.state.View() }

// Feed returns the changes of the replicated state as this node applies them.
func (n *Node) Feed() *state.Feed { return n.state.Feed() }

// Watched reports whether anyone on this node waits for a change of the state. The channel then gets an element, for
// one receiver.
func (n *Node) Watched() (bool, <-chan struct{}) { return n.state.Watched() }

// RoleFeed returns the elections and vacancies of roles as this node applies them.
func (n *Node) RoleFeed() *state.Feed { return n.state.RoleFeed() }

// NodeFeed returns the changes of application nodes as this node applies them.
func (n *Node) NodeFeed() *state.Feed { return n.state.NodeFeed() }

// Identity returns the current identity of this data directory.
func (n *Node) Identity() cluster.Identity { return n.ident.get().Identity }

// SetDraining sets whether Status shows this node as draining.
func (n *Node) SetDraining(draining bool) { n.draining.Store(draining) }

// Term returns the term of Status, at less cost.
func (n *Node) Term() uint64 { return n.currentSoftState().Term }

// Status returns what this node knows about itself and the cluster now. It only copies, under locks, and sends nothing.
func (n *Node) Status() cluster.NodeStatus {
	s := n.currentSoftState()
	st := cluster.NodeStatus{
		Identity: n.Identity(), Role: s.Role, Term: s.Term, LeaderID: s.Leader, LeaderRaftAddress: s.Addr,
		LeaderContactAge: -1, StateAge: -1, AppliedIndex: n.fsm.Applied(), CaughtUp: n.caughtUp.Load(),
		Disk: cluster.DiskState{
			Stalled: n.store.Stalled(), Hangs: n.store.Hangs(), ReadOnly: n.store.ReadOnly(),
		},
	}
	st.Disk.FsyncP99, st.Disk.Syncs, st.Disk.RecentSync = n.store.Syncs()
	if inst := n.inst.Load(); inst != nil {
		st.CommitIndex, st.LastLogIndex, st.StartLogIndex = inst.CommitIndex(), inst.LastIndex(), n.startLog.Load()
		st.Servers = inst.Servers()
		st.LeaseRemaining = n.leaseRemaining()
		if last := inst.LastContact(); !last.IsZero() {
			st.LeaderContactAge = time.Since(last)
		}
		st.StateAge = n.freshness.age(inst, st.AppliedIndex)
		if s.Role == cluster.Leader {
			st.LeaderContactAge, st.StateAge = 0, 0
		}
	}
	n.mu.Lock()
	st.LeaderSince = n.leadershipSince
	n.mu.Unlock()
	if s.Leader == "" {
		st.NotFollowed = n.peers.notFollowed()
	}
	st.DeadReason = cmp.Or(n.deadReason(), n.outsideReason(st))
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
	if m, ok := n.ElectionView().Member(st.NodeID); ok {
		return m.Lifecycle
	}
	return cluster.Joining
}

// Peers returns what this node knows about the other servers of the configuration. On the leader that comes from their
// acknowledgements. A follower knows only about the leader, and a node without a leader whether they answer its probes.
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
				p.TransferBlocked = stuckTransfer(inst, s.ID, st.Term)
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
		// The others would not vote for it, and this node would not follow it.
		p.Reasons = append(p.Reasons, "has not adopted the cluster's ID yet")
	}
	switch {
	case st.Role == cluster.Leader:
		ack := n.deps.PeerAck(id)
		if !ack.LastContact.IsZero() {
			p.Contacted, p.LastContact = true, time.Since(ack.LastContact)
		}
		if ack.Term == st.Term {
			p.MatchIndex = ack.MatchIndex
		}
		p.LagEntries = st.LastLogIndex - min(p.MatchIndex, st.LastLogIndex)
	case id == st.LeaderID && st.LeaderContactAge >= 0:
		p.Contacted, p.LastContact = true, st.LeaderContactAge
	case st.LeaderID == "":
		now := time.Now()
		if p.Contacted = !answered.IsZero(); p.Contacted {
			p.LastContact = now.Sub(answered)
		}
		n.mu.Lock()
		leaderless := n.elections.leaderlessFor(now)
		n.mu.Unlock()
		if silent := unanswered(leaderless, p); silent > 0 {
			p.AddSilence(silent)
		}
	}
	if st.Role == cluster.Leader || id == st.LeaderID {
		if !p.Contacted && st.Role == cluster.Leader {
			p.Reasons = append(p.Reasons, "not heard from since this node leads")
		} else if !p.Contacted {
			p.Reasons = append(p.Reasons, "not heard from yet")
		} else if p.LastContact > n.contactLimit() {
			p.AddSilence(p.LastContact)
		}
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}

// answerLimit is how long a peer may leave a probe unanswered; a node without a leader probes every probeInterval.
const answerLimit = 3 * probeInterval

// unanswered returns for how long a peer has not answered a node without a leader; 0 while that means nothing.
// Followers exchange no messages while there is a leader.
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

// contactLimit returns how long a peer may be silent before it counts as not in contact.
func (n *Node) contactLimit() time.Duration { return 2 * n.cfg.TimeoutMax }

// inContact reports whether a peer has responded to this leader recently.
func (n *Node) inContact(id cluster.NodeID) bool {
	last := n.deps.PeerAck(id).LastContact
	return !last.IsZero() && time.Since(last) <= n.contactLimit()
}

func (n *Node) serverIDs() []cluster.NodeID {
	servers := n.Servers()
	ids := make([]cluster.NodeID, len(servers))
	for i, s := range servers {
		ids[i] = s.ID
	}
	return ids
}

// otherServers returns the servers of the configuration without this node.
func (n *Node) otherServers() []cluster.NodeID {
	return slices.DeleteFunc(n.serverIDs(), func(id cluster.NodeID) bool { return id == n.cfg.Self.NodeID })
}

// ReadsVersion returns the highest command version that all servers are known to apply. It says nothing about commands
// of a version in the log (Readable).
func (n *Node) ReadsVersion() uint32 { return n.View().MinSupportedVersion(n.serverIDs()) }

// Readable reports whether a command may be proposed: all servers can apply it, or its version is in the log.
func (n *Node) Readable(cmd *state.Command) bool {
	return cmd.NeededVersion(n.View().CommandVersion()) <= n.ReadsVersion()
}

// LoadFile returns a small file that another package keeps in the data directory, as storage.Storage does.
func (n *Node) LoadFile(name string) ([]byte, error) { return n.store.Load(name) }

// SaveFile replaces such a file, durably.
func (n *Node) SaveFile(name string, data []byte) error { return n.store.Save(name, data) }

// Servers returns Raft's latest configuration, nil while Raft does not run. It is cheap.
func (n *Node) Servers() []cluster.Server {
	if inst := n.inst.Load(); inst != nil {
		return inst.Servers()
	}
	return nil
}

// Claim returns what this node tells its peers about itself and about the leader that it knows. The transport adds what
// its connections know. It holds no lock for longer than a copy, and sends nothing.
func (n *Node) Claim() cluster.Claim {
	st := n.Status()
	c := cluster.Claim{
		NodeID: st.NodeID, ClusterID: st.ClusterID, Generation: st.Generation, BootID: n.cfg.Self.BootID,
		Term: st.Term, Role: st.Role, LeaderID: st.LeaderID, LeaderContactAge: st.LeaderContactAge,
		LastLogIndex: st.LastLogIndex, AppliedIndex: st.AppliedIndex,
		Priority: n.cfg.Self.Priority, Eligible: n.cfg.Self.Eligible, IsVoter: st.Suffrage() == cluster.Voter,
		Lifecycle: st.Lifecycle, Draining: st.Lifecycle == cluster.Draining, Disk: st.Disk,
	}
	view := n.ElectionView()
	if m, ok := view.Member(st.NodeID); ok {
		c.Priority, c.Eligible = m.Priority, m.Eligible
	}
	c.Paused = !view.AutoFailover(time.Now())
	if inst := n.inst.Load(); inst != nil {
		// Newer than the last sample: an election is about the present.
		s := inst.SoftState()
		c.Term, c.Role, c.LeaderID = s.Term, s.Role, s.Leader
		c.LastLogIndex, c.LastLogTerm = inst.LastEntry()
	}
	return c
}
