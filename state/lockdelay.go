package state

import (
	"fmt"
	"time"
)

// A restore or a recovery replaces the state and ends all its sessions. Their clients may still act for a role until
// their own deadline, at most one TTL after the last renewal. So the role cannot be acquired for its lock delay: that
// TTL, the longest if several clients may act, which the leader measures from when it saw the new state.

// After a recovery it is unknown which roles the lost nodes granted, and to whom. So every role, known or not, has
// a lock delay: minRecoveryLockDelay, or the longest TTL of a session that took part in elections, at most
// maxRecoveryLockDelay. A session with a TTL of a day must not keep all roles vacant for a day.
const (
	minRecoveryLockDelay = 10 * time.Second
	maxRecoveryLockDelay = time.Minute
)

// ClusterLockDelay returns the lock delay of every role after a recovery, and the epoch that identifies it
// (ElectableRole.StateRevision). It returns 0 and 0 after its end.
func (v *View) ClusterLockDelay() (since uint64, d time.Duration) {
	if v.clusterLockDelay == 0 {
		return 0, 0
	}
	return v.epoch, v.clusterLockDelay
}

// LockDelay returns the whole lock delay of a role, which may be without a record. 0: none, or it is over.
func (v *View) LockDelay(r *Role) time.Duration { return max(r.LockDelay, v.clusterLockDelay) }

// holderTTL returns the TTL of a role's holder, or of the session from which it was revoked. 0: none.
func (v *View) holderTTL(r *Role) time.Duration {
	return max(r.LockDelay, v.ttlOf(r.Current.Session), v.ttlOf(r.RevokedFrom))
}

// candidatesTTL also counts the candidates: lost nodes may have elected one of them.
func (v *View) candidatesTTL(r *Role) time.Duration {
	longest := v.holderTTL(r)
	for _, c := range r.Queue {
		longest = max(longest, v.ttlOf(c.Session))
	}
	return longest
}

func (v *View) ttlOf(session string) time.Duration {
	if s, ok := v.Session(session); ok {
		return s.TTL
	}
	return 0
}

// recoveryLockDelay returns the lock delay of every role after a recovery.
func (v *View) recoveryLockDelay() time.Duration {
	longest := minRecoveryLockDelay
	for r := range v.RolesAfter("") {
		longest = max(longest, v.candidatesTTL(r))
	}
	return min(longest, maxRecoveryLockDelay)
}

// delayRolesOf sets lock delays for the role holders of a backup that is not from this cluster's past. The cluster of
// the backup may have been lost a moment ago, and have elected others after the backup. So every role has a lock delay,
// as after a recovery, if all members can read it. Required roles of the backup stay required, unless v knows them too:
// the last campaign here counts. The caller has ended the sessions of v and set its final revision.
func (v *View) delayRolesOf(backup *View) {
	roles := v.roles.edit()
	var marked []*Role // those that only their mark keeps
	for held := range backup.RolesAfter("") {
		r, known := roles.get(held.Name)
		if !known {
			r = &Role{Name: held.Name, StateRevision: v.revision, Required: held.Required}
			if last, ok := held.lastTenure(v.now, CauseRestored); ok {
				r.remember(last) // it keeps the record, and so the mark of a required role, after the delay
			}
		}
		if d := backup.holderTTL(held); d > r.LockDelay {
			delayed := *r
			delayed.LockDelay = d
			roles.put(r.Name, &delayed)
		} else if !known && r.Required && v.version >= RolesVersion {
			marked = append(marked, r)
		}
	}
	for _, r := range marked[:min(len(marked), max(0, MaxRoles-roles.tree.len()))] { // they prevent no restore
		roles.put(r.Name, r)
	}
	v.roles = roles.commit()
	v.clusterLockDelay = max(v.clusterLockDelay, backup.clusterLockDelay)
	if v.usableVersion() >= lockDelayVersion {
		v.clusterLockDelay = max(v.clusterLockDelay, backup.recoveryLockDelay())
	}
}

// checkLockDelays rejects an unpublished state with lock delays that some member cannot read, or with too many roles.
func (v *View) checkLockDelays() error {
	delayed := v.clusterLockDelay > 0
	for r := range v.RolesAfter("") {
		delayed = delayed || r.LockDelay > 0
	}
	switch {
	case v.roles.len() > MaxRoles:
		return fmt.Errorf("restore refused: backup and cluster together have more than %d roles", MaxRoles)
	case delayed && v.usableVersion() < lockDelayVersion:
		return fmt.Errorf("restore refused: roles are held and not all members support command version %d; "+
			"upgrade all members first", lockDelayVersion)
	case delayed:
		v.version = max(v.version, lockDelayVersion)
	}
	return nil
}

// endLockDelay ends the lock delay of the whole cluster and elects the waiting candidates.
func (w *txn) endLockDelay(since uint64) {
	if now, _ := w.ClusterLockDelay(); now != since || w.clusterLockDelay == 0 {
		return
	}
	w.clusterLockDelay = 0
	var waiting []string
	for r := range w.write.roles.all() {
		if !r.Held() && len(r.Queue) > 0 {
			waiting = append(waiting, r.Name)
		}
	}
	for _, name := range waiting {
		w.setRole(w.role(name), false)
	}
}
