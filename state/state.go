// Package state is the replicated state of a NorthStar cluster as plain values: keys with revisions, sessions, roles,
// member records, elections, settings, the audit log and the feeds of changes. Every node gives the same log entries
// to State.Apply in the same order, and so has the same state. DESIGN.md explains how the package ensures that.
//
// The package has no clock (commands carry the time), does no I/O of its own and starts no goroutine.
package state

import (
	"sync/atomic"

	"northstar/cluster"
)

// Options sets how much history a State keeps for watchers. Transactions and compactions are decided by the defaults,
// which every node keeps at least. Less is for tests: all states that apply one log then need the same.
type Options struct {
	HistoryRevisions int // at least this many changes (0: DefaultHistoryRevisions) …
	HistoryBytes     int // … or this many bytes of values (0: DefaultHistoryBytes), whichever is less
}

// Defaults of Options. They are part of the decisions of txnVersion and never change.
const (
	DefaultHistoryRevisions = 10240
	DefaultHistoryBytes     = 64 << 20
)

// readable returns how much history reads at a revision may name.
func (o Options) readable() Options {
	return Options{
		HistoryRevisions: min(o.HistoryRevisions, DefaultHistoryRevisions),
		HistoryBytes:     min(o.HistoryBytes, DefaultHistoryBytes),
	}
}

// State is the replicated state. Only the goroutine that applies the log may call Apply and ReadFrom. Any goroutine
// may call the other methods.
type State struct {
	options Options
	view    atomic.Pointer[View]
	feeds   [3]*Feed      // of keys, roles and application nodes
	watched chan struct{} // capacity 1: a first cursor waits at one of the feeds
}

// Result is the outcome of one command.
type Result struct {
	Err      *cluster.Error // nil: the command took effect
	Revision uint64         // of the change that a put or delete made; after a Txn or a command about a lease
	Created  bool           // a put created the key, a Txn changed one, or a ClusterInit was the first
	Session  *Session       // of a SessionCreate or a LeaseGrant
	Role     *Role          // of a command about a role: the role afterwards, also with some errors
	Txn      *TxnResult     // of a Txn
}

// New returns an empty state.
func New(o Options) *State {
	if o.HistoryRevisions <= 0 {
		o.HistoryRevisions = DefaultHistoryRevisions
	}
	if o.HistoryBytes <= 0 {
		o.HistoryBytes = DefaultHistoryBytes
	}
	s := &State{options: o, watched: make(chan struct{}, 1)}
	s.feeds = [3]*Feed{
		newFeed(s, func(v *View) *history { return &v.history }),
		newFeed(s, func(v *View) *history { return &v.roleChanges }),
		newFeed(s, func(v *View) *history { return &v.nodeChanges }),
	}
	s.view.Store(emptyView())
	return s
}

// View returns the state after the last batch applied. A View never changes and needs no lock. It is free to get, but
// a View that is kept keeps old values in memory.
func (s *State) View() *View { return s.view.Load() }

// Feed returns the feed of changes of keys.
func (s *State) Feed() *Feed { return s.feeds[0] }

// RoleFeed returns the feed of elections and vacancies: keys are RoleKey, values are for DecodeRoleEvent.
func (s *State) RoleFeed() *Feed { return s.feeds[1] }

// NodeFeed returns the feed of application nodes: keys are their IDs, values are for DecodeAppNode unless deleted.
func (s *State) NodeFeed() *Feed { return s.feeds[2] }

// Watched reports whether a cursor of one of the feeds waits for a change. The channel then gets an element, for one
// receiver.
func (s *State) Watched() (bool, <-chan struct{}) {
	for _, f := range s.feeds {
		if f.isWatched() {
			return true, s.watched
		}
	}
	return false, s.watched
}

