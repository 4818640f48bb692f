package storage

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

const logName = "log.db"

// boltLog is a raft.LogStore over raft-boltdb, with a journal ahead of it. It knows which entries exist without a call
// of bbolt, and keeps the tail record. It turns a panic or fault of bbolt on a damaged file into an error, and then
// never calls bbolt again.
type boltLog struct {
	path   string
	store  *raftboltdb.BoltStore
	newest *cache // the last entries, as the opening has read them

	writing sync.Mutex // one write at a time, as in bbolt
	txid    uint64     // of the last transaction; guarded by writing
	journal *journal   // guarded by writing
	failed  error      // of a transaction that may count or not: nothing is written after it; guarded by writing

	mu     sync.RWMutex
	spans  indexRanges // guarded by mu, with those of journaled
	damage atomic.Pointer[DamagedError]
	// journaled are the entries that only the journal has. Guarded by mu, and changed by the holder of writing.
	journaled map[uint64]*raft.Log
}

// createLog makes an empty log that exists completely or not at all.
func createLog(path string) error {
	temp := path + tempSuffix
	if _, err := writeOpeningTail(temp, tail{}, nil); err != nil {
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
	l := &boltLog{path: path, spans: c.spans, newest: c.newest, journaled: map[uint64]*raft.Log{}}
	var err error
	if l.journal, err = openJournal(path, c.tail.journal); err != nil {
		return nil, err
	}
	err = l.recoverBolt(func() error {
		opened := c.tail
		opened.journal = true
		txid, err := writeOpeningTail(path, opened, c.journaled)
		if err == nil {
			l.journal.begin(txid)
			l.store, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), l.close())
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
	l.mu.RLock()
	e := l.journaled[index]
	l.mu.RUnlock()
	if e != nil {
		*out = *e
		return nil
	}
	*out = raft.Log{}
	err := l.recoverBolt(func() error { return l.store.GetLog(index, out) })
	if !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	// It may have been deleted meanwhile, and another entry of its index may be in the journal.
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch e := l.journaled[index]; {
	case e != nil:
		*out = *e
		return nil
	case !l.spans.has(index):
		return err
	}
	return &DamagedError{Path: l.path, What: fmt.Sprintf("entry %d is missing", index)}
}

// StoreLog stores one entry.
func (l *boltLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries in the journal. Those that have no room there go into bbolt, with all that the journal has.
func (l *boltLog) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if b := l.damage.Load(); b != nil {
		return b
	}
	if l.failed != nil {
		return l.failed
	}
	journaled, err := l.journal.append(entries)
	if err != nil {
		return err
	}
	if !journaled {
		t := tail{last: l.lastOf(entries), journal: true}
		if err := l.storeInBolt(entries, t); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		l.spans.add(e.Index)
		if journaled {
			l.journaled[e.Index] = e
		}
	}
	return nil
}

// lastOf returns the last index of the log with entries.
func (l *boltLog) lastOf(entries []*raft.Log) uint64 {
	last, _ := l.LastIndex()
	for _, e := range entries {
		last = max(last, e.Index)
	}
	return last
}

// storeInBolt stores what the journal has, entries, and a tail record in one transaction, which begins an epoch of the
// journal. The caller holds writing.
func (l *boltLog) storeInBolt(entries []*raft.Log, t tail) error {
	all := make([]*raft.Log, 0, len(l.journaled)+len(entries)+1)
	for _, index := range slices.Sorted(maps.Keys(l.journaled)) {
		all = append(all, l.journaled[index])
	}
	t.txid = l.txid + 1
	all = append(append(all, entries...), t.entry())
	if err := l.update(func() error { return l.store.StoreLogs(all) }); err != nil {
		return err
	}
	l.journal.begin(t.txid)
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.journaled)
	return nil
}

// DeleteRange deletes the entries from to to. It first moves those of the journal to bbolt, with a tail record that
// announces the deletion.
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
	err := l.storeInBolt(nil, tail{last: after.last(), untaggedTx: 1, from: from, to: to, journal: true})
	if err == nil {
		err = l.update(func() error { return l.store.DeleteRange(from, to) })
	}
	if err != nil {
		l.setSpans(before)
	}
	return err
}

// update runs one bbolt transaction, and counts it when it is committed. A transaction whose meta page was written and
// not synced may count or not: entries written after it, to either file, could be lost without a trace.
func (l *boltLog) update(f func() error) error {
	if l.failed != nil {
		return l.failed
	}
	err := l.recoverBolt(f)
	if err == nil {
		l.txid++
		return nil
	}
	if txid, readErr := readTxid(l.path); readErr != nil || txid != l.txid || !isNoSpace(err) {
		l.failed = err
	}
	return err
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

// close moves the entries of the journal to bbolt, so that a build without a journal can open the log, and closes the
// files. It does not after a panic in bbolt: its locks may be held for ever, and the process ends.
func (l *boltLog) close() error {
	if l.damage.Load() != nil {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.store == nil {
		return l.journal.close()
	}
	if l.failed == nil && l.journal.err == nil && l.txid > 0 {
		last, _ := l.LastIndex()
		_ = l.storeInBolt(nil, tail{last: last}) // on a full disk the journal keeps them
	}
	return errors.Join(l.journal.close(), l.recoverBolt(l.store.Close))
}
