package consensus

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
)

// Keys under which the Raft library keeps term and vote.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// firstEntryWait bounds how long a new leader's own first entry waits for the
// leader-start. The library sends it when it next looks by itself.
const firstEntryWait = 10 * time.Millisecond

// errWaits is why the library cannot have a new leader's first entry yet. It
// gives up that message without counting a failure, and is told of the next entry.
var errWaits = errors.New("not durable yet: it waits for the leader-start")

// errUnfinished is why nothing is written after a write that has not ended.
var errUnfinished = errors.New("the write before it has not ended")

// errBarred is why this node's vote for itself is not recorded. Without it the
// library does not count that vote, so nobody is elected, and it goes on as a
// candidate that nobody votes for.
var errBarred = errors.New("this node must not stand before its log reaches its own admission")

// instanceStore is what one run of the library's node writes term, votes and log
// to. In an election the library makes two synced writes where one does, as long
// as nothing leaves this node between the two:
//
//   - A candidate records its new term, then its vote for itself: one record, which
//     is written while the others are asked (see overlapVote).
//   - A voter records a candidate's term, then its vote. While votes are on their
//     way through the library (voting), the term waits, and nothing that the
//     library answers leaves this node before settle.
//   - A new leader stores an entry of its own, then the leader-start. The first
//     waits for the second. Until then it cannot be read, so it is sent to
//     nobody; and with a second voter nobody counts it before that has it.
//
// A node that is barred records no vote for itself, whatever made it stand.
//
// A leader's entries are sent to the followers while they are written here (see
// overlap). Any other write comes after that, and after what waits. The library
// writes from its main loop; all else may be called from any goroutine.
type instanceStore struct {
	logs   raft.LogStore
	stable storage.VoteStore
	self   []byte                     // as the library names this node in votes
	state  func() raft.RaftState      // the library's
	voters func() int                 // in the newest configuration
	barred func() bool                // this node must not elect itself
	turn   chan struct{}              // capacity 1: who holds it writes
	closed chan struct{}              // no more than the library writes any more
	votes  atomic.Int32               // on their way through the library
	waits  atomic.Bool                // term is recorded, and not durable
	first  atomic.Pointer[raft.Log]   // stored, and not durable; changed in turn
	late   atomic.Pointer[time.Timer] // makes first durable
	behind atomic.Pointer[overlapped] // stored, and being written; changed in turn
	own    atomic.Pointer[ownVote]    // for itself, being written; changed in turn

	// Whoever has the turn may use these.
	term     uint64 // see waits
	voteTerm uint64 // of the vote whose candidate comes next
	failed   error  // of a write of entries, or of the own vote: nothing is written after it
}

// newInstanceStore makes the store of a run of the library. started is to be
// called with that, once there is one.
func (n *Node) newInstanceStore(trans raft.Transport, barred func() bool) (s *instanceStore, started func(*raft.Raft)) {
	var running atomic.Pointer[raft.Raft]
	return &instanceStore{
		barred: barred, logs: n.store.Log(), stable: n.store.Stable(), turn: make(chan struct{}, 1), closed: make(chan struct{}),
		self: trans.EncodePeer(raft.ServerID(n.cfg.Self.NodeID), trans.LocalAddr()),
		state: func() raft.RaftState {
			if r := running.Load(); r != nil {
				return r.State()
			}
			return raft.Shutdown
		},
		voters: func() int { return len(voterIDs(serversOf(running.Load().GetConfiguration().Configuration()))) },
	}, running.Store
}

// lock waits for the turn. It fails, without the turn, once a write has failed.
func (s *instanceStore) lock() error {
	s.turn <- struct{}{}
	err := s.failed
	if err != nil {
		s.unlock()
	}
	return err
}

func (s *instanceStore) unlock() { <-s.turn }

// lockOrPark is lock for a call that the library would answer an error of with a
// panic: its goroutine then ends when this store is closed.
func (s *instanceStore) lockOrPark() {
	if s.lock() != nil {
		s.park()
	}
}

// park ends this goroutine when this store is closed.
func (s *instanceStore) park() {
	<-s.closed
	runtime.Goexit()
}

