package state

import (
	"fmt"
	"time"
)

// A state that is replaced, by a backup or by that of a recovery, takes its
// sessions with it, while the clients of some may still act for a role: until their
// own deadline, which ends within a TTL of a renewal that was answered before. So
// nobody is elected to such a role for that long, counted by the leader from when it
// has seen the new state. Where several may act for one role the longest TTL counts.

// After a recovery nobody knows what the lost nodes granted, and to whom. Every
// role, known here or not, waits for as long as a session lives that asks for nothing
// else, and for the longest TTL with which anybody here takes part in elections, up to
// a minute: one session of a day must not keep all roles vacant for a day.
const (
	minRecoveryLockDelay = 10 * time.Second
	maxRecoveryLockDelay = time.Minute
)

// ClusterLockDelay gives for how long every role waits since a recovery, and what names that
// wait (Vacancy.Since); 0 and 0 when it is over.
func (v *View) ClusterLockDelay() (since uint64, d time.Duration) {
	if v.clusterLockDelay == 0 {
		return 0, 0
	}
	return v.epoch, v.clusterLockDelay
}

// LockDelay is how long a role, which there need be no record of, waits in all for who
// may still believe to hold it; 0: for nobody, or that is over.
func (v *View) LockDelay(r *Role) time.Duration { return max(r.LockDelay, v.clusterLockDelay) }

// holderTTL is the TTL of who may act for a role: its holder, or whom it was taken
// from; 0: nobody.
func (v *View) holderTTL(r *Role) time.Duration {
	return max(r.LockDelay, v.ttlOf(r.Current.Session), v.ttlOf(r.RevokedFrom))
}

// candidatesTTL is that of whoever may have been elected, too, by somebody else.
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

// recoveryLockDelay is what every role waits for after a recovery.
func (v *View) recoveryLockDelay() time.Duration {
	longest := minRecoveryLockDelay
	for r := range v.RolesAfter("") {
		longest = max(longest, v.candidatesTTL(r))
	}
	return min(longest, maxRecoveryLockDelay)
}

// delayRolesOf makes roles wait for their holders in a backup that is not of this
// cluster's past: the cluster that it is of may have been lost a moment ago. The
// caller's roles have ended, and its revision is the final one.
func (v *View) delayRolesOf(backup *View) {
	roles := v.roles.Txn()
	for held := range backup.RolesAfter("") {
		r, known := roles.Get([]byte(held.Name))
		if !known {
			r = &Role{Name: held.Name, StateRevision: v.revision}
		}
		if d := backup.holderTTL(held); d > r.LockDelay {
			waiting := *r
			waiting.LockDelay = d
			roles.Insert([]byte(r.Name), &waiting)
		}
	}
	v.roles = roles.CommitOnly()
	v.clusterLockDelay = max(v.clusterLockDelay, backup.clusterLockDelay)
}

// checkLockDelays refuses a state in the making whose roles wait when a member cannot
// read that, or when there are too many of them.
func (v *View) checkLockDelays() error {
	waits := v.clusterLockDelay > 0
	for r := range v.RolesAfter("") {
		waits = waits || r.LockDelay > 0
	}
	switch {
	case v.roles.Len() > MaxRoles:
		return fmt.Errorf("the roles of the backup and those of this cluster are more than %d", MaxRoles)
	case waits && v.MinSupportedVersion(v.present()) < lockDelayVersion:
		return fmt.Errorf("somebody holds a role, and not every member reads command version %d, which makes the next one wait: upgrade every member first", lockDelayVersion)
	case waits:
		v.version = max(v.version, lockDelayVersion)
	}
	return nil
}

// endLockDelay is the end of what every role waited for since a recovery.
func (w *txn) endLockDelay(since uint64) {
	if now, _ := w.ClusterLockDelay(); now != since || w.clusterLockDelay == 0 {
		return
	}
	w.clusterLockDelay = 0
	var waiting []string
	for r := range values(w.writeRoles().Root()) {
		if !r.Held() && len(r.Queue) > 0 {
			waiting = append(waiting, r.Name)
		}
	}
	for _, name := range waiting {
		w.setRole(w.role(name), false)
	}
}
