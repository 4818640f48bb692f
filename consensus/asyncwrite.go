package consensus

import (
	"bytes"
	"slices"

	"github.com/hashicorp/raft"
)

// A leader may write an entry while it is sent to the followers, as long as it
// does not count itself before its own write is done (Raft dissertation, 10.2.1).
// The library writes first and then sends, and counts itself in between. So a
// leader's StoreLogs returns once the entries can be read and their write has
// begun, and what the library counts too early has no effect: another voter's
// acknowledgement is needed for a majority, and is handed on only when every
// entry up to there is durable here (written). Until then this node's log may
// lose those entries in a crash, as if they had never been proposed; so before
// that it also records no term and no vote, stores nothing else, and answers nobody.

// asyncAppend are entries that are being written.
type asyncAppend struct {
	entries []*raft.Log   // consecutive, at least one
	done    chan struct{} // closed when they are durable; never, when the write fails
}

func (w *asyncAppend) last() uint64 { return w.entries[len(w.entries)-1].Index }

// entry gives one of them, nil for any other index.
func (w *asyncAppend) entry(index uint64) *raft.Log {
	if w == nil || index < w.entries[0].Index || index > w.last() {
		return nil
	}
	return w.entries[index-w.entries[0].Index]
}

// mayAppendAsync says whether entries may be written while they are sent: on a leader
// that cannot commit them alone. A configuration counts from when it is stored, and is
// written first.
func (s *raftStore) mayAppendAsync(entries []*raft.Log) bool {
	plain := func(e *raft.Log) bool {
		return e.Type == raft.LogCommand || e.Type == raft.LogNoop || e.Type == raft.LogBarrier
	}
	return len(entries) > 0 && s.state() == raft.Leader && s.voters() > 1 &&
		!slices.ContainsFunc(entries, func(e *raft.Log) bool { return !plain(e) })
}

// startAsyncAppend begins to write entries. The caller has the turn, and gives it away to the
// write. When that fails, the storage ends this node; the entries can still be
// read: one that is missing would have the library send a snapshot in its place,
// and go back to entries before it.
func (s *raftStore) startAsyncAppend(entries []*raft.Log) {
	w := &asyncAppend{entries, make(chan struct{})}
	s.inFlightAppend.Store(w)
	s.pendingNoop.Store(nil)
	go func() {
		defer s.unlock()
		if s.store(entries) == nil {
			s.inFlightAppend.Store(nil)
			close(w.done)
		}
	}()
}

// waitAppended waits until all entries up to index are durable. It fails once the
// library is stopped.
func (s *raftStore) waitAppended(index uint64) error {
	w := s.inFlightAppend.Load()
	if w == nil || w.entries[0].Index > index {
		return nil
	}
	return s.await(w.done)
}

// await waits for a write to end well. It fails once the library is stopped.
func (s *raftStore) await(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-s.closed:
		return errStopped
	}
}

// AppendEntries sends entries, and hands on the acknowledgement when they are
// durable here, too: then the library counts a majority that is one.
func (t *raftTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	last := args.PrevLogEntry + uint64(len(args.Entries))
	if err := t.Transport.AppendEntries(id, target, args, resp); err != nil || !resp.Success {
		return err
	}
	return t.disk.waitAppended(last)
}

// A candidate may ask for votes while its own is written, as long as it does not
// count that before: a crash in between is as if it had not stood, and whoever has
// voted for it has given a vote away. The library counts its own vote at once, and
// needs another one for a majority: that is handed on only when its own is durable
// (recorded). Until then this node stores nothing else and answers nobody.

// asyncSelfVote is this node's vote for itself, which is being written with its term.
type asyncSelfVote struct {
	term uint64
	done chan struct{} // closed when it is durable; never, when the write fails
}

// mayVoteAsync says whether a vote is the one that a candidacy begins with, and
// whose term waits for it. The caller has the turn.
func (s *raftStore) mayVoteAsync(candidate []byte) bool {
	return s.termPending.Load() && s.voteTerm == s.term && bytes.Equal(candidate, s.self) && s.state() == raft.Candidate && s.voters() > 1
}

// startAsyncSelfVote begins to write this node's vote for itself. The caller has the turn,
// and gives it away to the write. When that fails, the storage ends this node.
func (s *raftStore) startAsyncSelfVote() {
	own := &asyncSelfVote{s.term, make(chan struct{})}
	s.inFlightSelfVote.Store(own)
	s.termPending.Store(false)
	go func() {
		defer s.unlock()
		s.writeErr = errWriteIncomplete // should the storage never come back
		if s.writeErr = s.stable.RecordVote(own.term, own.term, s.self); s.writeErr == nil {
			s.inFlightSelfVote.Store(nil)
			close(own.done)
		}
	}()
}

// waitSelfVote waits until a vote for itself that is being written is durable. It fails
// once the library is stopped.
func (s *raftStore) waitSelfVote() error {
	own := s.inFlightSelfVote.Load()
	if own == nil {
		return nil
	}
	return s.await(own.done)
}

// RequestVote asks for a vote, and hands on the answer when this node's own vote is
// durable: then the library counts a majority that is one. It may come before the
// library votes for this node: the term is durable then, and that vote is written
// before it counts.
func (t *raftTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.Transport.RequestVote(id, target, args, resp); err != nil {
		return err
	}
	return t.disk.flushBeforeReply()
}
