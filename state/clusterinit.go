package state

import "northstar/cluster"

func (p *ClusterInit) check() *cluster.Error {
	if p.ClusterID == "" {
		return cluster.Errorf(cluster.CodeBadRequest, "cluster_id: must not be empty")
	}
	if len(p.Members)+len(p.Roster) > MaxMembers {
		return cluster.Errorf(cluster.CodeBadRequest, "members: want at most %d", MaxMembers)
	}
	for i := range p.Members {
		if err := (*memberRecord)(&p.Members[i]).check(); err != nil {
			return err
		}
	}
	for _, id := range sortedKeys(p.Roster) {
		if err := firstError(checkNode("roster", id), checkText("roster", p.Roster[id])); err != nil {
			return err
		}
	}
	return firstError(checkText("cluster_id", p.ClusterID), checkGeneration(p.Generation))
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
