package raftnode

import (
	"fmt"
	"runtime"
	"time"

	"github.com/hashicorp/raft"
)

// phase is what a raftStore does with its one right to write.
type phase int

const (
	idle       phase = iota // no write is in progress
	writing                 // a caller writes, and waits for the write itself
	appending               // entries are written while raft.Raft sends them
	selfVoting              // this node's vote for itself is written while raft.Raft asks the others
	failed                  // a write of entries or of the self-vote failed: no write follows
	stopped                 // no write follows
)

var phaseNames = [...]string{"idle", "writing", "appending", "selfVoting", "failed", "stopped"}

func (p phase) String() string { return phaseNames[p] }

func (p phase) busy() bool { return p == writing || p == appending || p == selfVoting }

// event is what moves a raftStore from one phase to another.
type event int

const (
	acquired        event = iota // a caller has got the write semaphore
	released                     // it releases the semaphore
	appendStarted                // it leaves the semaphore to an asynchronous append
	selfVoteStarted              // it leaves the semaphore to an asynchronous self-vote
	written                      // the asynchronous write is durable
	writeFailed                  // the write failed, or its goroutine ended inside the storage
	writesStopped                // this run of raft.Raft is over
)

// transitions is the whole state machine. An event without an entry is a programming error.
var transitions = map[phase]map[event]phase{
	idle:       {acquired: writing, writesStopped: stopped},
	writing:    {released: idle, appendStarted: appending, selfVoteStarted: selfVoting, writeFailed: failed},
	appending:  {written: idle, writeFailed: failed},
	selfVoting: {written: idle, writeFailed: failed},
	failed:     {writesStopped: stopped},
}

// move makes a transition. The caller holds mu.
func (s *raftStore) move(e event) {
	next, ok := transitions[s.phase][e]
	if !ok {
		panic(fmt.Sprintf("raftnode: event %d in phase %v", e, s.phase))
	}
	s.phase = next
	s.changed.Broadcast()
}

// acquire waits until no write is in progress, and takes the write semaphore. It fails after a failed write.
func (s *raftStore) acquire() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.phase.busy() {
		s.changed.Wait()
	}
	switch s.phase {
	case failed:
		return s.writeErr
	case stopped:
		return errStopped
	}
	s.move(acquired)
	return nil
}

// acquireUnlessClosed is acquire for writes that raft.Raft itself does not make. The caller holds mu.
func (s *raftStore) acquireUnlessClosed() error {
	for s.phase.busy() && !s.closed {
		s.changed.Wait()
	}
	switch {
	case s.closed || s.phase == stopped:
		return errStopped
	case s.phase == failed:
		return s.writeErr
	}
	s.move(acquired)
	return nil
}

// acquireOrBlock is acquire for a call whose error would make raft.Raft panic: it ends its goroutine after close.
func (s *raftStore) acquireOrBlock() {
	if s.acquire() != nil {
		s.blockUntilClosed()
	}
}

// blockUntilClosed ends the calling goroutine when the store is closed.
func (s *raftStore) blockUntilClosed() {
	s.mu.Lock()
	for !s.closed {
		s.changed.Wait()
	}
	s.mu.Unlock()
	runtime.Goexit()
}

// release releases the write semaphore. After a failed write it does nothing.
func (s *raftStore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == writing {
		s.move(released)
	}
}

// close ends waiting for writes, and the writes that raft.Raft does not make itself. What is pending stays unwritten,
// as if it had never come.
func (s *raftStore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopNoopTimer()
	s.changed.Broadcast()
}

// stopWrites waits for the write in progress, and allows none after it. The store has no goroutine then.
func (s *raftStore) stopWrites() {
	s.mu.Lock()
	for s.phase.busy() {
		s.changed.Wait()
	}
	s.move(writesStopped)
	s.mu.Unlock()
	if s.writes != nil {
		close(s.writes)
	}
	s.jobs.Wait()
}

// termWritten ends the wait of a pending term that the write with result err was of.
func (s *raftStore) termWritten(err error) error {
	if err == nil {
		s.mu.Lock()
		s.termPending = false
		s.mu.Unlock()
	}
	return err
}

// flushTerm makes a pending term durable. The caller holds the write semaphore.
func (s *raftStore) flushTerm() error {
	s.mu.Lock()
	pending, term := s.termPending, s.pendingTerm
	s.mu.Unlock()
	if !pending {
		return nil
	}
	return s.termWritten(s.stable.SetUint64([]byte(keyCurrentTerm), term))
}

// store writes entries and a pending no-op among them. The caller holds the semaphore. A failed write is the last one.
func (s *raftStore) store(entries []*raft.Log) error {
	err := errWriteIncomplete // if the storage ends this goroutine
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.writeErr = err
			s.move(writeFailed)
			return
		}
		s.pendingNoop = nil
	}()
	err = s.logs.StoreLogs(entries)
	return err
}

// deferNoop keeps a new leader's no-op entry until the leader-start entry comes, for noopMaxDelay at most.
func (s *raftStore) deferNoop(noop raft.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pendingNoop = &noop
	if s.closed {
		return
	}
	s.jobs.Add(1)
	s.noopTimer = time.AfterFunc(noopMaxDelay, s.flushOverdueNoop)
}

// stopNoopTimer disarms the timer of a pending no-op. The caller holds mu.
func (s *raftStore) stopNoopTimer() {
	if s.noopTimer != nil && s.noopTimer.Stop() {
		s.jobs.Done()
	}
	s.noopTimer = nil
}

// flushNoop makes a pending no-op durable. The caller holds the write semaphore.
func (s *raftStore) flushNoop() error {
	s.mu.Lock()
	noop := s.pendingNoop
	s.stopNoopTimer()
	s.mu.Unlock()
	if noop == nil {
		return nil
	}
	return s.store([]*raft.Log{noop})
}

// flushOverdueNoop makes a no-op durable that has been pending for too long.
func (s *raftStore) flushOverdueNoop() {
	defer s.jobs.Done()
	s.mu.Lock()
	err := s.acquireUnlessClosed()
	s.mu.Unlock()
	if err == nil {
		defer s.release()
		_ = s.flushNoop() // the storage reports its errors, and ends the node
	}
}
