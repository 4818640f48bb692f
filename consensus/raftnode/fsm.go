package raftnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

var (
	errHalted    = errors.New("the state machine has stopped")
	errReplaying = errors.New("still replaying the log after a restart of Raft: no snapshot now")
)

// FSMConfig is what an FSM works with. The functions must not block; those that say so are optional.
type FSMConfig struct {
	State *state.State
	// Halt ends the node: the FSM has met what it cannot read. It is called once.
	Halt func(error)
	// MembersChanged is called after more than keys has changed.
	MembersChanged func()
	// IncarnationCleared is called before the entry at index removes a member's incarnation from the state. It is also
	// called for each member without one in a restored snapshot as of index.
	IncarnationCleared func(id cluster.NodeID, index uint64)
	// BatchApplied is called after each batch of entries. Optional.
	BatchApplied func(took time.Duration)
	// SnapshotDone is called after a snapshot was restored, or written. Optional.
	SnapshotDone func(restored bool)
}

// FSM feeds the log to the replicated state. raft.Raft calls it from one goroutine; Applied, LastConfiguration,
// Progress and Wait may be called from any. It outlives the raft.Raft that it is given to.
//
// It never applies an index twice: when raft.Raft is replaced, the log is replayed and known entries are skipped.
//
// It never applies past an entry that it cannot read: from then on it answers every entry with an error, takes and
// restores no snapshot, and has called Halt. Nothing diverges, because nothing changes any longer.
type FSM struct {
	cfg FSMConfig

	applied   atomic.Uint64 // newest index that the state reflects
	config    atomic.Uint64 // index of the newest applied configuration entry
	delivered atomic.Uint64 // newest index handed over by the current raft.Raft
	progress  atomic.Uint64 // grows while a snapshot is restored
	// index of the newest snapshot in storage
	snapshotEnd atomic.Uint64
	halted      atomic.Bool
	size        logSize // of the applied entries

	mu      sync.Mutex
	waiting chan struct{} // closed at the next apply; nil when no goroutine waits
}

// ApplyResult is the response to one log entry.
type ApplyResult struct {
	Results []state.Result
	Err     error

	Began, Ended time.Time // of the application; only with Results
}

// NewFSM makes an FSM over a state.
func NewFSM(cfg FSMConfig) *FSM { return &FSM{cfg: cfg} }

// Applied returns the newest index that the state reflects.
func (f *FSM) Applied() uint64 { return f.applied.Load() }

// LastConfiguration returns the index of the newest applied configuration entry.
func (f *FSM) LastConfiguration() uint64 { return f.config.Load() }

// Progress grows while a snapshot is restored.
func (f *FSM) Progress() uint64 { return f.progress.Load() }

// restarted begins another run of raft.Raft, which replays the log.
func (f *FSM) restarted() { f.delivered.Store(0) }

func (f *FSM) sawConfiguration(index uint64) { f.config.Store(max(f.config.Load(), index)) }

// Apply is part of raft.FSM; raft.Raft calls ApplyBatch instead.
func (f *FSM) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries in the order of the log.
func (f *FSM) ApplyBatch(logs []*raft.Log) []any {
	start := time.Now()
	results := make([]any, len(logs))
	for i, l := range logs {
		results[i] = f.applyOne(l)
		f.delivered.Store(l.Index)
	}
	f.wake()
	if f.cfg.BatchApplied != nil {
		f.cfg.BatchApplied(time.Since(start))
	}
	return results
}

func (f *FSM) applyOne(l *raft.Log) any {
	if f.halted.Load() {
		return ApplyResult{Err: errHalted}
	}
	if l.Type == raft.LogConfiguration {
		f.sawConfiguration(l.Index)
	}
	if l.Index <= f.applied.Load() {
		return ApplyResult{Err: errors.New("applied before")}
	}
	f.size.add(l.Index, len(l.Data))
	if l.Type != raft.LogCommand {
		f.applied.Store(l.Index)
		return ApplyResult{}
	}
	cmds, err := state.DecodeBatch(l.Data)
	if err != nil {
		f.stop(fmt.Errorf("cannot apply log entry %d: %w", l.Index, err))
		return ApplyResult{Err: errHalted}
	}
	members := false
	for i := range cmds {
		if cmds[i].Kind.Administrative() {
			members = true
			f.announceCleared(&cmds[i], l.Index)
		}
	}
	began := time.Now()
	results := f.cfg.State.Apply(l.Index, l.Term, cmds)
	ended := time.Now()
	f.applied.Store(l.Index)
	if members {
		f.cfg.MembersChanged()
	}
	return ApplyResult{Results: results, Began: began, Ended: ended}
}

