package state

import (
	"sync/atomic"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Options says how much history a State keeps for watchers.
type Options struct {
	HistoryRevisions int // at least this many changes (0: DefaultHistoryRevisions) …
	HistoryBytes     int // … or this many bytes of values (0: DefaultHistoryBytes), whichever is less
}

// What Options default to.
const (
	DefaultHistoryRevisions = 10240
	DefaultHistoryBytes     = 64 << 20
)

// State is the replicated state. Apply and ReadFrom belong to one goroutine, the
// one that applies the log; everything else may be called from any.
type State struct {
	options Options
	view    atomic.Pointer[View]
	feeds   [3]*Feed // of keys, roles and application nodes
}

// Result is the outcome of one command.
type Result struct {
	Err      *cluster.Error // nil: it took effect
	Revision uint64         // of the change that a put or delete made
	Created  bool           // a put made the key; a ClusterInit was the first
	Session  *Session       // of a SessionCreate
	Role     *Role          // of a command about a role: the role after it, also with some errors
}

// New makes an empty state.
func New(o Options) *State {
	if o.HistoryRevisions <= 0 {
		o.HistoryRevisions = DefaultHistoryRevisions
	}
	if o.HistoryBytes <= 0 {
		o.HistoryBytes = DefaultHistoryBytes
	}
	s := &State{options: o}
	s.feeds = [3]*Feed{
		newFeed(s, func(v *View) *history { return &v.history }),
		newFeed(s, func(v *View) *history { return &v.roleChanges }),
		newFeed(s, func(v *View) *history { return &v.nodeChanges }),
	}
	s.view.Store(emptyView())
	return s
}

// View is the state as of the last batch applied. It never changes and needs no
// lock. It costs nothing to get; held for long, it keeps old values in memory.
func (s *State) View() *View { return s.view.Load() }

// Feed gives the feed of changes of the keys.
func (s *State) Feed() *Feed { return s.feeds[0] }

// RoleFeed gives the feed of elections and vacancies. The key of a change is
// RoleKey of the role, its value is for DecodeRoleEvent.
func (s *State) RoleFeed() *Feed { return s.feeds[1] }

// NodeFeed gives the feed of the application nodes. The key of a change is the
// node's ID, its value, unless it is a removal, is for DecodeAppNode.
func (s *State) NodeFeed() *Feed { return s.feeds[2] }

// Apply applies the commands of one log entry, in order, and gives their
// results. Index and term are the entry's. It depends on nothing but the state
// and its arguments, and never panics: a command that is not valid has a result
// with CodeBadRequest. The commands' values must not be changed afterwards.
func (s *State) Apply(index, term uint64, cmds []Command) []Result {
	before := s.view.Load()
	w := &txn{View: *before, options: s.options}
	w.index, w.term = index, term
	results := make([]Result, len(cmds))
	for i := range cmds {
		results[i] = w.apply(&cmds[i])
	}
	w.commit()
	s.view.Store(&w.View)
	for _, f := range s.feeds {
		f.announce(before, &w.View)
	}
	return results
}

// txn is a View in the making: one batch being applied.
type txn struct {
	View
	options        Options
	keysTxn        *iradix.Txn[*Item]
	idempotencyTxn *iradix.Txn[*idempotencyEntry]

	sessionsTxn  *iradix.Txn[*Session]
	rolesTxn     *iradix.Txn[*Role]
	ownershipTxn *iradix.Txn[struct{}]
	appNodesTxn  *iradix.Txn[*AppNode]
	newAppNodes  int // in appNodesTxn, beyond those of appNodes
	newSessions  int // in sessionsTxn, beyond those of sessions
	newRoles     int // the same of roles
}

func (w *txn) commit() {
	commit(&w.keys, w.keysTxn)
	commit(&w.idempotency.byKey, w.idempotencyTxn)
	commit(&w.sessions, w.sessionsTxn)
	commit(&w.roles, w.rolesTxn)
	commit(&w.ownership, w.ownershipTxn)
	commit(&w.appNodes, w.appNodesTxn)
}

func (w *txn) apply(c *Command) Result {
	w.now = max(w.now, c.Now)
	w.version = max(w.version, c.MinVersion())
	if err := c.Validate(); err != nil {
		return Result{Err: err}
	}
	result := w.applyIdempotent(c)
	if c.Audit != nil {
		w.record(c, result)
	}
	return result
}

func (w *txn) applyIdempotent(c *Command) Result {
	if c.Idempotency == nil {
		return w.applyFenced(c)
	}
	return w.applyOnce(c.Idempotency, func() Result { return w.applyFenced(c) })
}

func (w *txn) applyFenced(c *Command) Result {
	if f := c.Fence; f != nil {
		if r, ok := w.writeRoles().Get([]byte(f.Role)); !ok || !r.Held() || r.Current.Token != f.Token {
			return Result{Err: cluster.Errorf(cluster.CodeFenced, "token %d is not the current token of role %q", f.Token, f.Role)}
		}
	}
	return c.payload().apply(w)
}
