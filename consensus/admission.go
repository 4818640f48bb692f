package consensus

import (
	"slices"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// LocalPeer returns this node's description for its hellos.
func (n *Node) LocalPeer() cluster.Peer {
	p, ident := n.cfg.Self, n.ident.get()
	p.Identity = ident.Identity
	if ident.ClusterID != "" {
		p.Roster = &cluster.Roster{Index: ident.RosterIndex, Term: ident.RosterTerm, Records: ident.Roster}
	} else if ident.Bootstrap != "" {
		p.Roster = bootstrapRoster(ident.BootstrapIncarnations)
	}
	p.CommandVersion, p.RecordedIndex = state.CommandVersion, ownRecordIndex(n.View(), ident.Identity)
	p.Bootstrap, p.Start = n.digest, ident.start()
	p.LeasePromise = n.cfg.LeasePromise()
	p.Survivors = missingSurvivors(ident.Recovery, ident.Generation, n.View())
	if ident.Bootstrap != "" {
		p.Bootstrap = ident.Bootstrap // initial-cluster may have been removed from the configuration since
	}
	return p
}

// ownRecordIndex returns the index as of which the state names self's data directory, 0 when it does not. An
// uncommitted restore changes neither: it keeps the members and the index of their records.
func ownRecordIndex(v *state.View, self cluster.Identity) uint64 {
	if v.Record(self.NodeID) != (cluster.Record{Incarnation: self.Incarnation}) {
		return 0
	}
	return v.AppliedIndex()
}

// Record returns what this node knows about a member, for admission, and what other members confirm of it.
func (n *Node) Record(id cluster.NodeID) cluster.Record {
	v, ident := n.View(), n.ident.get()
	known := func(id cluster.NodeID) cluster.Record {
		rec := ident.recordOf(id, v)
		rec.Unknown = rec.Incarnation == "" && !rec.Removed && n.isStranger(id, v, &ident)
		return rec
	}
	rec := known(id)
	n.peers.compare(ident.Identity, id, &rec, known)
	if rec.Incarnation == ident.BootstrapIncarnations[id] {
		rec.Superseded = false // this node has met it, and the cluster may not have recorded it yet
	}
	return rec
}

// isStranger reports whether neither this node's newest configuration nor a record has a node. A record without a data
// directory is of a member that was re-admitted, or not heard of yet. A member may be missing in the configuration,
// because the change that removes it is never committed. Without a configuration there are no strangers.
func (n *Node) isStranger(id cluster.NodeID, v *state.View, f *identityFile) bool {
	servers := n.Servers()
	_, isServer := cluster.FindServer(servers, id)
	_, isMember := v.Member(id)
	_, inRoster := f.Roster[id]
	return len(servers) > 0 && !isServer && !isMember && !inRoster
}

// recordOf returns what this node itself knows about a member. The roster on disk counts until the state has caught up
// with it after a restart. For a member in neither it is the data directory that this node bootstrapped with.
func (f *identityFile) recordOf(id cluster.NodeID, v *state.View) cluster.Record {
	rec := f.Roster[id]
	if v.AppliedIndex() >= f.RosterIndex {
		rec = v.Record(id)
	}
	if rec == (cluster.Record{}) {
		rec.Incarnation = f.BootstrapIncarnations[id]
	}
	rec.AsOfIndex = max(v.AppliedIndex(), f.RosterIndex)
	return rec
}

func bootstrapRoster(met map[cluster.NodeID]string) *cluster.Roster {
	r := &cluster.Roster{Records: make(map[cluster.NodeID]cluster.Record, len(met))}
	for id, incarnation := range met {
		r.Records[id] = cluster.Record{Incarnation: incarnation}
	}
	return r
}

// RecordIncarnation records the data directory of a peer without a cluster ID durably, if none is recorded and both
// have bootstrapped. The transport calls it before it evaluates a hello.
func (n *Node) RecordIncarnation(p cluster.Peer) error {
	if rec := n.Record(p.NodeID); rec.Incarnation != "" || rec.Removed || !cluster.MayRecordIncarnation(n.LocalPeer(),
		p) || !n.inFirstConfiguration(p.NodeID) {
		return nil
	}
	return n.ident.addIncarnations(map[cluster.NodeID]string{p.NodeID: p.Incarnation})
}

func (n *Node) inFirstConfiguration(id cluster.NodeID) bool {
	if slices.ContainsFunc(n.cfg.InitialCluster, func(m FirstMember) bool { return m.ID == id }) {
		return true
	}
	_, ok := cluster.FindServer(n.Servers(), id)
	return ok
}

// Adopt makes the cluster of a peer this data directory's own, durably. The transport calls it before it accepts the
// first entry of a leader with a cluster ID, or when a peer lets this node adopt the ID.
func (n *Node) Adopt(from cluster.Peer) error {
	adopted, err := n.ident.adopt(from.ClusterID, from.Generation, from.Roster)
	if adopted {
		n.peers.forgetRefusals()
		raftnode.Notify(n.peers.kick) // a first start decides by it
	}
	return err
}
