package consensus

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

const identityName = "identity.json"

// identityFile is the identity of a data directory, and what it must know before its log is applied again.
type identityFile struct {
	cluster.Identity
	// Bootstrap is the digest of the cluster-name and initial-cluster that it was bootstrapped with; "": it was not.
	Bootstrap string `json:"bootstrap,omitempty"`
	// BootstrapIncarnations holds the incarnations of the peers that this data directory, or a peer, bootstrapped with.
	// Each counts until the roster has one for that node.
	BootstrapIncarnations map[cluster.NodeID]string `json:"met,omitempty"`
	// JoinOnly is set once a cluster with an ID was found, or join was configured: it never bootstraps then.
	JoinOnly bool `json:"waits,omitempty"`
	// Roster holds the member records that admission needs, as of RosterIndex: a restarted node's state is older.
	Roster      map[cluster.NodeID]cluster.Record `json:"roster,omitempty"`
	RosterIndex uint64                            `json:"roster_index,omitempty"`
	RosterTerm  uint64                            `json:"roster_term,omitempty"` // 0: unknown
	// LeasePromise is the promise of this process, or a longer one of an earlier process that may bind yet.
	LeasePromise time.Duration `json:"lease_promise,omitempty"`
	// AbandonedRestore is where a restore ended that the cluster has continued without. AbandonedFor is the term of the
	// leader that has shown it. The next start of Raft undoes the restore, and clears both.
	AbandonedRestore raftnode.LogPosition `json:"undone,omitzero"`
	AbandonedFor     uint64               `json:"undone_for,omitempty"`
	// Recovery is how this data directory got to its generation; nil unless it was the recovered one.
	Recovery *recoveryRecord `json:"recovery,omitempty"`
}

// fileStore is the part of a storage that identities need.
type fileStore interface {
	Load(name string) ([]byte, error)
	Save(name string, data []byte) error
}

// identity is the durable identity. get does not block, in any goroutine. What it returns is on disk and never changes.
type identity struct {
	files    fileStore
	cur      atomic.Pointer[identityFile]
	writeSem chan struct{} // capacity 1: the holder may write; not a mutex, because writing blocks
}

// openIdentity loads the identity of a data directory, or creates one.
func openIdentity(files fileStore, self cluster.NodeID, entropy io.Reader) (*identity, error) {
	i := &identity{files: files, writeSem: make(chan struct{}, 1)}
	f, err := readIdentity(files)
	if errors.Is(err, fs.ErrNotExist) {
		incarnation, err := randomID(entropy)
		if err != nil {
			return nil, err
		}
		fresh := identityFile{Identity: cluster.Identity{NodeID: self, Incarnation: incarnation}}
		return i, i.save(&fresh)
	}
	if err != nil {
		return nil, err
	}
	if f.NodeID != self {
		return nil, configError(
			"the data directory belongs to node %s, but id is %s: set id to %[1]s or use another data directory",
			f.NodeID, self)
	}
	i.cur.Store(&f)
	return i, nil
}

func readIdentity(files fileStore) (f identityFile, err error) {
	data, err := files.Load(identityName)
	if err != nil {
		return f, fmt.Errorf("load identity: %w", err)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("load identity: %s is damaged: %w", identityName, err)
	}
	if f.Incarnation == "" {
		return f, fmt.Errorf("load identity: %s is damaged: no incarnation", identityName)
	}
	return f, nil
}

func (i *identity) get() identityFile { return *i.cur.Load() }

// start returns the data directory's stage in the first start of its cluster.
func (f *identityFile) start() cluster.Start {
	switch {
	case f.JoinOnly:
		return cluster.StartJoinOnly
	case f.Bootstrap != "":
		return cluster.StartBootstrapped
	}
	return cluster.StartUndecided
}

// update saves a copy that change was given, if that returns true. change must replace the maps in it, not edit them.
func (i *identity) update(change func(*identityFile) (bool, error)) error {
	i.writeSem <- struct{}{}
	defer func() { <-i.writeSem }()
	next := i.get()
	if changed, err := change(&next); err != nil || !changed {
		return err
	}
	return i.save(&next)
}

