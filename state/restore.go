package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"northstar/cluster"
)

// restoreRevisionGap is how far a restore moves the revision on. It is far more than the
// number of writes that can be on their way: on some node one of those may still
// be applied, and seen, just before the restored state replaces its effect, and
// no watcher may take up from such a revision as if nothing had happened.
const restoreRevisionGap = 1 << 20

// ReadFrom replaces the state by a snapshot, of which it returns the size. On
// any error nothing has changed. A snapshot that is cut short, altered or
// followed by more bytes wraps ErrDamaged; one that needs a newer build is an
// *UnknownCommandError. Until the end both states are in memory.
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
	CommandVersion  uint32             `json:"command_version"` // that a build must read to use it
	Revision        uint64             `json:"revision"`
	AppliedIndex    uint64             `json:"applied_index"`
	AppliedTerm     uint64             `json:"applied_term"`
	RestoreEpoch    uint64             `json:"restore_epoch"`
	Keys            int                `json:"keys"`
	Bytes           int64              `json:"bytes"`            // of keys and values
	Changes         int                `json:"history_changes"`  // that watchers can still get
	IdempotencyKeys int                `json:"idempotency_keys"` // that are remembered
	Members         []cluster.Member   `json:"members"`
	Size            int64              `json:"size_bytes"` // of the snapshot
	SHA256          string             `json:"sha256"`     // of the snapshot, as sha256sum prints it
}

// Inspect reads and checks a whole snapshot without keeping it in memory. Its
// errors are those of State.ReadFrom, but for content that contradicts itself
// across sections under correct checksums, which only ReadFrom finds.
func Inspect(r io.Reader) (Info, error) {
	h := sha256.New()
	l := newLoader(Options{HistoryRevisions: 1, HistoryBytes: 1})
	l.discard = true
	n, err := l.read(io.TeeReader(r, h))
	if err != nil {
		return Info{}, fmt.Errorf("inspect snapshot: %w", err)
	}
	v := &l.meta.view
	return Info{
		ClusterID: v.clusterID, Generation: v.generation, CommandVersion: v.version, Revision: v.revision,
		AppliedIndex: v.index, AppliedTerm: v.term, RestoreEpoch: v.epoch,
		Keys: int(l.meta.keys), Bytes: int64(l.meta.keyBytes), Changes: int(l.meta.changes), IdempotencyKeys: int(l.meta.idem),
		Members: slices.Clone(v.members), Size: n, SHA256: hex.EncodeToString(h.Sum(nil)),
	}, nil
}

// Backup is a snapshot that was read and checked, to be restored.
type Backup struct{ view *View }

// ReadBackup reads and checks a whole backup, into memory. It touches no state,
// and may be called by any goroutine. Errors are those of State.ReadFrom; a
// revision too high to go on from is damage too.
func ReadBackup(r io.Reader) (*Backup, error) {
	v, _, err := load(r, Options{HistoryRevisions: 1, HistoryBytes: 1})
	if err == nil && v.revision >= maxRevision/2 {
		err = damaged("revision %d leaves no room to go on from", v.revision)
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return &Backup{view: v}, nil
}

// MergeBackup makes the state that restoring a backup gives: keys and settings
// are the backup's, everything else is current's. All sessions end, roles are
// vacated, and keys tied to a session are left out. The backup may be of another
// cluster. Keys keep the revisions that they have in the backup; the state's own
// revision goes beyond both, so that it never goes back. History is empty and
// the restore epoch is one higher, which ends all watches. Writes applied
// between the capture and the moment when the result replaces the state are
// lost: the caller holds writes back. Roles wait for who may still believe to hold
// them (Role.Await). It fails for a backup, or a result, that some member of current
// could not read.
func MergeBackup(current *Snapshot, backup *Backup) (*Snapshot, error) {
	v, from := *current.view, backup.view
	if from.version > v.MinSupportedVersion(v.present()) {
		return nil, fmt.Errorf("the backup needs command version %d, which not every member reads yet", from.version)
	}
	v.keys, v.bytes = withoutSessionKeys(from)
	v.settings = from.settings
	v.revision = max(v.revision, from.revision) + restoreRevisionGap
	v.version = max(v.version, from.version)
	v.history = history{floor: v.revision}
	v.endSessions(CauseRestored, v.holderTTL)
	if from.clusterID != v.clusterID || from.revision > current.view.revision {
		v.delayRolesOf(from)
	}
	if err := v.checkLockDelays(); err != nil {
		return nil, err
	}
	v.epoch++
	return &Snapshot{view: &v}, nil
}
