package state

import (
	"bytes"
	"net/http"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// How long and how many results of idempotent commands are kept.
const (
	idemKeep = 24 * time.Hour // of the state's time
	idemMax  = 100_000
)

// idemTable remembers the results of commands that carry an idempotency key. It
// is a value: see queue for what may be done with copies.
//
// Invariants: byKey and order hold the same entries, each key once; order is in
// the order of first application, which is also that of time.
type idemTable struct {
	byKey *iradix.Tree[*idemEntry]
	order queue[*idemEntry]
}

type idemEntry struct {
	key         string
	fingerprint []byte
	at          int64
	result      Result
}

// once runs execute unless the key is known, and remembers its result. Every
// answer of a valid command is remembered, failed conditions included: the
// client whose first answer was lost must get that one, not the outcome of a
// second try.
func (w *work) once(id *Idem, execute func() Result) Result {
	if w.idemTxn == nil {
		w.idemTxn = w.idem.byKey.Txn()
	}
	w.forgetIdem(idemMax, w.now-int64(idemKeep))
	key := []byte(id.Key)
	if e, ok := w.idemTxn.Get(key); ok {
		if bytes.Equal(e.fingerprint, id.Fingerprint) {
			return e.result
		}
		err := cluster.Errorf(cluster.CodeBadRequest, "idempotency key: was used with another request")
		err.Status = http.StatusUnprocessableEntity
		return Result{Err: err}
	}
	e := &idemEntry{key: id.Key, fingerprint: id.Fingerprint, at: w.now, result: execute()}
	w.idemTxn.Insert(key, e)
	w.idem.order.push(e, false)
	w.forgetIdem(idemMax, w.now-int64(idemKeep))
	return e.result
}

// forgetIdem drops the oldest entries until at most keep are left, all of them
// newer than since.
func (w *work) forgetIdem(keep int, since int64) {
	order := &w.idem.order
	for order.len() > 0 && (order.len() > keep || order.at(order.first).at <= since) {
		w.idemTxn.Delete([]byte(order.pop().key))
	}
}