// Apply applies the commands of one log entry in order and returns their results. Index and term are those of the
// entry. The results depend only on the state and the arguments. Apply never panics: an invalid command has a result
// with CodeBadRequest. The caller must not change the values of the commands afterwards.
//
// Audit records and idempotency results store the texts of errors. Therefore a text changes only with a new command
// version: members of different builds must store the same bytes.
func (s *State) Apply(index, term uint64, cmds []Command) []Result {
	before := s.view.Load()
	w := &txn{View: *before, options: s.options}
	w.write = writersOf(&w.View)
	w.index, w.term = index, term
	results := make([]Result, len(cmds))
	for i := range cmds {
		results[i] = w.apply(&cmds[i])
	}
	w.write.commit()
	s.view.Store(&w.View)
	for _, f := range s.feeds {
		f.announce(before, &w.View)
	}
	return results
}

// txn applies one batch to a copy of a View.
type txn struct {
	View
	options Options
	write   writers
}

// writers change the trees of a View. Until commit the View's own trees show the state before the batch.
type writers struct {
	keys        treeWriter[string, *Item]
	idempotency treeWriter[string, *idempotencyEntry]
	sessions    treeWriter[string, *Session]
	roles       treeWriter[string, *Role]
	ownership   treeWriter[string, struct{}]
	appNodes    treeWriter[string, *AppNode]
	shares      treeWriter[string, share]
	leases      treeWriter[uint64, *Session]
	keyCounts   treeWriter[string, int]
	senders     treeWriter[string, *sender]
}

func writersOf(v *View) writers {
	return writers{
		keys: writerOf(&v.keys), idempotency: writerOf(&v.idempotency.byKey), sessions: writerOf(&v.sessions),
		roles: writerOf(&v.roles), ownership: writerOf(&v.ownership), appNodes: writerOf(&v.appNodes),
		shares: writerOf(&v.shares), leases: writerOf(&v.leases), senders: writerOf(&v.senders.byKey),
		keyCounts: writerOf(&v.keyCounts),
	}
}

func (w *writers) commit() {
	w.keys.commit()
	w.idempotency.commit()
	w.sessions.commit()
	w.roles.commit()
	w.ownership.commit()
	w.appNodes.commit()
	w.shares.commit()
	w.leases.commit()
	w.keyCounts.commit()
	w.senders.commit()
}

func (w *txn) apply(c *Command) Result {
	w.now = max(w.now, c.Now)
	w.raiseVersion(c)
	if err := c.Validate(); err != nil {
		return Result{Err: err}
	}
	result, repeated := w.applyOnce(c)
	if c.Audit != nil && !repeated {
		w.record(c, result)
	}
	return result
}

// raiseVersion notes the version of a command. With txnVersion, changes begin to keep the items that they replace. A
// number alone, which every write has, does not begin that, and neither do the limits that every leader proposes.
func (w *txn) raiseVersion(c *Command) {
	kept := w.KeepsReplaced()
	w.version = max(w.version, c.MinVersion())
	switch begins := c.Kind != KindLimits && c.versionWithoutNumber() >= txnVersion; {
	case kept:
	case begins:
		w.valuesSince, w.withoutTxns = w.revision, false
	default:
		w.withoutTxns = w.version >= txnVersion
	}
}

// KeepsReplaced reports whether changes keep the items that they replace: some command needed txnVersion.
func (v *View) KeepsReplaced() bool { return v.version >= txnVersion && !v.withoutTxns }

func (w *txn) applyFenced(c *Command) Result {
	if err := w.checkFence(c.Fence); err != nil {
		return Result{Err: err}
	}
	return c.payload().apply(w)
}

func (w *txn) checkFence(f *FencingToken) *cluster.Error {
	if f == nil {
		return nil
	}
	if r, ok := w.write.roles.get(f.Role); !ok || !r.Held() || r.Current.Token != f.Token {
		return cluster.Errorf(cluster.CodeFenced, "token %d is not the current token of role %q", f.Token, f.Role)
	}
	return nil
}

// failed returns the result of a command that has no effect.
func failed(code cluster.Code, format string, args ...any) Result {
	return Result{Err: cluster.Errorf(code, format, args...)}
}
