package state

import (
	"net/http"

	"northstar/cluster"
)

// Limits of what a command may carry.
const (
	MaxKey            = 4096    // bytes of a key
	maxShortKey       = 1024    // bytes of a key that members below txnVersion accept
	MaxValue          = 1 << 20 // bytes of a value
	MaxSession        = 128     // bytes of a session ID
	MaxIdempotencyKey = 192     // bytes: up to 128 from the client, and the caller's identity
	MaxRequestHash    = 64      // bytes
)

// revisionBits is the width of the counter in a revision. The bits above it hold the generation.
const revisionBits = 40

// maxRevision bounds revisions so that JSON numbers represent them exactly.
const maxRevision = 1 << 53

// firstRevision returns the number below the first revision of a generation.
func firstRevision(generation uint64) uint64 {
	if generation == 0 {
		return 0
	}
	return (generation - 1) << revisionBits
}

func (p *Put) check() *cluster.Error {
	if err := CheckKey(p.Key); err != nil {
		return err
	}
	if len(p.Value) > MaxValue {
		return withStatus(http.StatusRequestEntityTooLarge,
			badRequest("value: must be at most %d bytes (got %d)", MaxValue, len(p.Value)))
	}
	if p.Session == "" {
		return nil
	}
	return CheckSession("ttl_session", p.Session)
}

func (p *Delete) check() *cluster.Error { return CheckKey(p.Key) }

func (p *Put) apply(w *txn) Result {
	old, item, refusal := p.decide(w)
	if refusal.Err != nil {
		return refusal
	}
	exists := old != nil
	w.revision++
	w.stateBytes += item.footprint() - old.footprint()
	if exists {
		item.Key = old.Key // which the tree keeps
		item.CreateRevision, item.Version = old.CreateRevision, old.Version+1
		w.bytes -= old.size()
	}
	w.linkKey(old, item)
	w.bytes += item.size()
	w.write.keys.put(p.Key, item)
	w.pushChange(change{item: item, prev: old})
	return Result{Revision: w.revision, Created: !exists}
}

// decide returns the item that a put replaces, nil for none, and the new one; or why the put is refused. It changes
// nothing.
func (p *Put) decide(w *txn) (old, item *Item, refusal Result) {
	old, exists := w.write.keys.get(p.Key)
	if p.IfAbsent && exists || p.IfPresent && !exists {
		return nil, nil, conditionFailed(p.Key, old)
	}
	if p.IfRevision != nil && *p.IfRevision != revisionOf(old) {
		return nil, nil, conditionFailed(p.Key, old)
	}
	if p.Session != "" {
		_, err := w.liveSession(p.Session)
		if err == nil && (old == nil || old.Session != p.Session) {
			err = w.keysLeft(p.Session)
		}
		if err != nil {
			return nil, nil, Result{Err: err}
		}
	}
	item = &Item{
		Key: p.Key, Value: p.Value, Revision: w.revision + 1, CreateRevision: w.revision + 1, Version: 1,
		Session: p.Session,
	}
	return old, item, Result{Err: w.roomForKeys(item.footprint() - old.footprint())}
}

func (p *Delete) apply(w *txn) Result {
	old, exists := w.write.keys.get(p.Key)
	if p.IfPresent && !exists || p.IfRevision != nil && *p.IfRevision != revisionOf(old) {
		return conditionFailed(p.Key, old)
	}
	if !exists {
		return Result{Err: notFound("key %q does not exist", p.Key)}
	}
	w.deleteKey(p.Key)
	return Result{Revision: w.revision}
}

// deleteKey deletes a key that may exist, with a revision of its own.
func (w *txn) deleteKey(key string) { w.deleteKeys([]string{key}) }

// deleteKeys deletes keys that may exist, with one revision.
func (w *txn) deleteKeys(keys []string) {
	revision := w.revision + 1
	for _, key := range keys {
		old, exists := w.write.keys.remove(key)
		if !exists {
			continue
		}
		w.linkKey(old, nil)
		w.revision = revision
		w.bytes -= old.size()
		w.stateBytes -= old.footprint()
		w.pushChange(change{item: &Item{Key: old.Key, Revision: revision}, prev: old, deleted: true})
	}
}

// pushChange adds a change to the history. Until txnVersion is in use, it does not keep what was replaced: no node
// that reads an older snapshot could.
func (w *txn) pushChange(c change) {
	if !w.KeepsReplaced() {
		c.prev = nil
	}
	w.history.push(c, w.options)
}

// linkKey updates the owner of a key when now replaces old. Either may be nil.
func (w *txn) linkKey(old, now *Item) {
	if old != nil && old.Session != "" {
		w.unlink(old.Session, ownedKey, old.Key)
		w.countKey(old.Session, -1)
	}
	if now != nil && now.Session != "" {
		w.link(now.Session, ownedKey, now.Key)
		w.countKey(now.Session, 1)
	}
}

func (it *Item) size() int64 {
	if it == nil {
		return 0
	}
	return int64(len(it.Key) + len(it.Value))
}

// revisionOf returns 0 for an absent key.
func revisionOf(it *Item) uint64 {
	if it == nil {
		return 0
	}
	return it.Revision
}

func conditionFailed(key string, current *Item) Result {
	rev := revisionOf(current)
	r := failed(cluster.CodeConditionFailed, "key %q is at revision %d", key, rev)
	if rev == 0 {
		r = failed(cluster.CodeConditionFailed, "key %q is absent", key)
	}
	r.Err.Revision = rev
	return r
}
