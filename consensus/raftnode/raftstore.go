package raftnode

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Keys under which raft.Raft keeps term and vote.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// noopMaxDelay bounds how long a new leader's no-op waits for the leader-start. It is sent with the next message.
const noopMaxDelay = 10 * time.Millisecond

// ErrNoopPending reports that a new leader's no-op entry is not readable before it is durable. raft.Raft drops the
// message that needed the entry without counting a failure, and sends it with the next entry.
var ErrNoopPending = errors.New("no-op entry is not durable before the leader-start")

var (
	errStopped = errors.New("this node is stopping")
	// errWriteIncomplete is why nothing is written after a write that did not return.
	errWriteIncomplete = errors.New("the previous write has not ended")
	// errElectionBlocked is why this node's vote for itself is not recorded. raft.Raft then does not count that vote,
	// and stays a candidate that cannot win.
	errElectionBlocked = errors.New("elections are blocked until the log reaches this node's admission entry")
)

// VoteStore is a raft.StableStore that records a term and a vote in one write: after a crash there are both or neither.
type VoteStore interface {
	raft.StableStore
	RecordVote(term, voteTerm uint64, candidate []byte) error
}

// raftStore is the LogStore and StableStore of one raft.Raft. It merges the two
// synced writes of an election step into one where no response leaves this node
// between the two:
//
//   - A candidate records its new term and its vote for itself in one write, which
//     runs while the other voters are asked (startAsyncSelfVote).
//   - A voter records a candidate's term and its vote in one write. While raft.Raft
//     handles a RequestVote (trackVote), the term stays pending. flushBeforeReply
//     writes it before any response leaves the node.
//   - A new leader's no-op entry stays pending until the leader-start entry comes.
//     No reader gets it before that, so it is not sent.
//
// A leader's entries are sent while they are written (startAsyncAppend). Every
// other write comes after that write, and after what is pending.
//
// The write semaphore is part of the phase (writephase.go): one write at a time.
// raft.Raft writes from its main loop; every other method may be called from any
// goroutine. No write runs under mu.
type raftStore struct {
	logs            raft.LogStore
	stable          VoteStore
	self            []byte                // this node's name in votes
	state           func() raft.RaftState // of raft.Raft
	voters          func() int            // number of voters in the latest configuration
	electionBlocked func() bool           // this node must not vote for itself

	jobs   sync.WaitGroup    // runWrites, other asynchronous writes, and the armed noopTimer
	writes chan func() error // to runWrites; nil before the first one. The holder of the write semaphore uses it.

	mu               sync.Mutex
	changed          sync.Cond // of mu: phase or closed changed
	phase            phase
	closed           bool  // only raft.Raft itself may still write
	writeErr         error // why the phase is failed
	votesInFlight    int   // RequestVotes inside raft.Raft
	termPending      bool  // pendingTerm is set and not durable
	pendingTerm      uint64
	voteTerm         uint64         // term of the vote whose candidate comes next
	pendingNoop      *raft.Log      // stored and not durable
	noopTimer        *time.Timer    // flushes pendingNoop; nil: not armed
	inFlightAppend   *asyncAppend   // entries being written, or whose write failed
	inFlightSelfVote *asyncSelfVote // vote for itself being written, or whose write failed
}

func newRaftStore(logs raft.LogStore, stable VoteStore, self []byte) *raftStore {
	s := &raftStore{logs: logs, stable: stable, self: self}
	s.changed.L = &s.mu
	return s
}

func (s *raftStore) trackVote(enters bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if enters {
		s.votesInFlight++
	} else {
		s.votesInFlight--
	}
}

// SetUint64 records the current term, or keeps the term of the vote whose candidate comes next.
func (s *raftStore) SetUint64(key []byte, val uint64) error {
	s.acquireOrBlock()
	defer s.release()
	if string(key) == keyLastVoteTerm {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.voteTerm = val
		return nil
	}
	if s.flushNoop() != nil {
		s.blockUntilClosed()
	}
	if string(key) != keyCurrentTerm {
		return s.stable.SetUint64(key, val)
	}
	// raft.Raft becomes a follower before it takes a foreign term. In a candidate's own term its own vote comes next.
	candidate := s.state() == raft.Candidate && !s.electionBlocked()
	needsOthers := candidate && s.voters() > 1
	s.mu.Lock()
	if TermMayWait(candidate, needsOthers, s.votesInFlight) {
		defer s.mu.Unlock()
		s.termPending, s.pendingTerm = true, val
		return nil
	}
	s.mu.Unlock()
	if candidate {
		return s.termWritten(s.stable.RecordVote(val, val, s.self))
	}
	return s.termWritten(s.stable.SetUint64(key, val))
}

