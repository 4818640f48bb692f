package storage

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

const logName = "log.db"

// boltLog is a raft.LogStore over raft-boltdb. It knows which entries exist without a call of bbolt, and keeps the tail
// record. It turns a panic or fault of bbolt on a damaged file into an error, and then never calls bbolt again.
type boltLog struct {
	path   string
	store  *raftboltdb.BoltStore
	newest *cache // the last entries, as the opening has read them

	writing sync.Mutex // one write at a time, as in bbolt
	txid    uint64     // of the last transaction; guarded by writing

	mu     sync.RWMutex
	spans  indexRanges // guarded by mu
	damage atomic.Pointer[DamagedError]
}

// createLog makes an empty log that exists completely or not at all.
func createLog(path string) error {
	temp := path + tempSuffix
	if err := writeOpeningTail(temp, tail{}); err != nil {
		return errors.Join(fmt.Errorf("create %s: %w", path, err), os.Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return nil
}

// openLog opens a log that checkLog has found sound.
func openLog(path string, c checkedLog) (*boltLog, error) {
	if err := awaitFileLock(path, boltLockWait); err != nil {
		return nil, err
	}
	l := &boltLog{path: path, spans: c.spans, newest: c.newest}
	err := l.recoverBolt(func() (err error) {
		if err = writeOpeningTail(path, c.tail); err == nil {
			l.store, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if l.txid, err = readTxid(path); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func readTxid(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	m, err := newestMeta(f)
	if err != nil {
		return 0, &DamagedError{Path: path, What: err.Error()}
	}
	return m.txid, nil
}

// FirstIndex returns the first index stored, 0 for an empty log.
func (l *boltLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.spans.first(), nil
}

// LastIndex returns the last index stored, 0 for an empty log.
func (l *boltLog) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.spans.last(), nil
}

func (l *boltLog) has(index uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.spans.has(index)
}

func (l *boltLog) setSpans(s indexRanges) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans = s
}

// GetLog reads an entry. The error is raft.ErrLogNotFound if there is none.
func (l *boltLog) GetLog(index uint64, out *raft.Log) error {
	if !l.has(index) {
		return raft.ErrLogNotFound
	}
	*out = raft.Log{}
	err := l.recoverBolt(func() error { return l.store.GetLog(index, out) })
	if !errors.Is(err, raft.ErrLogNotFound) || !l.has(index) {
		return err
	}
	return &DamagedError{Path: l.path, What: fmt.Sprintf("entry %d is missing", index)}
}

// StoreLog stores one entry.
func (l *boltLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries in one transaction, with one tail record.
func (l *boltLog) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.RLock()
	last := l.spans.last()
	l.mu.RUnlock()
	batch := make([]*raft.Log, len(entries), len(entries)+1)
	copy(batch, entries)
	for _, e := range entries {
		last = max(last, e.Index)
	}
	batch = append(batch, tail{txid: l.txid + 1, last: last}.entry())
	if err := l.update(func() error { return l.store.StoreLogs(batch) }); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		l.spans.add(e.Index)
	}
	return nil
}

// DeleteRange deletes the entries from to to. It first writes a tail record that announces the deletion.
func (l *boltLog) DeleteRange(from, to uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.RLock()
	before := l.spans
	l.mu.RUnlock()
	from, to = max(from, before.first()), min(to, before.last())
	if len(before) == 0 || from > to {
		return nil
	}
	after := before.without(from, to)
	l.setSpans(after) // before the deletion: see GetLog
	mark := tail{txid: l.txid + 1, last: after.last(), untaggedTx: 1, from: from, to: to}
	err := l.update(func() error { return l.store.StoreLog(mark.entry()) })
	if err == nil {
		err = l.update(func() error { return l.store.DeleteRange(from, to) })
	}
	if err != nil {
		l.setSpans(before)
	}
	return err
}

// update runs one bbolt transaction, and counts it when it is committed.
func (l *boltLog) update(f func() error) error {
	if err := l.recoverBolt(f); err != nil {
		return err
	}
	l.txid++
	return nil
}

// recoverBolt runs f, which calls bbolt. It turns a panic in f, or a fault on the memory map, into an error.
func (l *boltLog) recoverBolt(f func() error) (err error) {
	if b := l.damage.Load(); b != nil {
		return b
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			d := &DamagedError{Path: l.path, What: fmt.Sprint("bbolt: ", r)}
			l.damage.CompareAndSwap(nil, d)
			err = l.damage.Load()
		}
	}()
	return f()
}

// close closes the file, but not after a panic in bbolt: its locks may be held for ever, and the process ends.
func (l *boltLog) close() error {
	if l.damage.Load() != nil || l.store == nil {
		return nil
	}
	return l.recoverBolt(l.store.Close)
}
