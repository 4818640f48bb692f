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

// noopMaxDelay bounds how long a new leader's own first entry waits for the
// leader-start. The library sends it when it next looks by itself.
const noopMaxDelay = 10 * time.Millisecond

// errNoopPending is why the library cannot have a new leader's first entry yet. It
// gives up that message without counting a failure, and is told of the next entry.
var errNoopPending = errors.New("not durable yet: it waits for the leader-start")

// errWriteIncomplete is why nothing is written after a write that has not ended.
var errWriteIncomplete = errors.New("the write before it has not ended")

// errElectionBlocked is why this node's vote for itself is not recorded. Without it the
// library does not count that vote, so nobody is elected, and it goes on as a
// candidate that nobody votes for.
var errElectionBlocked = errors.New("this node must not stand before its log reaches its own admission")

// raftStore is what one run of the library's node writes term, votes and log
// to. In an election the library makes two synced writes where one does, as long
// as nothing leaves this node between the two:
//
//   - A candidate records its new term, then its vote for itself: one record, which
//     is written while the others are asked (see startAsyncSelfVote).
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
type raftStore struct {
	logs             raft.LogStore
	stable           storage.VoteStore
	self             []byte                        // as the library names this node in votes
	state            func() raft.RaftState         // the library's
	voters           func() int                    // in the newest configuration
	electionBlocked  func() bool                   // this node must not elect itself
	writeSem         chan struct{}                 // capacity 1: who holds it writes
	closed           chan struct{}                 // no more than the library writes any more
	votesInFlight    atomic.Int32                  // on their way through the library
	termPending      atomic.Bool                   // term is recorded, and not durable
	pendingNoop      atomic.Pointer[raft.Log]      // stored, and not durable; changed in turn
	noopTimer        atomic.Pointer[time.Timer]    // makes first durable
	inFlightAppend   atomic.Pointer[asyncAppend]   // stored, and being written; changed in turn
	inFlightSelfVote atomic.Pointer[asyncSelfVote] // for itself, being written; changed in turn

	// Whoever has the turn may use these.
	term     uint64 // see waits
	voteTerm uint64 // of the vote whose candidate comes next
	writeErr error  // of a write of entries, or of the own vote: nothing is written after it
}

