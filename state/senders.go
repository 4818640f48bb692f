package state

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"northstar/cluster"
)

// A sender is a process that numbers its commands: a node, for those of its clients, or a client. It says with each
// command which numbers it no longer asks for. So the state keeps only the results of commands in flight, and not one
// of each command, and still applies each command once. See section 6.3 of the Raft dissertation.

// Bounds of what is kept of senders.
const (
	maxSenderResults = 16384   // of one process of a node
	maxClientResults = 1024    // of one client
	maxNodeSenders   = 1024    // processes of nodes
	maxSenders       = 100_000 // clients
	maxResults       = 100_000 // of all clients
)

// sender is what is known of a sender. It is not changed once it is published.
//
// Invariant: the numbers of results grow, and none is below answered.
type sender struct {
	key      string
	answered uint64 // the sender asks for no result below this number
	index    uint64 // of the log entry with its last command
	results  []numberedResult
}

type numberedResult struct {
	number      uint64
	requestHash []byte
	result      Result // recorded
}

func (s *sender) ofNode() bool { return isOfNode(s.key) }

// maxResults returns how many results of the sender are kept.
func (s *sender) maxResults() int {
	if s.ofNode() {
		return maxSenderResults
	}
	return maxClientResults
}

func (s *sender) find(number uint64) (at int, found bool) {
	return slices.BinarySearchFunc(s.results, number, func(r numberedResult, n uint64) int {
		return cmp.Compare(r.number, n)
	})
}

// forget drops the results below a number.
func (s *sender) forget(below uint64) {
	if below <= s.answered {
		return
	}
	s.answered = below
	n, _ := s.find(below)
	clear(s.results[:n])
	s.results = s.results[n:]
}

// senderTable holds the senders. It is a value.
type senderTable struct {
	byKey   *tree[string, *sender]
	nodes   int // how many of them are nodes
	results int // how many results of clients they have
}

// senderRecord is one record of a snapshot: a sender, or one result of the sender before it.
type senderRecord struct {
	key             string // "": a result
	answered, index uint64
	result          *numberedResult
}

func (s *senderRecord) fields(c *codec) {
	text(c, 1, &s.key)
	number(c, 2, &s.answered)
	number(c, 3, &s.index)
	variant(c, 4, &s.result)
}

func (r *numberedResult) fields(c *codec) {
	number(c, 1, &r.number)
	blob(c, 2, &r.requestHash)
	nested(c, 3, &r.result)
}

// records yields the senders in order of keys, each with its results behind it.
func (t senderTable) records(yield func(*senderRecord) bool) {
	for s := range t.byKey.after("") {
		if !yield(&senderRecord{key: s.key, answered: s.answered, index: s.index}) {
			return
		}
		for i := range s.results {
			if !yield(&senderRecord{result: &s.results[i]}) {
				return
			}
		}
	}
}

func (t senderTable) countRecords() (n uint64) {
	for s := range t.byKey.after("") {
		n += 1 + uint64(len(s.results))
	}
	return n
}

// request returns the key of a client's numbered request where numbers are not known: it was the whole key.
func (id *Idempotency) request() string {
	b := append([]byte(id.Key), '.')
	b = strconv.AppendUint(b, id.Number, 10)
	return string(strconv.AppendUint(append(b, '.'), id.AnsweredBelow, 10))
}

// DropNumber makes the number of a client's request part of its key, for members that do not know numbers.
func (c *Command) DropNumber() {
	if id := c.Idempotency; id != nil && id.Number != 0 && !id.ofNode() && !c.Kind.ofSessions() {
		c.Idempotency = &Idempotency{Key: id.request(), RequestHash: id.RequestHash}
	}
}

