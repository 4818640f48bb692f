package state

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"northstar/cluster"
)

// View is an immutable snapshot of the state for any number of goroutines. The results of its methods must not be
// changed.
//
// Invariants: revision is ≥ every revision in keys and history; it never decreases from one View to the next, also
// across ReadFrom of a merged backup and across Recovery; after Recovery no key has a revision of the previous
// generation; stateBytes and shares are what recount finds; members are sorted by ID; elections are in order of term.
type View struct {
	clusterID  string
	generation cluster.Generation
	revision   uint64
	index      uint64 // index of the last log entry applied
	term       uint64 // term of that entry
	now        int64  // highest command time applied, Unix nanoseconds
	epoch      uint64 // number of restores and recoveries; a watch outlasts neither
	version    uint32 // highest command version ever applied; an older build can read neither log nor snapshot

	keys        *tree[string, *Item]
	bytes       int64 // of keys and values in keys
	history     history
	idempotency idempotencyTable
	senders     senderTable
	members     []cluster.Member
	elections   []Election
	settings    Settings
	audit       auditLog

	sessions         *tree[string, *Session] // live sessions by ID
	roles            *tree[string, *Role]    // by name
	roleChanges      history                 // elections and vacancies; the key of an item is RoleKey
	appNodes         *tree[string, *AppNode] // by ID
	nodeChanges      history                 // changes of application nodes; the key of an item is the node's ID
	ownership        *tree[string, struct{}] // what each session owns; see ownedKind
	limits           Limits
	stateBytes       int64                // sum of the footprints of keys, sessions, roles and application nodes
	shares           *tree[string, share] // by Session.Owner; follows from sessions, roles and nodes
	clusterLockDelay time.Duration        // minimum lock delay of every role since a recovery; 0: over

	keyCounts   *tree[string, int]      // number of keys by session; none: 0; follows from keys
	leases      *tree[uint64, *Session] // by number, see leaseKey; follows from sessions
	leaseSeq    uint64                  // number of leases ever granted; part of their session IDs
	compacted   uint64                  // revision of the last Compact; 0: none
	valuesSince uint64                  // changes after it keep the item that they replaced; set with txnVersion
	withoutTxns bool                    // version is txnVersion or higher, but no command has needed txnVersion itself
}

// Item is one key. All revisions are cluster-wide.
type Item struct {
	Key            string
	Value          []byte
	Revision       uint64 // of the last write
	CreateRevision uint64 // of the write that created the key
	Version        uint64 // number of writes since then, with that one
	Session        string // "": none
}

// Settings are the settings of the whole cluster.
type Settings struct {
	AutoFailover bool
	PausedUntil  int64 // end of a pause (AutoFailover false), Unix nanoseconds; 0: no end
	Reason       string
	Operator     string // operator that set them; "": initial settings
}

func emptyView() *View {
	return &View{
		keys: new(tree[string, *Item]), idempotency: idempotencyTable{byKey: new(tree[string, *idempotencyEntry])},
		senders:  senderTable{byKey: new(tree[string, *sender])},
		settings: Settings{AutoFailover: true}, sessions: new(tree[string, *Session]), roles: new(tree[string, *Role]),
		ownership: new(tree[string, struct{}]), appNodes: new(tree[string, *AppNode]), shares: new(tree[string, share]),
		leases: new(tree[uint64, *Session]), keyCounts: new(tree[string, int]),
	}
}

// Get returns the item of a key.
func (v *View) Get(key string) (Item, bool) {
	it, ok := v.keys.get(key)
	if !ok {
		return Item{}, false
	}
	return *it, true
}

// List returns the items whose key starts with prefix and is greater than after, in order of bytes. It returns at
// most limit items (limit < 1: all). If more follow, next is the last key returned; otherwise it is "".
func (v *View) List(prefix, after string, limit int) (items []Item, next string) {
	for _, item := range v.keys.from(max(prefix, after)) {
		if item.Key == after {
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

// Revision returns the revision of the last change.
func (v *View) Revision() uint64 { return v.revision }

// Epoch returns the number of restores and recoveries. No watch continues in another epoch.
func (v *View) Epoch() uint64 { return v.epoch }

// AppliedIndex returns the index of the last log entry given to Apply. Entries without commands are not.
func (v *View) AppliedIndex() uint64 { return v.index }

// AppliedTerm returns the term of the entry at AppliedIndex.
func (v *View) AppliedTerm() uint64 { return v.term }

// Time returns the state's time: the highest command time applied.
func (v *View) Time() time.Time { return time.Unix(0, v.now) }

// ClusterID returns "" before the first ClusterInit.
func (v *View) ClusterID() string { return v.clusterID }

// Generation returns the zero Generation before the first ClusterInit.
func (v *View) Generation() cluster.Generation { return v.generation }

// Members returns all records by ID, with the tombstones of removed members.
func (v *View) Members() []cluster.Member { return slices.Clone(v.members) }

// Member returns one record.
func (v *View) Member(id cluster.NodeID) (cluster.Member, bool) {
	i, ok := v.findMember(id)
	if !ok {
		return cluster.Member{}, false
	}
	return v.members[i], true
}

// Record returns what the admission of a node depends on.
func (v *View) Record(id cluster.NodeID) cluster.Record {
	m, _ := v.Member(id)
	return cluster.Record{Incarnation: m.Incarnation, Removed: m.Removed}
}

// present returns the members that are not removed.
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

// MinSupportedVersion returns the highest command version that all of ids support, by their records. A node that
// was never in contact counts as the oldest build, which supports version 1. Without ids it returns CommandVersion.
func (v *View) MinSupportedVersion(ids []cluster.NodeID) uint32 {
	lowest := CommandVersion
	for _, id := range ids {
		m, _ := v.Member(id)
		lowest = min(lowest, max(m.Reads, 1))
	}
	return lowest
}

// usableVersion returns the highest command version that may be in the log: one that all members support, or one that
// is in it. A member needs that in any case, also if it has not said what it supports.
func (v *View) usableVersion() uint32 { return max(v.version, v.MinSupportedVersion(v.present())) }

// CommandVersion returns the highest command version applied. No node without it can follow the log any more.
func (v *View) CommandVersion() uint32 { return v.version }

// KnowNumbers reports whether all members know numbers of commands: one has been applied, or all say so.
func (v *View) KnowNumbers() bool {
	if v.version >= NumberVersion {
		return true
	}
	members := v.present()
	return len(members) > 0 && v.MinSupportedVersion(members) >= NumberVersion
}

// LeaderStart returns the term and the leader of the last leader-start entry applied; 0 and "" if there was none.
func (v *View) LeaderStart() (term uint64, node cluster.NodeID) {
	if len(v.elections) == 0 {
		return 0, ""
	}
	e := v.elections[len(v.elections)-1]
	return e.Term, e.Node
}

// Elections returns the last MaxElections elections, oldest first.
func (v *View) Elections() []Election { return slices.Clone(v.elections) }

func (v *View) Settings() Settings { return v.settings }

// AutoFailover reports whether automatic failover is on at this node's time now, when a pause may have expired.
func (v *View) AutoFailover(now time.Time) bool {
	s := v.settings
	return s.AutoFailover || s.PausedUntil != 0 && now.UnixNano() >= s.PausedUntil
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