// lockOpen is lock for what the library does not do itself: it fails once this
// store is closed.
func (s *instanceStore) lockOpen() error {
	select {
	case s.turn <- struct{}{}:
	case <-s.closed:
		return errStopped
	}
	err := s.failed
	select {
	case <-s.closed:
		err = errStopped
	default:
	}
	if err != nil {
		s.unlock()
	}
	return err
}

// retire waits for the write in hand, and lets nobody write any more.
func (s *instanceStore) retire() { s.turn <- struct{}{} }

// close ends what the library does not do itself. What waits stays unwritten: it
// is as if it had never come.
func (s *instanceStore) close() {
	close(s.closed)
	if t := s.late.Load(); t != nil {
		t.Stop()
	}
}

// voting says that a vote is on its way through the library, or no more.
func (s *instanceStore) voting(coming bool) {
	if coming {
		s.votes.Add(1)
	} else {
		s.votes.Add(-1)
	}
}

// settle makes a term durable that waits for its vote, and waits for a vote or
// entries that are being written. It must be called before an answer of the library
// leaves this node, and fails once that is stopped.
func (s *instanceStore) settle() error {
	// The term first: a vote for itself is kept before its term stops waiting, so that
	// one of the two shows.
	if err := s.settleWaiting(); err != nil {
		return err
	}
	if err := s.recorded(); err != nil {
		return err
	}
	return s.written(math.MaxUint64)
}

