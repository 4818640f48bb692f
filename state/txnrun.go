package state

import (
	"context"
	"iter"
	"slices"

	"northstar/cluster"
)

// txnRun executes one transaction.
type txnRun struct {
	view     *View                      // revision and history before the transaction
	keys     *treeWriter[string, *Item] // read and written
	lease    func(id int64) (lease, bool)
	caller   string
	outcomes []bool // of the comparisons of the transaction, then of the nested ones that are executed, in their order
	next     int    // position in outcomes
	changes  []change
	examined int         // cost so far, in keys that comparisons and ranges have looked at
	most     int         // of examined
	limits   txnLimits   // of a transaction with writes
	ended    func() bool // the caller of a transaction that is readOnly has gone; nil: not asked
	returned int         // what the items in the responses count
	room     Room        // of the responses; nil: MaxTxnReadBytes
	full     error       // of room

	past   past // the keys at revision pastAt; without a tree: none
	pastAt uint64
}

// ReadTxn executes a transaction that is ReadOnly. Errors wrap a Refusal, or are those of room or the cause of ctx's
// end.
func (v *View) ReadTxn(ctx context.Context, p *Txn, room Room) (TxnResult, error) {
	if err := p.Check(); err != nil {
		return TxnResult{}, err
	}
	keys := v.keys
	run := txnRun{
		view: v, keys: &treeWriter[string, *Item]{tree: &keys}, lease: v.findLease, most: maxReadExamined,
		room:  func(bytes int) error { return room.reserve(bytes) },
		ended: func() bool { return ctx.Err() != nil },
	}
	out, err := run.checkAndRun(p)
	if ctx.Err() != nil {
		return TxnResult{}, context.Cause(ctx)
	}
	if run.full != nil {
		return TxnResult{}, run.full
	}
	if err != nil {
		return TxnResult{}, err
	}
	return *out, nil
}

func (p *Txn) apply(w *txn) Result {
	changes, out, err := p.decide(w)
	if err != nil {
		return Result{Err: err}
	}
	w.commitChanges(changes)
	return Result{Revision: w.revision, Created: len(changes) > 0, Txn: out}
}

// decide executes a transaction on the keys, and returns its changes, or why it is refused. It changes nothing else.
func (p *Txn) decide(w *txn) ([]change, *TxnResult, *cluster.Error) {
	limits := w.txnLimits()
	run := txnRun{
		view: &w.View, keys: &w.write.keys, lease: w.findLease, caller: p.Caller, limits: limits, most: limits.examined,
	}
	out, err := run.checkAndRun(p)
	if err == nil {
		err = w.roomForKeys(run.growth())
	}
	if err != nil {
		run.rollBack()
		return nil, nil, err
	}
	return run.changes, out, nil
}

// replay returns the result of a transaction that was applied before with the recorded result. It executes the
// transaction again on the keys of that moment, and drops what it writes. It was allowed then, with the limits of then.
func (p *Txn) replay(w *txn, recorded Result) Result {
	before := recorded.Revision
	if recorded.Created {
		before--
	}
	forgotten := failed(cluster.CodeOutcomeUnknown,
		"the transaction was executed at revision %d, and its result is no longer kept", recorded.Revision)
	if int64(before) < w.CompactRevision() {
		return forgotten
	}
	then := w.View
	then.revision = before
	keys := &treeWriter[string, *Item]{tree: &w.keys, txn: w.write.keys.open().clone()}
	undoing := undoing{view: &w.View, revision: before}
	was, _ := undoing.before(w.keys, "", "\x00")
	for _, c := range was.undone {
		c.undo(keys.txn)
	}
	run := txnRun{view: &then, keys: keys, limits: wideTxnLimits, most: wideTxnLimits.examined}
	run.lease = func(id int64) (lease, bool) {
		return lease{session: &Session{ID: leaseSession(0, 0, id)}}, true // it was live then
	}
	out, err := run.checkAndRun(p)
	if err != nil { // a revision that it reads has been compacted since
		return forgotten
	}
	recorded.Txn = out
	return recorded
}