func (i *identity) save(f *identityFile) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	if err := i.files.Save(identityName, append(data, '\n')); err != nil {
		return fmt.Errorf("save identity: %w", err)
	}
	i.cur.Store(f)
	return nil
}

// adopt makes a cluster's ID this data directory's own, together with the roster: a node with an ID and without a
// roster could not let others adopt the ID. A different ID that is there already is an error.
func (i *identity) adopt(clusterID string, generation cluster.Generation, roster *cluster.Roster) (adopted bool,
	err error,
) {
	if have := i.get(); have.ClusterID == clusterID && have.Generation == generation {
		return false, nil // the usual case, without waiting for a writer
	}
	err = i.update(func(f *identityFile) (bool, error) {
		switch f.ClusterID {
		case "":
			f.ClusterID, f.Generation = clusterID, generation
			if roster != nil && roster.Index > f.RosterIndex {
				f.setRoster(roster)
			}
			adopted = true
			return true, nil
		case clusterID:
			return false, nil // only a recovery changes its generation
		}
		return false, fmt.Errorf("this data directory belongs to cluster %s and not to %s", f.ClusterID, clusterID)
	})
	return adopted && err == nil, err
}

// addIncarnations records data directories durably. The first one of a node counts.
func (i *identity) addIncarnations(met map[cluster.NodeID]string) error {
	if have := i.get(); !have.addIncarnations(met) {
		return nil // the usual case, without waiting for a writer
	}
	return i.update(func(f *identityFile) (bool, error) { return f.addIncarnations(met), nil })
}

func (f *identityFile) addIncarnations(met map[cluster.NodeID]string) bool {
	all := maps.Clone(met)
	maps.Copy(all, f.BootstrapIncarnations)
	changed := !maps.Equal(all, f.BootstrapIncarnations)
	f.BootstrapIncarnations = all
	return changed
}

// rosterOf returns what admission needs of the member records as of an entry.
func rosterOf(members []cluster.Member, index, term uint64) *cluster.Roster {
	records := make(map[cluster.NodeID]cluster.Record, len(members))
	for _, m := range members {
		if m.Incarnation != "" || m.Removed {
			records[m.ID] = cluster.Record{Incarnation: m.Incarnation, Removed: m.Removed}
		}
	}
	return &cluster.Roster{Index: index, Term: term, Records: records}
}

// setRoster replaces the roster, and drops its nodes from BootstrapIncarnations. A re-admission later clears a node's
// record in the roster; its old incarnation must not return then.
func (f *identityFile) setRoster(roster *cluster.Roster) {
	f.Roster, f.RosterIndex, f.RosterTerm = roster.Records, roster.Index, roster.Term
	f.BootstrapIncarnations = maps.Clone(f.BootstrapIncarnations)
	maps.DeleteFunc(f.BootstrapIncarnations, func(id cluster.NodeID, _ string) bool {
		_, recorded := roster.Records[id]
		return recorded
	})
}

// keepRoster replaces the roster when the records differ.
func (i *identity) keepRoster(roster *cluster.Roster) error {
	if maps.Equal(roster.Records, i.get().Roster) {
		return nil
	}
	return i.update(func(f *identityFile) (bool, error) {
		if roster.Index <= f.RosterIndex {
			return false, nil
		}
		f.setRoster(roster)
		return true, nil
	})
}

// BootstrapDigest identifies a cluster-name and an initial-cluster in any order of its members; "" without members.
func BootstrapDigest(clusterName string, members []FirstMember) string {
	if len(members) == 0 {
		return ""
	}
	lines := make([]string, 0, len(members))
	for _, m := range members {
		lines = append(lines, fmt.Sprintf("%s=%s@%s", m.ID, m.RaftAddress, m.HTTPAddress))
	}
	slices.Sort(lines)
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", clusterName, lines))
	return hex.EncodeToString(sum[:8])
}

func randomID(entropy io.Reader) (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(entropy, b[:]); err != nil {
		return "", fmt.Errorf("read random bytes: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}
