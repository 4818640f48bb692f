package storage

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
)

// checkedLog is the content of a sound log file.
type checkedLog struct {
	tail   tail
	spans  indexRanges // the entries' indexes after an unfinished deletion is done
	term   uint64      // of the last entry, if it comes after the snapshot; else 0
	newest *cache      // the last entries that were checked
	// journaled are the entries that only the journal has; spans has their indexes.
	journaled []raft.Log
}

// checkLog checks a log file and all entries after a snapshot's index, because Raft reads those at its start and
// panics on an unreadable one. Older ones are checked when they are read. It calls see, if not nil, with each
// configuration, in order. Entries of an unfinished deletion are checked, and do not count: the next opening deletes
// them.
//
// The entries' terms do not decrease. The first one may be of an earlier term than the snapshot: earlier builds kept a
// deposed leader's entries behind an installed restore until the leader's next append.
func checkLog(path string, index uint64, see func(raft.Log) error) (checkedLog, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return checkedLog{}, err
	}
	defer func() { _ = f.Close() }()
	// Data that was written but not synced when the process died is in the page cache only. It must be
	// durable before anything depends on it.
	if err := f.Sync(); err != nil {
		return checkedLog{}, fmt.Errorf("sync %s: %w", path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return checkedLog{}, err
	}
	c := entryVerifier{after: index, see: see}
	c.log.newest = newCache(cacheBytes, cacheEntries)
	content, err := checkBolt(f, st.Size(), c.visit)
	if err == nil {
		c.log.tail, c.log.spans, err = checkTail(content)
	}
	if err != nil {
		return checkedLog{}, &DamagedError{Path: path, What: err.Error()}
	}
	c.finishDeletion()
	if err := c.showConfigurations(path); err != nil {
		return checkedLog{}, err
	}
	if err := c.visitJournal(path); err != nil {
		return checkedLog{}, err
	}
	c.log.term = c.terms.last()
	return c.log, nil
}

type entryVerifier struct {
	after          uint64
	see            func(raft.Log) error
	log            checkedLog
	terms          termRuns   // of the entries after after
	configurations []raft.Log // that see is yet to get
}

// finishDeletion forgets the entries that the tail record says are being deleted.
func (c *entryVerifier) finishDeletion() {
	t := c.log.tail
	if t.to == 0 {
		return
	}
	c.log.newest.deleteRange(t.from, t.to)
	c.terms.cutAfter(c.log.spans.last())
	c.configurations = slices.DeleteFunc(c.configurations, func(e raft.Log) bool {
		return e.Index >= t.from && e.Index <= t.to
	})
}

// showConfigurations calls see with the configurations that were found in a file.
func (c *entryVerifier) showConfigurations(path string) error {
	for _, e := range c.configurations {
		if err := c.see(e); err != nil {
			return &DamagedError{Path: path, What: fmt.Sprintf("entry %d: %v", e.Index, err)}
		}
	}
	c.configurations = nil
	return nil
}

func (c *entryVerifier) visit(index uint64, value func() ([]byte, error)) error {
	if index <= c.after {
		return nil
	}
	b, err := value()
	if err != nil {
		return err
	}
	e, err := decodeEntry(b)
	if err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	return c.verify(index, e)
}

// visitJournal checks the entries of the journal, which follow those of the log.
func (c *entryVerifier) visitJournal(logPath string) (err error) {
	if !c.log.tail.journal {
		return nil
	}
	if c.log.journaled, err = readJournal(logPath, c.log.tail.txid); err != nil {
		return err
	}
	for _, e := range c.log.journaled {
		c.log.spans.add(e.Index)
		if e.Index <= c.after {
			continue
		}
		if err := c.verify(e.Index, e); err != nil {
			return &DamagedError{Path: journalPath(logPath), What: err.Error()}
		}
	}
	return c.showConfigurations(journalPath(logPath))
}

func (c *entryVerifier) verify(index uint64, e raft.Log) error {
	if err := verifyChecksum(index, &e); err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	if before := c.terms.last(); e.Term < before {
		return fmt.Errorf("entry %d is of term %d, after one of term %d", index, e.Term, before)
	}
	c.terms.add(index, e.Term)
	if c.see != nil && e.Type == raft.LogConfiguration {
		c.configurations = append(c.configurations, e)
	}
	c.log.newest.add([]*raft.Log{&e})
	return nil
}

// checkData checks the log against the snapshots and the current term, and calls see as checkLog does.
func checkData(dir string, found snapshotScan, currentTerm uint64, see func(raft.Log) error) (checkedLog, error) {
	path, best := filepath.Join(dir, logName), found.best()
	log, err := checkLog(path, best.Index, see)
	if err == nil {
		err = checkContinuity(path, log.spans, found)
	}
	if newest := max(best.Term, log.term); err == nil && currentTerm < newest {
		what := fmt.Sprintf("its term is %d, the log's is %d", currentTerm, newest)
		err = &DamagedError{Path: filepath.Join(dir, voteName), What: what}
	}
	return log, err
}

// checkContinuity checks that the log has every entry after the newest good snapshot, without a gap.
func checkContinuity(logPath string, s indexRanges, found snapshotScan) error {
	base, last := found.best().Index, s.last()
	var what string
	switch {
	case last > base && !s.covers(base+1, last):
		what = fmt.Sprintf("entries after %d are missing", base)
	case found.index > max(base, last):
		what = fmt.Sprintf("its last entry is %d, but there was a snapshot of %d", last, found.index)
	default:
		return nil
	}
	if found.err != nil {
		return fmt.Errorf("%w (no other snapshot covers its entries together with the log)", found.err)
	}
	return &DamagedError{Path: logPath, What: what}
}

// noEntries is an index after which there is no entry to check.
const noEntries = math.MaxUint64