// commitChanges adds the changes of a transaction, which share a revision, to all that follows from keys.
func (w *txn) commitChanges(changes []change) {
	if len(changes) == 0 {
		return
	}
	w.revision++
	for _, c := range changes {
		now := c.item
		if c.deleted {
			now = nil
		}
		w.linkKey(c.prev, now)
		w.bytes += now.size() - c.prev.size()
		w.stateBytes += now.footprint() - c.prev.footprint()
		w.pushChange(c)
	}
}

// growth returns by how much the changes enlarge the state.
func (r *txnRun) growth() (n int64) {
	for _, c := range r.changes {
		if n -= c.prev.footprint(); !c.deleted {
			n += c.item.footprint()
		}
	}
	return n
}

// rollBack undoes the changes of keys.
func (r *txnRun) rollBack() {
	for _, c := range slices.Backward(r.changes) {
		if c.prev == nil {
			r.keys.remove(c.item.Key)
		} else {
			r.keys.put(c.item.Key, c.prev)
		}
	}
}

func (r *txnRun) checkAndRun(p *Txn) (*TxnResult, *cluster.Error) {
	r.decide(p)
	if err := firstError(r.checkLimits(), r.check(p)); err != nil {
		return nil, err
	}
	r.next = 0
	return r.execute(p)
}

// decide compares. Nested transactions compare with the keys before the whole transaction, too.
func (r *txnRun) decide(p *Txn) {
	succeeded := true
	for i := range p.Compare {
		c := &p.Compare[i]
		if succeeded = c.holds(r.count(itemsIn(r.keys.now(), c.Key, c.End), c.cost)); !succeeded {
			break
		}
	}
	r.outcomes = append(r.outcomes, succeeded)
	for _, op := range p.branch(succeeded) {
		if op.Txn != nil {
			r.decide(op.Txn)
		}
	}
}

func (p *Txn) branch(succeeded bool) []Op {
	if succeeded {
		return p.Success
	}
	return p.Failure
}

// outcome returns the next outcome. check and execute ask in the order in which decide has found them.
func (r *txnRun) outcome() bool {
	r.next++
	return r.outcomes[r.next-1]
}

