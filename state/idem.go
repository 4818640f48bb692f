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
	idempotencyTTL     = 24 * time.Hour // of the state's time
	maxIdempotencyKeys = 100_000
)

// idempotencyTable remembers the results of commands that carry an idempotency key. It
// is a value: see queue for what may be done with copies.
//
// Invariants: byKey and order hold the same entries, each key once; order is in
// the order of first application, which is also that of time.
type idempotencyTable struct {
	byKey *iradix.Tree[*idempotencyEntry]
	order queue[*idempotencyEntry]
}

type idempotencyEntry struct {
	key         string
	requestHash []byte
	at          int64
	result      Result
}

// applyOnce runs execute unless the key is known, and remembers its result. Every
// answer of a valid command is remembered, failed conditions included: the
// client whose first answer was lost must get that one, not the outcome of a
// second try.
func (w *txn) applyOnce(id *Idempotency, execute func() Result) Result {
	open(&w.idempotencyTxn, w.idempotency.byKey)
	w.expireIdempotency(maxIdempotencyKeys, w.now-int64(idempotencyTTL))
	key := []byte(id.Key)
	if e, ok := w.idempotencyTxn.Get(key); ok {
		if bytes.Equal(e.requestHash, id.RequestHash) {
			return e.result
		}
		err := cluster.Errorf(cluster.CodeBadRequest, "idempotency key: was used with another request")
		err.Status = http.StatusUnprocessableEntity
		return Result{Err: err}
	}
	e := &idempotencyEntry{key: id.Key, requestHash: id.RequestHash, at: w.now, result: execute()}
	w.idempotencyTxn.Insert(key, e)
	w.idempotency.order.push(e, false)
	w.expireIdempotency(maxIdempotencyKeys, w.now-int64(idempotencyTTL))
	return e.result
}

// expireIdempotency drops the oldest entries until at most keep are left, all of them
// newer than since.
func (w *txn) expireIdempotency(keep int, since int64) {
	order := &w.idempotency.order
	for order.len() > 0 && (order.len() > keep || order.at(order.first).at <= since) {
		w.idempotencyTxn.Delete([]byte(order.pop().key))
	}
}
