package state

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// View is an immutable snapshot of the state, for any number of goroutines. What
// its methods return must not be changed.
//
// Invariants: revision is ≥ every revision in keys and history, and never goes
// back from one View to the next, also across ReadFrom of a merged backup and
// across Recovery, after which no key has a revision of the generation before;
// members are sorted by ID; elections are in order of term.
type View struct {
	clusterID  string
	generation cluster.Generation
	revision   uint64
	index      uint64 // of the last log entry applied
	term       uint64 // of that entry
	now        int64  // highest command time applied, Unix nanoseconds
	epoch      uint64 // number of restores from a backup, and of recoveries
	version    uint32 // highest command version ever applied

	keys        *iradix.Tree[*Item]
	bytes       int64 // of keys and values in keys
	history     history
	idempotency idempotencyTable
	members     []cluster.Member
	elections   []Election
	settings    Settings
	audit       auditLog

	sessions         *iradix.Tree[*Session] // those that live, by ID
	roles            *iradix.Tree[*Role]    // by name
	roleChanges      history                // elections and vacancies; an item's key is the role's name and a NUL
	appNodes         *iradix.Tree[*AppNode] // by ID
	nodeChanges      history                // of the application nodes; an item's key is the node's ID
	ownership        *iradix.Tree[struct{}] // what each session holds; follows from keys, roles and nodes
	clusterLockDelay time.Duration          // that every role waits for at least, since a recovery; 0: that is over
}

// Item is one key. Revisions are of the whole cluster.
type Item struct {
	Key            string
	Value          []byte
	Revision       uint64 // of the last write
	CreateRevision uint64 // of the write that made it
	Version        uint64 // writes since then, that one included
	Session        string // "": none
}

// Settings are the settings that the cluster as a whole has.
type Settings struct {
	AutoFailover bool
	PausedUntil  int64 // Unix nanoseconds at which a pause ends; 0: never
	Reason       string
	Operator     string // who set it; "": the first value
}

func emptyView() *View {
	return &View{
		keys: iradix.New[*Item](), idempotency: idempotencyTable{byKey: iradix.New[*idempotencyEntry]()}, settings: Settings{AutoFailover: true},
		sessions: iradix.New[*Session](), roles: iradix.New[*Role](), ownership: iradix.New[struct{}](),
		appNodes: iradix.New[*AppNode](),
	}
}

// Get gives a key's item.
func (v *View) Get(key string) (Item, bool) {
	it, ok := v.keys.Get([]byte(key))
	if !ok {
		return Item{}, false
	}
	return *it, true
}

// List gives the items whose key starts with prefix and is greater than after,
// in order of bytes, at most limit of them (limit < 1: all). When more follow,
// next is the last key given; it is empty at the end.
func (v *View) List(prefix, after string, limit int) (items []Item, next string) {
	it := v.keys.Root().Iterator()
	if after > prefix {
		it.SeekLowerBound([]byte(after))
	} else {
		it.SeekPrefix([]byte(prefix))
	}
	for _, item, ok := it.Next(); ok; _, item, ok = it.Next() {
		if item.Key <= after && after != "" {
			continue
		}
		if !strings.HasPrefix(item.Key, prefix) {
			break
		}
		if limit > 0 && len(items) == limit {
			return items, items[limit-1].Key
		}
		items = append(items, *item)
	}
	return items, ""
}

// Keys counts the keys.
func (v *View) Keys() int { return v.keys.Len() }

// Bytes counts the bytes of all keys and values.
func (v *View) Bytes() int64 { return v.bytes }

// Revision is the revision of the last change.
func (v *View) Revision() uint64 { return v.revision }

// AppliedIndex is the index of the last log entry given to Apply. Entries that
// carry no commands never get there, so Raft's own index may be ahead.
func (v *View) AppliedIndex() uint64 { return v.index }

// AppliedTerm is the term of the entry at AppliedIndex.
func (v *View) AppliedTerm() uint64 { return v.term }

// Time is the state's clock: the highest command time applied.
func (v *View) Time() time.Time { return time.Unix(0, v.now) }

// ClusterID is "" until the first ClusterInit.
func (v *View) ClusterID() string { return v.clusterID }

// Generation is the zero Generation until the first ClusterInit.
func (v *View) Generation() cluster.Generation { return v.generation }

// RestoreEpoch counts the backups that were restored, and the recoveries of a
// lost quorum: watches do not outlast either.
func (v *View) RestoreEpoch() uint64 { return v.epoch }

// CompactedRevision is the highest revision that watchers can no longer get.
func (v *View) CompactedRevision() uint64 { return v.history.floor }

// MaxVersion is the highest command version ever applied: a build that reads
// less can neither replay the log nor read a snapshot of this state.
func (v *View) MaxVersion() uint32 { return v.version }

// Members gives all records, tombstones of removed members included, by ID.
func (v *View) Members() []cluster.Member { return slices.Clone(v.members) }

// Member gives one record.
func (v *View) Member(id cluster.NodeID) (cluster.Member, bool) {
	i, ok := v.findMember(id)
	if !ok {
		return cluster.Member{}, false
	}
	return v.members[i], true
}

// Record gives what admission needs to know of a node.
func (v *View) Record(id cluster.NodeID) cluster.Record {
	m, _ := v.Member(id)
	return cluster.Record{Incarnation: m.Incarnation, Removed: m.Removed}
}

// present gives the members that are not removed.
func (v *View) present() []cluster.NodeID {
	var ids []cluster.NodeID
	for _, m := range v.members {
		if !m.Removed {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func (v *View) findMember(id cluster.NodeID) (int, bool) {
	return sort.Find(len(v.members), func(i int) int { return strings.Compare(string(id), string(v.members[i].ID)) })
}

// MinSupportedVersion is the highest command version that all of ids can apply, by
// their records. A node that was never in contact counts as the oldest build
// there is, which reads version 1. Without ids it is CommandVersion.
func (v *View) MinSupportedVersion(ids []cluster.NodeID) uint32 {
	lowest := CommandVersion
	for _, id := range ids {
		m, _ := v.Member(id)
		lowest = min(lowest, max(m.Reads, 1))
	}
	return lowest
}

// LeaderStart gives the last leader whose leader-start was applied, and its
// term; 0 and "" when there was none.
func (v *View) LeaderStart() (term uint64, node cluster.NodeID) {
	if len(v.elections) == 0 {
		return 0, ""
	}
	e := v.elections[len(v.elections)-1]
	return e.Term, e.Node
}

// Elections gives the last MaxElections elections, oldest first.
func (v *View) Elections() []Election { return slices.Clone(v.elections) }

// Settings gives the settings as they were last set.
func (v *View) Settings() Settings { return v.settings }

// AutoFailover says whether the cluster elects leaders by itself at the time now
// of this node's clock: a pause that has run out is over.
func (v *View) AutoFailover(now time.Time) bool {
	s := v.settings
	return s.AutoFailover || s.PausedUntil != 0 && now.UnixNano() >= s.PausedUntil
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
