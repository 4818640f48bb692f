package state

import (
	"slices"

	"northstar/cluster"
)

// Limits of member records and election records.
const (
	MaxMembers   = 1000 // records, with those of removed members
	MaxElections = 1000
	maxText      = 1024    // bytes of an address, a zone and similar texts; a longer reason is truncated
	maxVotes     = 8 << 10 // bytes of an election's votes; longer votes are not recorded
)

func (m *memberRecord) check() *cluster.Error {
	if m.Removed {
		return badRequest("removed: must be false: MemberRemove removes a member")
	}
	return firstError(
		checkNode("id", m.ID), checkRange("priority", m.Priority, 0, cluster.MaxPriority),
		checkText("raft_address", m.RaftAddress), checkText("http_address", m.HTTPAddress), checkText("zone", m.Zone),
		checkText("incarnation", m.Incarnation), checkText("lifecycle", string(m.Lifecycle)),
		checkText("version", m.Version),
	)
}

func (p *MemberPatch) check() *cluster.Error {
	changed := memberRecord(cluster.Member{ID: p.ID, Priority: cluster.DefaultPriority})
	p.patch((*cluster.Member)(&changed))
	return changed.check()
}

func (p *MemberRemove) check() *cluster.Error { return checkNode("id", p.ID) }

// apply writes the whole record. It re-admits a removed member.
func (m *memberRecord) apply(w *txn) Result {
	i, found := w.findMember(m.ID)
	if found {
		return w.setMember(i, cluster.Member(*m))
	}
	if len(w.members) >= MaxMembers {
		return Result{Err: badRequest("id: there are %d members and removed members already", MaxMembers)}
	}
	w.members = slices.Insert(slices.Clone(w.members), i, cluster.Member(*m))
	return Result{Created: true}
}

// setMember replaces one record. It copies the list, which older Views share.
func (w *txn) setMember(i int, m cluster.Member) Result {
	w.members = slices.Clone(w.members)
	w.members[i] = m
	return Result{}
}

func (p *MemberPatch) apply(w *txn) Result {
	i, ok := w.findMember(p.ID)
	if !ok || w.members[i].Removed {
		return noMember(p.ID)
	}
	m := w.members[i]
	if p.Incarnation != nil && *p.Incarnation != "" && m.Incarnation != "" && m.Incarnation != *p.Incarnation {
		return failed(cluster.CodeConditionFailed, "incarnation: node %s is known with data directory %s", p.ID,
			m.Incarnation)
	}
	p.patch(&m)
	return w.setMember(i, m)
}

func (p *MemberPatch) patch(m *cluster.Member) {
	setIf(&m.RaftAddress, p.RaftAddress)
	setIf(&m.HTTPAddress, p.HTTPAddress)
	setIf(&m.Priority, p.Priority)
	setIf(&m.Eligible, p.Eligible)
	setIf(&m.Zone, p.Zone)
	setIf(&m.Incarnation, p.Incarnation)
	setIf(&m.Lifecycle, p.Lifecycle)
	setIf(&m.Version, p.Version)
	setIf(&m.Reads, p.SupportedVersion)
}

func setIf[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (p *MemberRemove) apply(w *txn) Result {
	i, ok := w.findMember(p.ID)
	if !ok || w.members[i].Removed {
		return noMember(p.ID)
	}
	m := w.members[i]
	m.Removed = true
	return w.setMember(i, m)
}

func noMember(id cluster.NodeID) Result {
	return Result{Err: notFound("id: node %q is not a member", id)}
}

func (p *ClusterInit) check() *cluster.Error {
	if p.ClusterID == "" {
		return badRequest("cluster_id: must not be empty")
	}
	return firstError(
		checkRange("members", len(p.Members)+len(p.Roster), 0, MaxMembers),
		checkEach(p.Members, func(m cluster.Member) *cluster.Error { return (*memberRecord)(&m).check() }),
		checkEach(sortedKeys(p.Roster), func(id cluster.NodeID) *cluster.Error {
			return firstError(checkNode("roster", id), checkText("roster", p.Roster[id]))
		}),
		checkText("cluster_id", p.ClusterID), checkGeneration(p.Generation))
}

func (p *ClusterInit) apply(w *txn) Result {
	if w.clusterID != "" {
		return Result{}
	}
	w.clusterID, w.generation = p.ClusterID, p.Generation
	w.revision = max(w.revision, firstRevision(p.Generation.Number))
	w.settings = Settings{AutoFailover: p.AutoFailover}
	for i := range p.Members {
		(*memberRecord)(&p.Members[i]).apply(w)
	}
	for _, id := range sortedKeys(p.Roster) {
		m, ok := w.Member(id)
		if !ok {
			m = cluster.Member{ID: id, Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Joining}
		}
		m.Incarnation = p.Roster[id]
		(*memberRecord)(&m).apply(w)
	}
	return Result{Created: true}
}

func (p *SettingsChange) check() *cluster.Error {
	return firstError(checkText("reason", p.Reason), checkText("operator", p.Operator))
}

func (p *SettingsChange) apply(w *txn) Result {
	w.settings = Settings(*p)
	return Result{}
}