// announceCleared reports a command that clears a member's incarnation: its earlier hellos must not be recorded again.
func (f *FSM) announceCleared(c *state.Command, index uint64) {
	switch {
	case c.Kind == state.KindMemberPatch && c.MemberPatch != nil &&
		c.MemberPatch.Incarnation != nil && *c.MemberPatch.Incarnation == "":
		f.cfg.IncarnationCleared(c.MemberPatch.ID, index)
	case c.Kind == state.KindMember && c.Member != nil && c.Member.Incarnation == "":
		f.cfg.IncarnationCleared(c.Member.ID, index)
	}
}

func (f *FSM) stop(err error) {
	if !f.halted.Swap(true) {
		f.cfg.Halt(err)
	}
}

// Snapshot captures the state.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	if f.halted.Load() {
		return nil, errHalted
	}
	// raft.Raft names the snapshot by the newest index that it has handed over. A replay is still behind the state.
	if f.delivered.Load() < f.applied.Load() {
		return nil, errReplaying
	}
	// raft.Raft takes one after a restore, whose index is beyond the log: one more of the same entry would push the
	// snapshot before the restore out of the storage.
	if f.delivered.Load() <= f.snapshotEnd.Load() {
		return nil, raft.ErrNothingNewToSnapshot
	}
	return &snapshot{captured: f.cfg.State.Snapshot(), done: f.cfg.SnapshotDone}, nil
}

// Restore replaces the state by a snapshot. On an error nothing has changed.
func (f *FSM) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	if f.halted.Load() {
		return errHalted
	}
	if err := f.replace(r); err != nil {
		return err
	}
	if f.cfg.SnapshotDone != nil {
		f.cfg.SnapshotDone(true)
	}
	return nil
}

func (f *FSM) replace(r io.Reader) error {
	if _, err := f.cfg.State.ReadFrom(&progressReader{r, &f.progress}); err != nil {
		var newer *state.UnknownCommandError
		if errors.As(err, &newer) {
			f.stop(fmt.Errorf("cannot restore a snapshot: %w", err))
		}
		return err
	}
	index := f.cfg.State.View().AppliedIndex()
	for _, m := range f.cfg.State.View().Members() {
		if m.Incarnation == "" { // of one recorded and cleared since, the state before knows nothing
			f.cfg.IncarnationCleared(m.ID, index)
		}
	}
	f.size.reset(index)
	f.applied.Store(index)
	f.delivered.Store(index)
	f.wake()
	f.cfg.MembersChanged()
	return nil
}

// Reset empties the state, for an instance that begins with an older snapshot, or with none. No instance may run.
func (f *FSM) Reset(empty *state.Snapshot) error {
	var content bytes.Buffer
	if _, err := empty.WriteTo(&content); err != nil {
		return err
	}
	return f.replace(&content)
}

func (f *FSM) wake() {
	f.mu.Lock()
	if f.waiting != nil {
		close(f.waiting)
		f.waiting = nil
	}
	f.mu.Unlock()
}

// Wait returns once the state reflects index.
func (f *FSM) Wait(ctx context.Context, index uint64) error {
	for f.applied.Load() < index {
		f.mu.Lock()
		if f.waiting == nil {
			f.waiting = make(chan struct{})
		}
		ch := f.waiting
		f.mu.Unlock()
		if f.applied.Load() >= index {
			break
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

type snapshot struct {
	captured *state.Snapshot
	done     func(restored bool)
	sink     *recordingSink // nil: it is not written yet, or not among Snapshots
}

// Persist writes the captured state; raft.Raft runs it beside applies.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if r, ok := sink.(*recordingSink); ok {
		r.own, s.sink = true, r
	}
	if _, err := s.captured.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if s.done != nil {
		s.done(false)
	}
	return sink.Close()
}

// Release is called when raft.Raft has taken note of the snapshot, or it failed.
func (s *snapshot) Release() {
	if s.sink != nil {
		s.sink.release()
	}
}

// progressReader counts the bytes read: a long restore must not look like a node that hangs.
type progressReader struct {
	r     io.Reader
	count *atomic.Uint64
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.count.Add(uint64(n))
	return n, err
}
