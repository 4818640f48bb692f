package raftnode

import (
	"math"
	"slices"

	"github.com/hashicorp/raft"
)

// A leader may write an entry while it sends it, if it does not count itself before its own write is durable (Raft
// dissertation, 10.2.1). raft.Raft stores first, counts itself, and then sends. StoreLogs therefore returns when the
// entries are readable and their write has started. raft.Raft then counts the leader too early, which has no effect: a
// majority needs another voter's acknowledgement, and the transport withholds acknowledgements until the leader's own
// write is durable (waitAppended). Until then a crash may lose the entries, as if they had never been proposed. So no
// term, vote or other entry is recorded before, and no response leaves the node.
//
// In the same way a candidate may ask for votes while its own vote is written. The transport withholds the others'
// votes until it is durable (waitSelfVote). A crash before that is as if the node had not been a candidate.

type asyncAppend struct {
	entries []*raft.Log // consecutive, at least one
}

func (w *asyncAppend) last() uint64 { return w.entries[len(w.entries)-1].Index }

func (w *asyncAppend) entry(index uint64) *raft.Log {
	if w == nil || index < w.entries[0].Index || index > w.last() {
		return nil
	}
	return w.entries[index-w.entries[0].Index]
}

// asyncSelfVote is this node's vote for itself, which is written with its term.
type asyncSelfVote struct{ term uint64 }

// mayAppendAsync reports whether entries may be written while they are sent: on a leader that cannot commit them alone.
// A configuration counts as soon as it is stored, so it is written first.
func (s *raftStore) mayAppendAsync(entries []*raft.Log) bool {
	special := func(e *raft.Log) bool {
		return e.Type != raft.LogCommand && e.Type != raft.LogNoop && e.Type != raft.LogBarrier
	}
	return len(entries) > 0 && AppendMayOverlap(s.state(), s.voters) && !slices.ContainsFunc(entries, special)
}

// startAsyncAppend starts to write entries. The caller leaves the write semaphore to it. A failure ends this node, and
// the entries stay readable: for a missing one raft.Raft would send a snapshot, and then entries from before it.
func (s *raftStore) startAsyncAppend(entries []*raft.Log) {
	s.mu.Lock()
	s.inFlightAppend, s.pendingNoop = &asyncAppend{entries}, nil
	s.move(appendStarted)
	s.mu.Unlock()
	s.writeAsync(func() error { return s.logs.StoreLogs(entries) })
}

// startAsyncSelfVote starts to write this node's vote for itself, with its term. The caller holds the write semaphore
// and leaves it to the write. After a failure the storage ends this node.
func (s *raftStore) startAsyncSelfVote(term uint64) {
	s.mu.Lock()
	s.inFlightSelfVote, s.termPending = &asyncSelfVote{term}, false
	s.move(selfVoteStarted)
	s.mu.Unlock()
	s.writeAsync(func() error { return s.stable.RecordVote(term, term, s.self) })
}

// writeAsync starts a write that owns the write semaphore.
func (s *raftStore) writeAsync(write func() error) {
	if s.writes == nil {
		s.writes = make(chan func() error, 1)
		s.jobs.Go(s.runWrites)
	}
	s.writes <- write
}

// runWrites runs the asynchronous writes, until stopWrites or a write that fails. It is one goroutine for all of them:
// a new one grows its stack in each write, which costs 4 % of a leader's processor time.
func (s *raftStore) runWrites() {
	for write := range s.writes {
		s.runWrite(write)
	}
}

func (s *raftStore) runWrite(write func() error) {
	err := errWriteIncomplete // if the storage ends this goroutine
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.writeErr = err
			s.move(writeFailed)
			return
		}
		s.inFlightAppend, s.inFlightSelfVote = nil, nil
		s.move(written)
	}()
	err = write()
}

// waitAppended waits until all entries up to index are durable. It fails when the store is closed.
func (s *raftStore) waitAppended(index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitAppendedLocked(index)
}

func (s *raftStore) waitAppendedLocked(index uint64) error {
	w := s.inFlightAppend
	if s.unwritten().BeforeAck(index).FirstEntry == 0 {
		return nil
	}
	return s.waitWhile(func() bool { return s.inFlightAppend == w })
}

// waitSelfVote waits until a self-vote that is being written is durable. The caller holds mu. It fails after close.
func (s *raftStore) waitSelfVote() error {
	v := s.inFlightSelfVote
	if v == nil {
		return nil
	}
	return s.waitWhile(func() bool { return s.inFlightSelfVote == v })
}

// waitWhile waits until unfinished is false. The caller holds mu. It fails when the store is closed first.
func (s *raftStore) waitWhile(unfinished func() bool) error {
	for unfinished() {
		if s.closed {
			return errStopped
		}
		s.changed.Wait()
	}
	return nil
}

// flushBeforeReply writes a pending term, and waits for the asynchronous write in progress. No response of raft.Raft
// may leave this node before that. It fails when the store is closed.
func (s *raftStore) flushBeforeReply() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unwritten().BeforeReply().Term {
		if err := s.flushPendingTerm(); err != nil {
			return err
		}
	}
	if s.unwritten().BeforeReply().SelfVote {
		if err := s.waitSelfVote(); err != nil {
			return err
		}
	}
	if s.unwritten().BeforeReply().FirstEntry != 0 {
		return s.waitAppendedLocked(math.MaxUint64)
	}
	return nil
}

// flushPendingTerm makes a pending term durable. The caller holds mu. The write has a goroutine of its own, so that a
// hung disk does not hold the caller up after the store is closed.
func (s *raftStore) flushPendingTerm() error {
	for s.termPending && s.phase.busy() && !s.closed {
		s.changed.Wait()
	}
	if !s.termPending {
		return nil
	}
	if err := s.acquireUnlessClosed(); err != nil {
		return err
	}
	done, result := false, errWriteIncomplete
	s.jobs.Go(func() {
		err := errWriteIncomplete // if the storage ends this goroutine
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			done, result = true, err
			s.move(released)
		}()
		err = s.flushTerm()
	})
	if err := s.waitWhile(func() bool { return !done }); err != nil {
		return err
	}
	return result
}
