package state

import (
	"bytes"
	"math"
	"net/http"
	"strings"
	"time"

	"northstar/cluster"
)

// Bounds of the results of idempotent commands.
const (
	idempotencyTTL     = 24 * time.Hour // of the state's time
	maxIdempotencyKeys = 100_000        // of each kind
)

// NodeIdempotencyPrefix begins the idempotency keys of nodes. Those of clients begin with the name of an identity.
// Every command of the etcd API has a key of a node: they are counted apart, and evict no keys of clients.
const NodeIdempotencyPrefix = "\n"

// idempotencyTable holds the results of commands with an idempotency key. It is a value; see queue.
//
// Invariants: byKey holds the entries of order and nodeOrder, each key once; their order is that of first application
// and of time.
type idempotencyTable struct {
	byKey     *tree[string, *idempotencyEntry]
	order     queue[*idempotencyEntry] // of clients
	nodeOrder queue[*idempotencyEntry]
	forgotten uint64 // highest index of an entry that has been dropped from nodeOrder
}

// add adds an entry to the order of its kind.
func (t *idempotencyTable) add(e *idempotencyEntry) {
	if e.ofNode() {
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
	result      Result // recorded
	index       uint64 // of the log entry, for the key of a node
}

func (e *idempotencyEntry) ofNode() bool { return isOfNode(e.key) }

// ofNode reports whether a node made the key, to propose one call of a client again.
func (id *Idempotency) ofNode() bool { return isOfNode(id.Key) }

func isOfNode(key string) bool { return strings.HasPrefix(key, NodeIdempotencyPrefix) }

// applyOnce returns the recorded result of a known key. Otherwise it applies the command and records the result, also
// a failed condition: a client that lost the first response must get it again, and not the outcome of a second one.
// repeated reports that a node has repeated the command for the call for which it was applied before. A client that
// repeats a request makes another call.
func (w *txn) applyOnce(c *Command) (result Result, repeated bool) {
	switch {
	case c.Idempotency == nil:
		return w.applyFenced(c), false
	case c.Idempotency.Number != 0:
		return w.applyNumbered(c)
	}
	return w.applyKeyed(c)
}

// applyKeyed is applyOnce for a key that names a request.
func (w *txn) applyKeyed(c *Command) (result Result, repeated bool) {
	id := c.Idempotency
	w.expireIdempotency(w.agedOut())
	if e, ok := w.write.idempotency.get(id.Key); ok {
		if bytes.Equal(e.requestHash, id.RequestHash) {
			// Builds that know no numbers record every attempt.
			return w.replay(c, w.recorded(e.result)), id.ofNode() && w.version >= NumberVersion
		}
		err := badRequest("idempotency key: was used with another request")
		return Result{Err: withStatus(http.StatusUnprocessableEntity, err)}, false
	}
	if id.After != 0 && id.After < w.idempotency.forgotten {
		return failed(cluster.CodeOutcomeUnknown,
			"the write was first proposed after index %d, and results up to index %d are no longer kept", id.After,
			w.idempotency.forgotten), false
	}
	result = w.applyFenced(c)
	e := &idempotencyEntry{key: id.Key, requestHash: id.RequestHash, at: w.now, result: w.recorded(result)}
	if e.result.Session = nil; e.ofNode() { // replay finds it again
		e.index = w.index
	}
	w.write.idempotency.put(id.Key, e)
	w.idempotency.add(e)
	w.expireIdempotency(0)
	return result, false
}

// maxRecordedDetail bounds the text of an error in a recorded result, in bytes. Texts name keys, which may be long.
const maxRecordedDetail = 512

// recorded returns what is kept of a result: what the answer to a repeated command has to say. Records count for no
// limit of the state, so each of them is small. Nothing is decided by what is left out, with one exception: the audit
// record of a repeated command has the text of its error. Builds below NumberVersion keep the whole text, so it is
// shortened only from that version on. What was recorded before is shortened when it is used.
func (v *View) recorded(r Result) Result {
	r.Txn = nil // replay executes it again
	if s := r.Session; s != nil {
		r.Session = &Session{ID: s.ID, TTL: s.TTL}
	}
	if role := r.Role; role != nil {
		r.Role = &Role{Name: role.Name, Current: role.Current, Required: role.Required}
		r.Role.Current.Value = ""
	}
	if r.Err != nil && len(r.Err.Detail) > maxRecordedDetail && v.version >= NumberVersion {
		short := *r.Err
		short.Detail = strings.ToValidUTF8(short.Detail[:maxRecordedDetail], "") + "…"
		r.Err = &short
	}
	return r
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

// maxAgedOut is how many entries one command, or one audit record, drops because of their age. A clock that is far
// ahead makes everything old, and the state has no other one to compare it with. So what is kept is forgotten only
// about as fast as it is replaced.
const maxAgedOut = 2

// agedOut returns maxAgedOut if it is in force.
func (v *View) agedOut() int {
	if v.version < BoundsVersion {
		return math.MaxInt
	}
	return maxAgedOut
}

// expireIdempotency drops the oldest entries of each kind: those beyond maxIdempotencyKeys, and up to aged others
// that are too old.
func (w *txn) expireIdempotency(aged int) {
	w.expireOldest(&w.idempotency.order, aged)
	w.idempotency.forgotten = max(w.idempotency.forgotten, w.expireOldest(&w.idempotency.nodeOrder, aged))
}

// expireOldest returns the index of the last entry that it has dropped.
func (w *txn) expireOldest(order *queue[*idempotencyEntry], aged int) (index uint64) {
	since := w.now - int64(idempotencyTTL)
	for order.len() > 0 {
		if order.len() <= maxIdempotencyKeys {
			if aged == 0 || order.at(order.first).at > since {
				break
			}
			aged--
		}
		e := order.pop()
		w.write.idempotency.remove(e.key)
		index = e.index
	}
	return index
}
