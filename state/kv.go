package state

import (
	"net/http"
	"unicode/utf8"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Limits of what a command may carry.
const (
	MaxKey            = 1024    // bytes of a key
	MaxValue          = 1 << 20 // bytes of a value
	MaxSession        = 128     // bytes of a session ID
	MaxIdempotencyKey = 192     // bytes: the 128 that a client may send and the caller's identity
	MaxRequestHash    = 64      // bytes
)

// revisionBits is the width of the counter in a revision; the generation stands
// above it.
const revisionBits = 40

// maxRevision is the bound that keeps revisions exact as JSON numbers.
const maxRevision = 1 << 53

// firstRevision is the number below the first revision of a generation.
func firstRevision(generation uint64) uint64 {
	if generation == 0 {
		return 0
	}
	return (generation - 1) << revisionBits
}

// CheckKey checks a key: 1 to MaxKey bytes of UTF-8.
func CheckKey(key string) *cluster.Error {
	switch {
	case key == "":
		return cluster.Errorf(cluster.CodeBadRequest, "key: must not be empty")
	case len(key) > MaxKey:
		return cluster.Errorf(cluster.CodeBadRequest, "key: want at most %d bytes, got %d", MaxKey, len(key))
	case !utf8.ValidString(key):
		return cluster.Errorf(cluster.CodeBadRequest, "key: not valid UTF-8")
	}
	return nil
}

func (p *Put) check() *cluster.Error {
	if err := CheckKey(p.Key); err != nil {
		return err
	}
	if len(p.Value) > MaxValue {
		err := cluster.Errorf(cluster.CodeBadRequest, "value: want at most %d bytes, got %d", MaxValue, len(p.Value))
		err.Status = http.StatusRequestEntityTooLarge
		return err
	}
	if len(p.Session) > MaxSession {
		return cluster.Errorf(cluster.CodeBadRequest, "ttl_session: want at most %d bytes, got %d", MaxSession, len(p.Session))
	}
	return nil
}

func (p *Delete) check() *cluster.Error { return CheckKey(p.Key) }

func (p *Put) apply(w *txn) Result {
	key := []byte(p.Key)
	old, exists := w.writeKeys().Get(key)
	if p.IfAbsent && exists || p.IfPresent && !exists {
		return conditionFailed(p.Key, old)
	}
	if p.IfRevision != nil && *p.IfRevision != revisionOf(old) {
		return conditionFailed(p.Key, old)
	}
	if p.Session != "" {
		if _, err := w.liveSession(p.Session); err != nil {
			return Result{Err: err}
		}
	}
	w.revision++
	item := &Item{Key: p.Key, Value: p.Value, Revision: w.revision, CreateRevision: w.revision, Version: 1, Session: p.Session}
	if exists {
		item.CreateRevision, item.Version = old.CreateRevision, old.Version+1
		w.bytes -= old.size()
	}
	w.linkKey(old, item)
	w.bytes += item.size()
	w.keysTxn.Insert(key, item)
	w.history.push(change{item: item}, w.options)
	return Result{Revision: w.revision, Created: !exists}
}

func (p *Delete) apply(w *txn) Result {
	key := []byte(p.Key)
	old, exists := w.writeKeys().Get(key)
	if p.IfPresent && !exists || p.IfRevision != nil && *p.IfRevision != revisionOf(old) {
		return conditionFailed(p.Key, old)
	}
	if !exists {
		err := cluster.Errorf(cluster.CodeBadRequest, "key %q does not exist", p.Key)
		err.Status = http.StatusNotFound
		return Result{Err: err}
	}
	w.deleteKey(key)
	return Result{Revision: w.revision}
}

// deleteKey deletes a key that may exist.
func (w *txn) deleteKey(key []byte) {
	old, exists := w.writeKeys().Delete(key)
	if !exists {
		return
	}
	w.linkKey(old, nil)
	w.revision++
	w.bytes -= old.size()
	w.history.push(change{item: &Item{Key: old.Key, Revision: w.revision}, deleted: true}, w.options)
}

// linkKey notes which session a key goes with, when now takes the place of old; nil
// is no key.
func (w *txn) linkKey(old, now *Item) {
	if old != nil && old.Session != "" {
		w.unlink(old.Session, ownedKey, old.Key)
	}
	if now != nil && now.Session != "" {
		w.link(now.Session, ownedKey, now.Key)
	}
}

func (w *txn) writeKeys() *iradix.Txn[*Item] { return open(&w.keysTxn, w.keys) }

func (it *Item) size() int64 { return int64(len(it.Key) + len(it.Value)) }

// revisionOf is 0 for a key that is absent.
func revisionOf(it *Item) uint64 {
	if it == nil {
		return 0
	}
	return it.Revision
}

func conditionFailed(key string, current *Item) Result {
	rev := revisionOf(current)
	err := cluster.Errorf(cluster.CodeConditionFailed, "key %q is absent", key)
	if rev != 0 {
		err = cluster.Errorf(cluster.CodeConditionFailed, "key %q is at revision %d", key, rev)
	}
	err.Revision = rev
	return Result{Err: err}
}
