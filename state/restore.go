package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// revisionEpoch and secondsPerGeneration make a revision of a time: 12 days take the revisions of one generation. No
// cluster takes revisions that fast for long. So only recoveries and restores take one beyond the revision of its time.
const (
	revisionEpoch        = 1767225600 // 2026-01-01, in seconds since 1970
	secondsPerGeneration = 1 << 20
)

// revisionAt returns the revision of a time. It is in the first half of the revisions of its generation: a cluster that
// starts there does not reach those of the next one soon, so a recovery from an older snapshot still exceeds it. The
// result is bounded: a clock that is far ahead leaves half of the generations.
func revisionAt(now time.Time) uint64 {
	s := uint64(min(max(now.Unix()-revisionEpoch, 0), MaxGeneration/2*secondsPerGeneration))
	const perSecond = 1 << (revisionBits - 1) / secondsPerGeneration
	return firstRevision(s/secondsPerGeneration+1) + s%secondsPerGeneration*perSecond
}

// restoreRevisionGap is the increase of the revision at a restore, far greater than the number of writes in flight: a
// node may still show one of those. No watcher may continue from such a revision.
const restoreRevisionGap = 1 << 20

// ReadFrom replaces the state with a snapshot and returns the size of the snapshot. An error leaves the state
// unchanged. A truncated or altered snapshot, or one with bytes behind it, wraps ErrDamaged. One that needs a newer
// build is an *UnknownCommandError. Until the end both states are in memory.
func (s *State) ReadFrom(r io.Reader) (int64, error) {
	v, n, err := load(r, s.options)
	if err != nil {
		return n, fmt.Errorf("read snapshot: %w", err)
	}
	s.view.Store(v)
	for _, f := range s.feeds {
		f.replaced(v)
	}
	return n, nil
}

// Info describes a snapshot.
type Info struct {
	ClusterID       string             `json:"cluster_id"`
	Generation      cluster.Generation `json:"generation"`
	CommandVersion  uint32             `json:"command_version"` // that a build must support to read the snapshot
	Revision        uint64             `json:"revision"`
	AppliedIndex    uint64             `json:"applied_index"`
	AppliedTerm     uint64             `json:"applied_term"`
	RestoreEpoch    uint64             `json:"restore_epoch"`
	Keys            int                `json:"keys"`
	Bytes           int64              `json:"bytes"`            // of keys and values
	Changes         int                `json:"history_changes"`  // available to watchers
	IdempotencyKeys int                `json:"idempotency_keys"` // remembered
	Members         []cluster.Member   `json:"members"`
	Size            int64              `json:"size_bytes"` // of the snapshot
	SHA256          string             `json:"sha256"`     // of the snapshot, as sha256sum prints it
}

// Inspect reads and checks a whole snapshot without keeping it in memory. It returns the errors of State.ReadFrom,
// with one exception: only ReadFrom finds contradictions between sections with correct checksums.
func Inspect(r io.Reader) (Info, error) {
	h := sha256.New()
	l := newLoader(Options{HistoryRevisions: 1, HistoryBytes: 1})
	l.discard = true
	n, err := l.read(io.TeeReader(r, h))
	if err != nil {
		return Info{}, fmt.Errorf("inspect snapshot: %w", err)
	}
	v := l.view()
	return Info{
		ClusterID: v.clusterID, Generation: v.generation, CommandVersion: v.version, Revision: v.revision,
		AppliedIndex: v.index, AppliedTerm: v.term, RestoreEpoch: v.epoch,
		Keys: int(l.meta.records[sectionKeys]), Bytes: int64(l.meta.keyBytes),
		Changes:         int(l.meta.records[sectionHistory]),
		IdempotencyKeys: int(l.meta.records[sectionIdempotency]),
		Members:         slices.Clone(v.members), Size: n, SHA256: hex.EncodeToString(h.Sum(nil)),
	}, nil
}

// Backup is a snapshot that was read and checked for a restore.
type Backup struct{ view *View }