// applyNumbered is applyOnce for a command with a number.
func (w *txn) applyNumbered(c *Command) (result Result, repeated bool) {
	id := c.Idempotency
	s, known := w.write.senders.get(id.Key)
	if recorded, ok := w.recordedResult(c, s); ok {
		return recorded, id.ofNode()
	}
	if !known && id.After != 0 && id.After < w.idempotency.forgotten {
		return failed(cluster.CodeOutcomeUnknown,
			"the write was first proposed after index %d, and senders up to index %d are no longer kept", id.After,
			w.idempotency.forgotten), false
	}
	result = w.applyFenced(c)
	s = w.ownSender(id, s)
	had := len(s.results)
	s.forget(id.AnsweredBelow)
	s.index = w.index
	if at, _ := s.find(id.Number); id.Number >= s.answered {
		s.results = slices.Insert(s.results, at, numberedResult{id.Number, id.RequestHash, w.recorded(result)})
	}
	if len(s.results) > s.maxResults() {
		s.forget(s.results[0].number + 1)
	}
	if !id.ofNode() {
		w.senders.results += len(s.results) - had
		w.boundResults()
	}
	return result, false
}

// recordedResult returns the result of a command that was applied before, or that must not be applied any more.
func (w *txn) recordedResult(c *Command, s *sender) (Result, bool) {
	id := c.Idempotency
	var hash []byte
	var result Result
	if s != nil && id.Number < s.answered {
		return failed(cluster.CodeOutcomeUnknown, "the result of this write is no longer kept: its sender has asked for "+
			"later ones only"), true
	} else if at, found := s.lookUp(id.Number); found {
		hash, result = s.results[at].requestHash, s.results[at].result
	} else if id.ofNode() {
		return Result{}, false
	} else if e, found := w.write.idempotency.get(id.request()); found { // before all members knew numbers
		hash, result = e.requestHash, w.recorded(e.result)
	} else {
		return Result{}, false
	}
	if bytes.Equal(hash, id.RequestHash) {
		return w.replay(c, result), true
	}
	return Result{Err: withStatus(http.StatusUnprocessableEntity,
		badRequest("idempotency key: was used with another request"))}, true
}

// lookUp is find for a sender that may be nil.
func (s *sender) lookUp(number uint64) (at int, found bool) {
	if s == nil {
		return 0, false
	}
	return s.find(number)
}

// ownSender returns a sender that this batch may change: a copy of one that is published.
func (w *txn) ownSender(id *Idempotency, s *sender) *sender {
	published, _ := w.senders.byKey.get(id.Key)
	if s != nil && s != published {
		return s
	}
	own := &sender{key: id.Key, answered: id.AnsweredBelow}
	if s != nil {
		own.answered = s.answered
		own.results = append(make([]numberedResult, 0, len(s.results)+16), s.results...)
	} else {
		w.makeRoomForSender(id.ofNode())
		if id.ofNode() {
			w.senders.nodes++
		}
	}
	w.write.senders.put(id.Key, own)
	return own
}

// makeRoomForSender drops the quarter of the senders of one kind that have been silent for longest, if it is full.
func (w *txn) makeRoomForSender(ofNode bool) {
	have, most := w.senders.nodes, maxNodeSenders
	if !ofNode {
		have, most = w.write.senders.len()-w.senders.nodes, maxSenders
	}
	if have < most {
		return
	}
	for _, s := range w.silentSenders(ofNode)[:most/4] {
		w.dropSender(s)
	}
}

// boundResults drops clients that have been silent for longest when there are too many results of clients, until a
// quarter is free: it looks at all senders, and is seldom needed.
func (w *txn) boundResults() {
	if w.senders.results <= maxResults {
		return
	}
	for _, s := range w.silentSenders(false) {
		if w.senders.results <= maxResults*3/4 {
			return
		}
		w.dropSender(s)
	}
}

// silentSenders returns the senders of one kind, first those that have been silent for longest.
func (w *txn) silentSenders(ofNode bool) (all []*sender) {
	for s := range w.write.senders.all() {
		if s.ofNode() == ofNode {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *sender) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.key, b.key))
	})
	return all
}

func (w *txn) dropSender(s *sender) {
	w.write.senders.remove(s.key)
	if s.ofNode() {
		w.senders.nodes--
		w.idempotency.forgotten = max(w.idempotency.forgotten, s.index)
	} else {
		w.senders.results -= len(s.results)
	}
}

// mayReplayNumber is mayReplay for a command with a number.
func (w *txn) mayReplayNumber(id *Idempotency) bool {
	if !id.ofNode() {
		return true
	}
	s, known := w.senders.byKey.get(id.Key)
	if !known {
		return id.After != 0 && id.After < w.idempotency.forgotten
	}
	_, found := s.find(id.Number)
	return found || id.Number < s.answered
}
