package state

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Bounds of the results of idempotent commands.
const (
	idempotencyTTL     = 24 * time.Hour // of the state's time
	maxIdempotencyKeys = 100_000        // of each kind

	// Nodes repeat a command within the time of one request. Their keys have bounds of their own, since every command
	// of the etcd API has one: they evict no keys of clients.
	nodeIdempotencyTTL = 5 * time.Minute
)

// NodeIdempotencyPrefix begins the idempotency keys of nodes. Those of clients begin with the name of an identity.
const NodeIdempotencyPrefix = "\n"

// idempotencyTable holds the results of commands with an idempotency key. It is a value; see queue.
//
// Invariants: byKey holds the entries of order and nodeOrder, each key once; their order is that of first application
// and of time.
type idempotencyTable struct {
	byKey     *iradix.Tree[*idempotencyEntry]
	order     queue[*idempotencyEntry] // of clients
	nodeOrder queue[*idempotencyEntry]
}

// add adds an entry to the order of its kind.
func (t *idempotencyTable) add(e *idempotencyEntry) {
	if strings.HasPrefix(e.key, NodeIdempotencyPrefix) {
		t.nodeOrder.push(e, false)
	} else {
		t.order.push(e, false)
	}
}

func (t *idempotencyTable) len() int { return t.order.len() + t.nodeOrder.len() }

type idempotencyEntry struct {
	key         string
	requestHash []byte
	at          int64
	result      Result
}

// applyOnce returns the recorded result of a known key. Otherwise it applies the command and records the result, also
// a failed condition: a client that lost the first response must get it again, and not the outcome of a second one.
func (w *txn) applyOnce(c *Command) Result {
	id := c.Idempotency
	if id == nil {
		return w.applyFenced(c)
	}
	w.expireIdempotency()
	if e, ok := w.write.idempotency.get(id.Key); ok {
		if bytes.Equal(e.requestHash, id.RequestHash) {
			return w.replay(c, e.result)
		}
		err := badRequest("idempotency key: was used with another request")
		return Result{Err: withStatus(http.StatusUnprocessableEntity, err)}
	}
	result := w.applyFenced(c)
	e := &idempotencyEntry{key: id.Key, requestHash: id.RequestHash, at: w.now, result: result}
	e.result.Txn, e.result.Session = nil, nil // replay finds them again
	w.write.idempotency.put(id.Key, e)
	w.idempotency.add(e)
	w.expireIdempotency()
	return result
}

// replay returns the whole of a recorded result.
func (w *txn) replay(c *Command, recorded Result) Result {
	switch {
	case recorded.Err != nil:
	case c.Kind == KindTxn:
		return c.Txn.replay(w, recorded)
	case c.Kind == KindLeaseGrant:
		return c.LeaseGrant.replay(w, recorded)
	}
	return recorded
}

// expireIdempotency drops the oldest entries of each kind: those that are too old and those beyond maxIdempotencyKeys.
func (w *txn) expireIdempotency() {
	w.expireOldest(&w.idempotency.order, idempotencyTTL)
	w.expireOldest(&w.idempotency.nodeOrder, nodeIdempotencyTTL)
}

func (w *txn) expireOldest(order *queue[*idempotencyEntry], ttl time.Duration) {
	since := w.now - int64(ttl)
	for order.len() > 0 && (order.len() > maxIdempotencyKeys || order.at(order.first).at <= since) {
		w.write.idempotency.remove(order.pop().key)
	}
}