// check rejects what the state before the transaction does not allow.
func (r *txnRun) check(p *Txn) *cluster.Error {
	for _, op := range p.branch(r.outcome()) {
		var err *cluster.Error
		switch {
		case op.Range != nil:
			err = r.checkRange(op.Range)
		case op.Put != nil:
			err = r.checkPut(op.Put)
		case op.Txn != nil:
			err = r.check(op.Txn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *txnRun) checkRange(q *RangeQuery) *cluster.Error {
	switch {
	case q.Revision > int64(r.view.revision):
		return refused(FutureRevision)
	case q.Revision != 0 && q.Revision < r.view.CompactRevision():
		return refused(Compacted)
	}
	return nil
}

func (r *txnRun) checkPut(p *TxnPut) *cluster.Error {
	old, exists := r.keys.get(p.Key)
	if p.Lease != 0 {
		l, ok := r.lease(p.Lease)
		switch {
		case !ok:
			return refused(LeaseNotFound)
		case !l.mayUse(r.caller):
			return refused(LeaseNotOwned)
		case l.keys >= MaxLeaseKeys && (!exists || old.Session != l.session.ID):
			return refused(TooManyOps)
		}
	}
	if (p.IgnoreValue || p.IgnoreLease) && !exists {
		return refused(KeyNotFound)
	}
	return nil
}

// revision returns the revision of the keys with the changes so far.
func (r *txnRun) revision() uint64 {
	if len(r.changes) > 0 {
		return r.view.revision + 1
	}
	return r.view.revision
}

func (r *txnRun) execute(p *Txn) (*TxnResult, *cluster.Error) {
	out := &TxnResult{Succeeded: r.outcome()}
	ops := p.branch(out.Succeeded)
	out.Responses = make([]OpResult, len(ops))
	for i, op := range ops {
		to := &out.Responses[i]
		var err *cluster.Error
		switch {
		case op.Range != nil:
			to.Range = r.read(op.Range)
		case op.Put != nil:
			to.Put = r.put(op.Put)
		case op.Delete != nil:
			to.Delete = r.delete(op.Delete)
		case op.Txn != nil:
			to.Txn, err = r.execute(op.Txn)
		}
		if err == nil {
			err = r.checkLimits()
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkLimits rejects a transaction that would occupy every node for too long. Only the node that executes a
// transaction without writes has its load, and bounds what it returns.
func (r *txnRun) checkLimits() *cluster.Error {
	switch {
	case len(r.changes) > r.limits.changes || r.examined > r.most:
		return refused(TooManyOps)
	case r.full != nil || r.room == nil && r.returned > MaxTxnReadBytes:
		return refused(RequestTooLarge)
	}
	return nil
}

// grow reports whether the responses may grow. checkLimits rejects the transaction otherwise.
func (r *txnRun) grow(bytes int) bool {
	r.returned += bytes
	r.reserve(bytes)
	return r.checkLimits() == nil
}

// reserve reports whether there is room for bytes. checkLimits rejects the transaction otherwise. One with writes has
// room for what it does not return.
func (r *txnRun) reserve(bytes int) bool {
	if r.room != nil && r.full == nil {
		r.full = r.room(bytes)
	}
	return r.full == nil
}

// gone reports whether the caller has gone. checkLimits rejects the transaction then.
func (r *txnRun) gone() bool {
	if r.ended == nil || !r.ended() {
		return false
	}
	r.most = 0
	return true
}

// count yields items until the transaction has examined too much. checkLimits rejects it then.
func (r *txnRun) count(items iter.Seq[*Item], cost func(*Item) int) iter.Seq[*Item] {
	return func(yield func(*Item) bool) {
		for it := range items {
			before := r.examined
			r.examined += cost(it)
			if before/1024 != r.examined/1024 {
				r.gone()
			}
			if r.examined > r.most || !yield(it) {
				return
			}
		}
	}
}

func (r *txnRun) read(q *RangeQuery) *RangeResult {
	items := itemsIn(r.keys.now(), q.Key, q.End)
	if q.Revision > 0 {
		items = r.itemsAt(uint64(q.Revision), q)
	}
	out, _ := q.read(r.count(items, q.cost), r.revision(), r.grow)
	return &out
}

func (r *txnRun) put(p *TxnPut) *PutResult {
	revision := r.view.revision + 1
	item := &Item{Key: p.Key, Value: p.Value, Revision: revision, CreateRevision: revision, Version: 1}
	old, _ := r.keys.get(p.Key)
	if old != nil {
		item.Key = old.Key // which the tree keeps
		item.CreateRevision, item.Version = old.CreateRevision, old.Version+1
	}
	if p.IgnoreValue && old != nil {
		item.Value = old.Value
	}
	switch {
	case p.IgnoreLease && old != nil:
		item.Session = old.Session
	case p.Lease != 0:
		l, _ := r.lease(p.Lease)
		item.Session = l.session.ID
	}
	r.keys.put(p.Key, item)
	r.changes = append(r.changes, change{item: item, prev: old})
	out := &PutResult{Revision: revision}
	if p.PrevKV && old != nil {
		out.Prev = old
		r.grow(old.resultSize())
	}
	return out
}

func (r *txnRun) delete(p *TxnDelete) *DeleteResult {
	var doomed []*Item
	each := func(*Item) int { return r.limits.deleteCost }
	for it := range r.count(itemsIn(r.keys.now(), p.Key, p.End), each) {
		if len(r.changes)+len(doomed) == r.limits.changes {
			r.most = 0
		}
		if r.most == 0 || p.PrevKV && !r.grow(it.resultSize()) {
			break
		}
		doomed = append(doomed, it)
	}
	if r.checkLimits() != nil {
		doomed = nil // the transaction is rejected: nothing has to be undone
	}
	for _, it := range doomed {
		r.keys.remove(it.Key)
		r.changes = append(r.changes, change{
			item: &Item{Key: it.Key, Revision: r.view.revision + 1}, prev: it, deleted: true,
		})
	}
	out := &DeleteResult{Revision: r.revision(), Deleted: int64(len(doomed))}
	if p.PrevKV {
		out.Prev = doomed
	}
	return out
}