// settleWaiting makes a term durable that waits for its vote.
func (s *instanceStore) settleWaiting() error {
	if !s.waits.Load() {
		return nil
	}
	done := make(chan error, 1)
	go func() { // a disk that hangs must not hold up whoever waits
		err := s.lockOpen()
		if err == nil {
			defer s.unlock()
			err = s.settleTerm()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-s.closed:
		return errStopped
	}
}

// settleTerm is settle with the turn.
func (s *instanceStore) settleTerm() error {
	if !s.waits.Load() {
		return nil
	}
	err := s.stable.SetUint64([]byte(keyCurrentTerm), s.term)
	if err == nil {
		s.waits.Store(false)
	}
	return err
}

// settleFirst makes the first entry durable that waits. The caller has the turn.
func (s *instanceStore) settleFirst() error {
	first := s.first.Load()
	if first == nil {
		return nil
	}
	err := s.store([]*raft.Log{first})
	if err == nil {
		s.first.Store(nil)
	}
	return err
}

// store writes entries. The caller has the turn.
func (s *instanceStore) store(entries []*raft.Log) error {
	s.failed = errUnfinished // should the storage never come back
	s.failed = s.logs.StoreLogs(entries)
	return s.failed
}

// SetUint64 records the current term, or the term of the vote whose candidate
// comes next.
func (s *instanceStore) SetUint64(key []byte, val uint64) error {
	s.lockOrPark()
	defer s.unlock()
	if string(key) == keyLastVoteTerm {
		s.voteTerm = val
		return nil
	}
	if s.settleFirst() != nil {
		s.park()
	}
	if string(key) == keyCurrentTerm {
		switch {
		case s.state() == raft.Candidate && !s.barred():
			// The library becomes a follower before it takes a term from others: this
			// one is its own candidacy's, and it votes for itself next.
			if s.voters() > 1 {
				s.term = val
				s.waits.Store(true)
				return nil
			}
			s.waits.Store(false)
			return s.stable.RecordVote(val, val, s.self)
		case s.votes.Load() > 0:
			s.term = val
			s.waits.Store(true)
			if s.votes.Load() > 0 {
				return nil // whoever ends the last of them settles
			}
		}
		s.waits.Store(false)
	}
	return s.stable.SetUint64(key, val)
}

// Set records the candidate of a vote, with the term set before it.
func (s *instanceStore) Set(key, val []byte) error {
	s.lockOrPark()
	overlaps := false
	defer func() {
		if !overlaps {
			s.unlock()
		}
	}()
	if err := s.settleFirst(); err != nil {
		return err
	}
	if string(key) == keyLastVoteCand && bytes.Equal(val, s.self) && s.barred() {
		return errBarred
	}
	if string(key) != keyLastVoteCand {
		return s.stable.Set(key, val)
	}
	if overlaps = s.mayOverlapVote(val); overlaps {
		s.overlapVote()
		return nil
	}
	if s.waits.Load() {
		err := s.stable.RecordVote(s.term, s.voteTerm, val)
		if err == nil {
			s.waits.Store(false)
		}
		return err
	}
	if err := s.stable.SetUint64([]byte(keyLastVoteTerm), s.voteTerm); err != nil {
		return err
	}
	return s.stable.Set(key, val)
}

// Get reads the candidate of the last vote.
func (s *instanceStore) Get(key []byte) ([]byte, error) {
	if string(key) == keyLastVoteCand && s.own.Load() != nil {
		return s.self, nil
	}
	return s.stable.Get(key)
}

// GetUint64 reads the current term, or that of the last vote. The library reads
// the current term only when it starts.
func (s *instanceStore) GetUint64(key []byte) (uint64, error) {
	if own := s.own.Load(); own != nil && string(key) == keyLastVoteTerm {
		return own.term, nil
	}
	return s.stable.GetUint64(key)
}

// FirstIndex is the first index stored, 0 for an empty log.
func (s *instanceStore) FirstIndex() (uint64, error) { return s.logs.FirstIndex() }

// LastIndex is the last index stored, 0 for an empty log.
func (s *instanceStore) LastIndex() (uint64, error) {
	if first := s.first.Load(); first != nil {
		return first.Index, nil
	}
	if w := s.behind.Load(); w != nil {
		return w.last(), nil
	}
	return s.logs.LastIndex()
}

// GetLog reads an entry; errWaits for a first one that waits.
func (s *instanceStore) GetLog(index uint64, out *raft.Log) error {
	if first := s.first.Load(); first != nil && first.Index == index {
		return errWaits
	}
	if e := s.behind.Load().entry(index); e != nil {
		*out = *e
		return nil
	}
	return s.logs.GetLog(index, out)
}

// StoreLog stores one entry.
func (s *instanceStore) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries, behind a first one that waits, and in one transaction
// with it. Those that may be sent meanwhile are still being written when it returns.
func (s *instanceStore) StoreLogs(entries []*raft.Log) error {
	if err := s.lock(); err != nil {
		return err
	}
	overlaps := false
	defer func() {
		if !overlaps {
			s.unlock()
		}
	}()
	if err := s.settleTerm(); err != nil {
		return err
	}
	first := s.first.Load()
	switch {
	case first == nil && s.mayWait(entries):
		e := *entries[0]
		s.first.Store(&e)
		s.late.Store(time.AfterFunc(firstEntryWait, s.overdue))
		return nil
	case first != nil && len(entries) > 0 && entries[0].Index == first.Index+1:
		s.late.Load().Stop()
		entries = append([]*raft.Log{first}, entries...)
	case first != nil:
		if err := s.settleFirst(); err != nil {
			return err
		}
	}
	if overlaps = s.mayOverlap(entries); overlaps {
		s.overlap(entries)
		return nil
	}
	if err := s.store(entries); err != nil {
		return err
	}
	s.first.Store(nil)
	return nil
}

// mayWait says whether this is a leader's first entry, and another voter is needed
// for it to count: what a follower stores, it acknowledges next.
func (s *instanceStore) mayWait(entries []*raft.Log) bool {
	return len(entries) == 1 && entries[0].Type == raft.LogNoop && s.state() == raft.Leader && s.voters() > 1
}

// overdue makes a first entry durable that has waited for too long.
func (s *instanceStore) overdue() {
	if s.lockOpen() == nil {
		defer s.unlock()
		_ = s.settleFirst() // the storage tells of its errors, and none is survived
	}
}

// DeleteRange deletes entries.
func (s *instanceStore) DeleteRange(from, to uint64) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	if err := errors.Join(s.settleTerm(), s.settleFirst()); err != nil {
		return err
	}
	return s.logs.DeleteRange(from, to)
}

// termAt gives the term of an entry that is stored, and not durable.
func (s *instanceStore) termAt(index uint64) (term uint64, ok bool) {
	e := s.first.Load()
	if e == nil || e.Index != index {
		e = s.behind.Load().entry(index)
	}
	if e == nil {
		return 0, false
	}
	return e.Term, true
}

var (
	_ raft.LogStore    = (*instanceStore)(nil)
	_ raft.StableStore = (*instanceStore)(nil)
)