// Set records the candidate of a vote, with the term set before it.
func (s *raftStore) Set(key, val []byte) error {
	s.acquireOrBlock()
	handedOver := false
	defer func() {
		if !handedOver {
			s.release()
		}
	}()
	if err := s.flushNoop(); err != nil {
		return err
	}
	if string(key) != keyLastVoteCand {
		return s.stable.Set(key, val)
	}
	mine := bytes.Equal(val, s.self)
	if mine && s.electionBlocked() {
		return errElectionBlocked
	}
	s.mu.Lock()
	pending, term, voteTerm := s.termPending, s.pendingTerm, s.voteTerm
	s.mu.Unlock()
	switch {
	case pending && mine && voteTerm == term && SelfVoteMayOverlap(s.state(), s.voters):
		handedOver = true
		s.startAsyncSelfVote(term)
		return nil
	case pending:
		return s.termWritten(s.stable.RecordVote(term, voteTerm, val))
	}
	if err := s.stable.SetUint64([]byte(keyLastVoteTerm), voteTerm); err != nil {
		return err
	}
	return s.stable.Set(key, val)
}

// Get reads the candidate of the last vote.
func (s *raftStore) Get(key []byte) ([]byte, error) {
	if string(key) == keyLastVoteCand && s.currentSelfVote() != nil {
		return s.self, nil
	}
	return s.stable.Get(key)
}

// GetUint64 reads the current term, or the term of the last vote. raft.Raft reads the current term only when it starts.
func (s *raftStore) GetUint64(key []byte) (uint64, error) {
	if v := s.currentSelfVote(); v != nil && string(key) == keyLastVoteTerm {
		return v.term, nil
	}
	return s.stable.GetUint64(key)
}

func (s *raftStore) currentSelfVote() *asyncSelfVote {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlightSelfVote
}

// FirstIndex returns the first index stored, 0 for an empty log.
func (s *raftStore) FirstIndex() (uint64, error) { return s.logs.FirstIndex() }

// LastIndex returns the last index stored, 0 for an empty log.
func (s *raftStore) LastIndex() (uint64, error) {
	s.mu.Lock()
	noop, w := s.pendingNoop, s.inFlightAppend
	s.mu.Unlock()
	switch {
	case noop != nil:
		return noop.Index, nil
	case w != nil:
		return w.last(), nil
	}
	return s.logs.LastIndex()
}

// GetLog reads an entry. It returns ErrNoopPending for a pending no-op.
func (s *raftStore) GetLog(index uint64, out *raft.Log) error {
	e, pending := s.inMemory(index)
	switch {
	case pending:
		return ErrNoopPending
	case e != nil:
		*out = *e
		return nil
	}
	return s.logs.GetLog(index, out)
}

// inMemory returns an entry that is stored and not durable, nil if it is not, and reports whether it is the no-op.
func (s *raftStore) inMemory(index uint64) (e *raft.Log, noopPending bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pendingNoop != nil && s.pendingNoop.Index == index {
		return s.pendingNoop, true
	}
	return s.inFlightAppend.entry(index), false
}

// StoreLog stores one entry.
func (s *raftStore) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries, behind a pending no-op and in one transaction with it. Entries that may be sent while they
// are written are still being written when it returns.
func (s *raftStore) StoreLogs(entries []*raft.Log) error {
	if err := s.acquire(); err != nil {
		return err
	}
	handedOver := false
	defer func() {
		if !handedOver {
			s.release()
		}
	}()
	if err := s.flushTerm(); err != nil {
		return err
	}
	s.mu.Lock()
	noop := s.pendingNoop
	s.stopNoopTimer()
	s.mu.Unlock()
	switch {
	case noop == nil && s.mayDeferNoop(entries):
		s.deferNoop(*entries[0])
		return nil
	case noop != nil && len(entries) > 0 && entries[0].Index == noop.Index+1:
		entries = append([]*raft.Log{noop}, entries...)
	case noop != nil:
		if err := s.flushNoop(); err != nil {
			return err
		}
	}
	if s.mayAppendAsync(entries) {
		handedOver = true
		s.startAsyncAppend(entries)
		return nil
	}
	return s.store(entries)
}

// DeleteRange deletes entries.
func (s *raftStore) DeleteRange(from, to uint64) error {
	if err := s.acquire(); err != nil {
		return err
	}
	defer s.release()
	if err := errors.Join(s.flushTerm(), s.flushNoop()); err != nil {
		return err
	}
	return s.logs.DeleteRange(from, to)
}

// mayDeferNoop reports whether entries are a new leader's no-op that needs another voter to commit. A follower
// acknowledges next what it stores: it defers nothing.
func (s *raftStore) mayDeferNoop(entries []*raft.Log) bool {
	return len(entries) == 1 && entries[0].Type == raft.LogNoop && s.state() == raft.Leader && s.voters() > 1
}

var (
	_ raft.LogStore    = (*raftStore)(nil)
	_ raft.StableStore = (*raftStore)(nil)
)
