package state

import (
	"net/http"
	"slices"
	"unicode/utf8"

	"northstar/cluster"
)

// Limits of member records and election records.
const (
	MaxMembers   = 1000 // records, tombstones included
	MaxElections = 1000
	maxText      = 1024    // bytes of an address, a zone and the like; a longer reason is cut
	maxVotes     = 8 << 10 // bytes of an election's votes; more are left out
)

func (m *memberRecord) check() *cluster.Error {
	if m.Removed {
		return cluster.Errorf(cluster.CodeBadRequest, "removed: a record is not written as removed, the member is removed")
	}
	return firstError(
		checkNode("id", m.ID), checkPriority(m.Priority),
		checkText("raft_address", m.RaftAddress), checkText("http_address", m.HTTPAddress), checkText("zone", m.Zone),
		checkText("incarnation", m.Incarnation), checkText("lifecycle", string(m.Lifecycle)), checkText("version", m.Version),
	)
}

func (p *MemberPatch) check() *cluster.Error {
	changed := memberRecord(cluster.Member{ID: p.ID, Priority: cluster.DefaultPriority})
	p.patch((*cluster.Member)(&changed))
	return changed.check()
}

func (p *MemberRemove) check() *cluster.Error { return checkNode("id", p.ID) }

// apply writes the whole record; it also takes a removed member back in.
func (m *memberRecord) apply(w *txn) Result {
	i, found := w.findMember(m.ID)
	if found {
		return w.setMember(i, cluster.Member(*m))
	}
	if len(w.members) >= MaxMembers {
		return Result{Err: cluster.Errorf(cluster.CodeBadRequest, "id: there are %d members and removed members already", MaxMembers)}
	}
	w.members = slices.Insert(slices.Clone(w.members), i, cluster.Member(*m))
	return Result{Created: true}
}

// setMember replaces one record. The list is copied: older Views share it.
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
		return Result{Err: cluster.Errorf(cluster.CodeConditionFailed, "incarnation: node %s is known with data directory %s", p.ID, m.Incarnation)}
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
	err := cluster.Errorf(cluster.CodeBadRequest, "id: node %q is not a member", id)
	err.Status = http.StatusNotFound
	return Result{Err: err}
}

func checkNode(name string, id cluster.NodeID) *cluster.Error {
	if _, err := cluster.ParseNodeID(string(id)); err != nil {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: %w", name, err)
	}
	return nil
}

func checkPriority(p int) *cluster.Error {
	if p < 0 || p > cluster.MaxPriority {
		return cluster.Errorf(cluster.CodeBadRequest, "priority: want 0 to %d, got %d", cluster.MaxPriority, p)
	}
	return nil
}

func checkText(name, text string) *cluster.Error {
	if len(text) > maxText || !utf8.ValidString(text) {
		return cluster.Errorf(cluster.CodeBadRequest, "%s: want at most %d bytes of UTF-8, got %d bytes", name, maxText, len(text))
	}
	return nil
}

func firstError(errs ...*cluster.Error) *cluster.Error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
