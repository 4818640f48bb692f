package consensus

import (
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

// fsm feeds the log to the replicated state. The library calls it from one
// goroutine; waiters and the exported counters may be used from any.
//
// It never applies an index twice: when the Raft node is rebuilt over the same
// state (node.go), the log is replayed and what is known is skipped.
//
// It never applies past an entry that it cannot read: from then on it answers
// every entry with an error, takes and restores no snapshot, and has told halt.
// Nothing diverges, because nothing more changes.
type fsm struct {
	state *state.State
	hooks Hooks
	halt  func(error) // ends the node; called once

	applied        atomic.Uint64 // newest index that the state reflects
	config         atomic.Uint64 // index of the newest applied configuration entry
	deliveredIndex atomic.Uint64 // newest index handed over by the current Raft node
	progress       atomic.Uint64 // grows while a snapshot is restored
	halted         atomic.Bool

	mu                   sync.Mutex
	waiting              chan struct{}        // closed at the next apply; nil when nobody waits
	changed              func()               // told when more than keys has changed; must not block
	onIncarnationCleared func(cluster.NodeID) // told before a member's data directory is forgotten; must not block
}

// applyResult is the response to one log entry.
type applyResult struct {
	results []state.Result
	err     error
}

// Apply is part of raft.FSM; the library calls ApplyBatch instead.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries in the order of the log.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	start := time.Now()
	answers := make([]any, len(logs))
	for i, l := range logs {
		answers[i] = f.applyOne(l)
		f.deliveredIndex.Store(l.Index)
	}
	f.wake()
	if f.hooks.Applied != nil {
		f.hooks.Applied(time.Since(start))
	}
	return answers
}

func (f *fsm) applyOne(l *raft.Log) any {
	if f.halted.Load() {
		return applyResult{err: errHalted}
	}
	if l.Type == raft.LogConfiguration {
		f.config.Store(max(f.config.Load(), l.Index))
	}
	if l.Index <= f.applied.Load() {
		return applyResult{err: errors.New("applied before")}
	}
	if l.Type != raft.LogCommand {
		f.applied.Store(l.Index)
		return applyResult{}
	}
	cmds, err := state.DecodeBatch(l.Data)
	if err != nil {
		f.stop(fmt.Errorf("cannot apply log entry %d: %w", l.Index, err))
		return applyResult{err: errHalted}
	}
	members := false
	for i := range cmds {
		if cmds[i].Kind.Administrative() {
			members = true
			f.forgetFor(&cmds[i])
		}
	}
	results := f.state.Apply(l.Index, l.Term, cmds)
	f.applied.Store(l.Index)
	if members {
		f.changed()
	}
	return applyResult{results: results}
}

// forgetFor announces that a command makes the data directory of a member
// unknown. What that node said before must not be recorded again after.
func (f *fsm) forgetFor(c *state.Command) {
	switch {
	case c.Kind == state.KindMemberPatch && c.MemberPatch != nil && c.MemberPatch.Incarnation != nil && *c.MemberPatch.Incarnation == "":
		f.onIncarnationCleared(c.MemberPatch.ID)
	case c.Kind == state.KindMember && c.Member != nil && c.Member.Incarnation == "":
		f.onIncarnationCleared(c.Member.ID)
	}
}

func (f *fsm) stop(err error) {
	if !f.halted.Swap(true) {
		f.halt(err)
	}
}

// Snapshot captures the state.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.halted.Load() {
		return nil, errHalted
	}
	// The library names the snapshot by the newest index that it has handed
	// over; a replay is still behind what the state holds.
	if f.deliveredIndex.Load() < f.applied.Load() {
		return nil, errReplaying
	}
	return &snapshot{captured: f.state.Snapshot(), hooks: f.hooks}, nil
}

// Restore replaces the state by a snapshot. On an error nothing has changed.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer func() { _ = r.Close() }()
	if f.halted.Load() {
		return errHalted
	}
	before := f.state.View()
	if _, err := f.state.ReadFrom(&progressReader{r, &f.progress}); err != nil {
		var newer *state.UnknownCommandError
		if errors.As(err, &newer) {
			f.stop(fmt.Errorf("cannot restore a snapshot: %w", err))
		}
		return err
	}
	for _, m := range f.state.View().Members() {
		if m.Incarnation == "" && before.Record(m.ID).Incarnation != "" {
			f.onIncarnationCleared(m.ID)
		}
	}
	index := f.state.View().AppliedIndex()
	f.applied.Store(index)
	f.deliveredIndex.Store(index)
	f.wake()
	f.changed()
	if f.hooks.Snapshot != nil {
		f.hooks.Snapshot(true)
	}
	return nil
}

func (f *fsm) wake() {
	f.mu.Lock()
	if f.waiting != nil {
		close(f.waiting)
		f.waiting = nil
	}
	f.mu.Unlock()
}

// wait returns once the state reflects index.
func (f *fsm) wait(ctx context.Context, index uint64) error {
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
	hooks    Hooks
}

// Persist writes the captured state; the library runs it beside applies.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.captured.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if s.hooks.Snapshot != nil {
		s.hooks.Snapshot(false)
	}
	return sink.Close()
}

// Release has nothing to give back: captures share the state's memory.
func (s *snapshot) Release() {}

// progressReader counts what was read, so that a long restore is not taken for
// a node that hangs.
type progressReader struct {
	r     io.Reader
	count *atomic.Uint64
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.count.Add(uint64(n))
	return n, err
}
