package storage

import (
	"fmt"
	"math"
	"os"

	"github.com/hashicorp/raft"
)

// checkedLog is what a sound log file holds.
type checkedLog struct {
	tail  tail
	spans indexRanges // the entries' indexes, an unfinished deletion being done
	term  uint64      // of the last entry, or of the snapshot before it
}

// checkLog checks a log file, reading all of the entries after a snapshot's
// index: those that Raft reads at its start. It answers an unreadable entry
// with a panic. Older ones are checked when they are read. see, if not nil, is
// called with each of those entries, in order.
func checkLog(path string, index, term uint64, see func(raft.Log) error) (checkedLog, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return checkedLog{}, err
	}
	defer func() { _ = f.Close() }()
	// What was written but not synced when the process died is in the page
	// cache only; it has to be durable before anything is built on it.
	if err := f.Sync(); err != nil {
		return checkedLog{}, fmt.Errorf("sync %s: %w", path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return checkedLog{}, err
	}
	c := entryVerifier{after: index, term: term, see: see}
	content, err := checkBolt(f, st.Size(), c.visit)
	if err == nil {
		c.log.tail, c.log.spans, err = checkTail(content)
	}
	if err != nil {
		return checkedLog{}, &DamagedError{Path: path, What: err.Error()}
	}
	c.log.term = c.term
	return c.log, nil
}

// entryVerifier checks the entries after an index.
type entryVerifier struct {
	after, term uint64
	see         func(raft.Log) error
	log         checkedLog
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
	if err == nil {
		err = verifyChecksum(index, &e)
	}
	if err == nil && c.see != nil {
		err = c.see(e)
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	if e.Term < c.term {
		return fmt.Errorf("entry %d is of term %d, after one of term %d", index, e.Term, c.term)
	}
	c.term = e.Term
	return nil
}

// checkContinuity holds log and snapshots against each other: what the newest
// good snapshot lacks has to be in the log, without a gap.
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
		return fmt.Errorf("%w (no other snapshot and the log stand in for it)", found.err)
	}
	return &DamagedError{Path: logPath, What: what}
}

// noEntries is an index after which there is nothing to check.
const noEntries = math.MaxUint64