// newInstanceStore makes the store of a run of the library. started is to be
// called with that, once there is one.
func (n *Node) newInstanceStore(trans raft.Transport, barred func() bool) (s *raftStore, started func(*raft.Raft)) {
	var running atomic.Pointer[raft.Raft]
	return &raftStore{
		electionBlocked: barred, logs: n.store.Log(), stable: n.store.Stable(), writeSem: make(chan struct{}, 1), closed: make(chan struct{}),
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
func (s *raftStore) lock() error {
	s.writeSem <- struct{}{}
	err := s.writeErr
	if err != nil {
		s.unlock()
	}
	return err
}

func (s *raftStore) unlock() { <-s.writeSem }

// lockOrBlock is lock for a call that the library would answer an error of with a
// panic: its goroutine then ends when this store is closed.
func (s *raftStore) lockOrBlock() {
	if s.lock() != nil {
		s.blockUntilClosed()
	}
}

// blockUntilClosed ends this goroutine when this store is closed.
func (s *raftStore) blockUntilClosed() {
	<-s.closed
	runtime.Goexit()
}

// lockUnlessClosed is lock for what the library does not do itself: it fails once this
// store is closed.
func (s *raftStore) lockUnlessClosed() error {
	select {
	case s.writeSem <- struct{}{}:
	case <-s.closed:
		return errStopped
	}
	err := s.writeErr
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

// stopWrites waits for the write in hand, and lets nobody write any more.
func (s *raftStore) stopWrites() { s.writeSem <- struct{}{} }

// close ends what the library does not do itself. What waits stays unwritten: it
// is as if it had never come.
func (s *raftStore) close() {
	close(s.closed)
	if t := s.noopTimer.Load(); t != nil {
		t.Stop()
	}
}

// trackVote says that a vote is on its way through the library, or no more.
func (s *raftStore) trackVote(coming bool) {
	if coming {
		s.votesInFlight.Add(1)
	} else {
		s.votesInFlight.Add(-1)
	}
}

// finish makes a term durable that waits for its vote, and waits for a vote or
// entries that are being written. It must be called before an answer of the library
// leaves this node, and fails once that is stopped.
func (s *raftStore) flushBeforeReply() error {
	// The term first: a vote for itself is kept before its term stops waiting, so that
	// one of the two shows.
	if err := s.flushPendingTerm(); err != nil {
		return err
	}
	if err := s.waitSelfVote(); err != nil {
		return err
	}
	return s.waitAppended(math.MaxUint64)
}

// flushPendingTerm makes a term durable that waits for its vote.
func (s *raftStore) flushPendingTerm() error {
	if !s.termPending.Load() {
		return nil
	}
	done := make(chan error, 1)
	go func() { // a disk that hangs must not hold up whoever waits
		err := s.lockUnlessClosed()
		if err == nil {
			defer s.unlock()
			err = s.flushPendingTermLocked()
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

// flushPendingTermLocked is settle with the turn.
func (s *raftStore) flushPendingTermLocked() error {
	if !s.termPending.Load() {
		return nil
	}
	err := s.stable.SetUint64([]byte(keyCurrentTerm), s.term)
	if err == nil {
		s.termPending.Store(false)
	}
	return err
}

// flushNoopLocked makes the first entry durable that waits. The caller has the turn.
func (s *raftStore) flushNoopLocked() error {
	first := s.pendingNoop.Load()
	if first == nil {
		return nil
	}
	err := s.store([]*raft.Log{first})
	if err == nil {
		s.pendingNoop.Store(nil)
	}
	return err
}

// store writes entries. The caller has the turn.
func (s *raftStore) store(entries []*raft.Log) error {
	s.writeErr = errWriteIncomplete // should the storage never come back
	s.writeErr = s.logs.StoreLogs(entries)
	return s.writeErr
}

// SetUint64 records the current term, or the term of the vote whose candidate
// comes next.
func (s *raftStore) SetUint64(key []byte, val uint64) error {
	s.lockOrBlock()
	defer s.unlock()
	if string(key) == keyLastVoteTerm {
		s.voteTerm = val
		return nil
	}
	if s.flushNoopLocked() != nil {
		s.blockUntilClosed()
	}
	if string(key) == keyCurrentTerm {
		switch {
		case s.state() == raft.Candidate && !s.electionBlocked():
			// The library becomes a follower before it takes a term from others: this
			// one is its own candidacy's, and it votes for itself next.
			if s.voters() > 1 {
				s.term = val
				s.termPending.Store(true)
				return nil
			}
			s.termPending.Store(false)
			return s.stable.RecordVote(val, val, s.self)
		case s.votesInFlight.Load() > 0:
			s.term = val
			s.termPending.Store(true)
			if s.votesInFlight.Load() > 0 {
				return nil // whoever ends the last of them settles
			}
		}
		s.termPending.Store(false)
	}
	return s.stable.SetUint64(key, val)
}

// Set records the candidate of a vote, with the term set before it.
func (s *raftStore) Set(key, val []byte) error {
	s.lockOrBlock()
	overlaps := false
	defer func() {
		if !overlaps {
			s.unlock()
		}
	}()
	if err := s.flushNoopLocked(); err != nil {
		return err
	}
	if string(key) == keyLastVoteCand && bytes.Equal(val, s.self) && s.electionBlocked() {
		return errElectionBlocked
	}
	if string(key) != keyLastVoteCand {
		return s.stable.Set(key, val)
	}
	if overlaps = s.mayVoteAsync(val); overlaps {
		s.startAsyncSelfVote()
		return nil
	}
	if s.termPending.Load() {
		err := s.stable.RecordVote(s.term, s.voteTerm, val)
		if err == nil {
			s.termPending.Store(false)
		}
		return err
	}
	if err := s.stable.SetUint64([]byte(keyLastVoteTerm), s.voteTerm); err != nil {
		return err
	}
	return s.stable.Set(key, val)
}

// Get reads the candidate of the last vote.
func (s *raftStore) Get(key []byte) ([]byte, error) {
	if string(key) == keyLastVoteCand && s.inFlightSelfVote.Load() != nil {
		return s.self, nil
	}
	return s.stable.Get(key)
}

// GetUint64 reads the current term, or that of the last vote. The library reads
// the current term only when it starts.
func (s *raftStore) GetUint64(key []byte) (uint64, error) {
	if own := s.inFlightSelfVote.Load(); own != nil && string(key) == keyLastVoteTerm {
		return own.term, nil
	}
	return s.stable.GetUint64(key)
}

// FirstIndex is the first index stored, 0 for an empty log.
func (s *raftStore) FirstIndex() (uint64, error) { return s.logs.FirstIndex() }

// LastIndex is the last index stored, 0 for an empty log.
func (s *raftStore) LastIndex() (uint64, error) {
	if first := s.pendingNoop.Load(); first != nil {
		return first.Index, nil
	}
	if w := s.inFlightAppend.Load(); w != nil {
		return w.last(), nil
	}
	return s.logs.LastIndex()
}

// GetLog reads an entry; errNoopPending for a first one that waits.
func (s *raftStore) GetLog(index uint64, out *raft.Log) error {
	if first := s.pendingNoop.Load(); first != nil && first.Index == index {
		return errNoopPending
	}
	if e := s.inFlightAppend.Load().entry(index); e != nil {
		*out = *e
		return nil
	}
	return s.logs.GetLog(index, out)
}

// StoreLog stores one entry.
func (s *raftStore) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries, behind a first one that waits, and in one transaction
// with it. Those that may be sent meanwhile are still being written when it returns.
func (s *raftStore) StoreLogs(entries []*raft.Log) error {
	if err := s.lock(); err != nil {
		return err
	}
	overlaps := false
	defer func() {
		if !overlaps {
			s.unlock()
		}
	}()
	if err := s.flushPendingTermLocked(); err != nil {
		return err
	}
	first := s.pendingNoop.Load()
	switch {
	case first == nil && s.mayDeferNoop(entries):
		e := *entries[0]
		s.pendingNoop.Store(&e)
		s.noopTimer.Store(time.AfterFunc(noopMaxDelay, s.flushOverdueNoop))
		return nil
	case first != nil && len(entries) > 0 && entries[0].Index == first.Index+1:
		s.noopTimer.Load().Stop()
		entries = append([]*raft.Log{first}, entries...)
	case first != nil:
		if err := s.flushNoopLocked(); err != nil {
			return err
		}
	}
	if overlaps = s.mayAppendAsync(entries); overlaps {
		s.startAsyncAppend(entries)
		return nil
	}
	if err := s.store(entries); err != nil {
		return err
	}
	s.pendingNoop.Store(nil)
	return nil
}

// mayDeferNoop says whether this is a leader's first entry, and another voter is needed
// for it to count: what a follower stores, it acknowledges next.
func (s *raftStore) mayDeferNoop(entries []*raft.Log) bool {
	return len(entries) == 1 && entries[0].Type == raft.LogNoop && s.state() == raft.Leader && s.voters() > 1
}

// flushOverdueNoop makes a first entry durable that has waited for too long.
func (s *raftStore) flushOverdueNoop() {
	if s.lockUnlessClosed() == nil {
		defer s.unlock()
		_ = s.flushNoopLocked() // the storage tells of its errors, and none is survived
	}
}

// DeleteRange deletes entries.
func (s *raftStore) DeleteRange(from, to uint64) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.unlock()
	if err := errors.Join(s.flushPendingTermLocked(), s.flushNoopLocked()); err != nil {
		return err
	}
	return s.logs.DeleteRange(from, to)
}

// termAt gives the term of an entry that is stored, and not durable.
func (s *raftStore) termAt(index uint64) (term uint64, ok bool) {
	e := s.pendingNoop.Load()
	if e == nil || e.Index != index {
		e = s.inFlightAppend.Load().entry(index)
	}
	if e == nil {
		return 0, false
	}
	return e.Term, true
}

var (
	_ raft.LogStore    = (*raftStore)(nil)
	_ raft.StableStore = (*raftStore)(nil)
)