// ReadBackup reads and checks a whole backup into memory. It touches no state, and any goroutine may call it. It
// returns the errors of State.ReadFrom. A revision that leaves no room for more is damage too.
func ReadBackup(r io.Reader) (*Backup, error) {
	v, _, err := load(r, Options{HistoryRevisions: 1, HistoryBytes: 1})
	if err == nil && v.revision >= maxRevision/2 {
		err = damaged("revision %d is too high to continue from", v.revision)
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return &Backup{view: v}, nil
}

// MergeBackup returns the state after the restore of a backup. Keys and settings are those of the backup, all else
// is that of current, also the limits: a backup that exceeds them is restored, and the state cannot grow then. All
// sessions end, roles become vacant with a lock delay (Role.LockDelay), and keys of sessions are left out. The backup
// may be of another cluster.
//
// Keys keep their revisions of the backup. The state's revision exceeds both, so it never goes back. If the backup is
// not of this cluster's past, it also exceeds what the other cluster has given out after the backup (revisionBeyond),
// and every role has a lock delay; now is the time of the restore. The history is empty and the restore epoch increases
// by one, which ends all watches. The caller must hold back writes: those applied after the capture of current are
// lost. MergeBackup fails if some member of current could not read the backup or the result, or if the revision would
// leave no room for a recovery.
func MergeBackup(current *Snapshot, backup *Backup, now time.Time) (*Snapshot, error) {
	v, from := *current.view, backup.view
	if from.version > v.usableVersion() {
		return nil, fmt.Errorf("restore refused: not all members support command version %d of the backup",
			from.version)
	}
	ownPast := from.clusterID == v.clusterID && from.revision <= v.revision
	v.keys, v.bytes = withoutSessionKeys(from)
	v.settings = from.settings
	v.revision = max(v.revision, from.revision) + restoreRevisionGap
	if !ownPast {
		v.revision = max(v.revision, revisionBeyond(from, now))
		if most := firstRevision(MaxGeneration) - 1; v.revision > most { // so that a recovery can still exceed it
			return nil, fmt.Errorf("restore refused: the cluster would continue from revision %d, at most %d is allowed",
				v.revision, most)
		}
	}
	kept := v.KeepsReplaced() || from.KeepsReplaced()
	v.version = max(v.version, from.version)
	v.withoutTxns = v.version >= txnVersion && !kept
	v.forgetHistory()
	v.endSessions(CauseRestored, v.holderTTL, true)
	if !ownPast {
		v.delayRolesOf(from)
	}
	if err := v.checkLockDelays(); err != nil {
		return nil, err
	}
	v.recount()
	v.epoch++
	return &Snapshot{view: &v}, nil
}

// revisionBeyond returns a revision that exceeds those of the cluster that has made a backup and may have gone on
// until now. That cluster may have been recovered once, and so be in the next generation: both are exceeded, also if
// the clock is wrong. The result grows with the time, also if the backup's revision is ahead of its time, as after a
// restore. So it exceeds earlier restores of the same backup into clusters that were lost, too.
func revisionBeyond(backup *View, now time.Time) uint64 {
	recovered := backup.revision>>revisionBits + 2                               // its generation after one recovery
	ahead := recovered - min(recovered, revisionAt(backup.Time())>>revisionBits) // of the time
	return max(firstRevision(recovered+1), revisionAt(now)+ahead<<revisionBits)
}

// forgetHistory makes the present revision the first one that watches and reads at a revision may name.
func (v *View) forgetHistory() {
	v.history = historyAfter(v.revision)
	if v.KeepsReplaced() {
		v.valuesSince = v.revision
	}
}

// withoutSessionKeys returns the keys that belong to no session, and the number of their bytes.
func withoutSessionKeys(v *View) (*tree[string, *Item], int64) {
	txn, size := v.keys.edit(), v.bytes
	for key := range v.ownership.from("") {
		_, owned, _ := strings.Cut(key, "\x00") // kind and name
		if ownedKind(owned[0]) == ownedKey {
			if it, ok := txn.remove(owned[1:]); ok {
				size -= it.size()
			}
		}
	}
	return txn.commit(), size
}

// endSessions ends every session of a View that is not published yet. It writes no events: no watch outlasts a restore
// or a recovery. lockDelay returns the lock delay of a role. required keeps the marks of required roles.
func (v *View) endSessions(cause Cause, lockDelay func(*Role) time.Duration, required bool) {
	roles := v.roles.edit()
	for r := range v.RolesAfter("") {
		vacant := &Role{
			Name: r.Name, History: r.History, StateRevision: v.revision, Elections: r.Elections,
			LockDelay: lockDelay(r), Required: required && r.Required,
		}
		if r.Held() {
			vacant.remember(r.Current.ended(v.now, cause))
		}
		if v.keepsRecord(vacant) {
			roles.put(r.Name, vacant)
		} else {
			roles.remove(r.Name)
		}
	}
	v.roles = roles.commit()
	v.sessions, v.ownership = new(tree[string, *Session]), new(tree[string, struct{}])
	nodes := v.appNodes.edit()
	for n := range v.AppNodesAfter("") {
		if n.Status != AppDead {
			dead := *n
			dead.Session, dead.Status, dead.ChangedAt, dead.Revision = "", AppDead, v.now, v.revision
			nodes.put(n.ID, &dead)
		}
	}
	v.appNodes = nodes.commit()
	v.roleChanges, v.nodeChanges = historyAfter(v.revision), historyAfter(v.revision)
}

// ended returns a tenure as it is remembered after its end.
func (t Tenure) ended(at int64, cause Cause) Tenure {
	t.Value, t.EndedAt, t.Cause = "", at, cause
	return t
}

// lastTenure returns the tenure of the holder, ended now, or the one that ended last; false: it never had any.
func (r *Role) lastTenure(now int64, cause Cause) (Tenure, bool) {
	switch n := len(r.History); {
	case r.Held():
		return r.Current.ended(now, cause), true
	case n > 0:
		return r.History[n-1], true
	}
	return Tenure{}, false
}

// remember adds an ended tenure to the history.
func (r *Role) remember(ended Tenure) {
	r.History = append(slices.Clone(r.History[max(0, len(r.History)+1-MaxTenures):]), ended)
}

// ownershipOf returns the index of what sessions own. An owner that is not a live session is damage.
func ownershipOf(v *View) (*tree[string, struct{}], error) {
	txn := new(tree[string, struct{}]).edit()
	var err error
	own := func(session string, kind ownedKind, name string) {
		if _, live := v.Session(session); !live {
			err = cmp.Or(err, damaged("%q belongs to session %q, which is not live", name, session))
		} else if _, twice := txn.put(ownershipKey(session, kind, name), struct{}{}); twice {
			err = cmp.Or(err, damaged("%q belongs to session %q twice", name, session))
		}
	}
	for item := range v.keys.after("") {
		if item.Session != "" {
			own(item.Session, ownedKey, item.Key)
		}
	}
	for r := range v.RolesAfter("") {
		if r.Held() {
			own(r.Current.Session, ownedRole, r.Name)
		}
		if r.RevokedFrom != "" {
			own(r.RevokedFrom, ownedRevocation, r.Name)
		}
		for _, c := range r.Queue {
			own(c.Session, ownedCandidacy, r.Name)
		}
	}
	for n := range v.AppNodesAfter("") {
		if n.Session != "" {
			own(n.Session, ownedNode, n.ID)
		}
	}
	return txn.commit(), err
}
