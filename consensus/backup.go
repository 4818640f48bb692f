package consensus

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// Backup writes a snapshot of the state with every write that was acknowledged before the call. Errors are those of
// ReadBarrier and of w.
func (n *Node) Backup(ctx context.Context, w io.Writer) error {
	if err := n.ReadBarrier(ctx); err != nil {
		return err
	}
	_, err := n.state.Snapshot().WriteTo(&boundWriter{ctx, w})
	return err
}

// Restore replaces keys and settings by those of a backup. Identity, members and everything that only grows stay. The
// backup is read completely and checked first: a damaged one is CodeBadRequest and changes nothing. Writes wait until
// the new state is installed. The followers get it as a snapshot; there is no election. Other errors: those of
// ReadBarrier and MayWrite, CodeBusy, and CodeOutcomeUnknown once the library has started.
func (n *Node) Restore(ctx context.Context, backup io.Reader) error {
	return n.restore(ctx, backup, state.MergeBackup)
}

// mergeBackup returns a state with the keys and settings of a backup. With many keys it takes seconds.
type mergeBackup func(*state.Snapshot, *state.Backup, time.Time) (*state.Snapshot, error)

func (n *Node) restore(ctx context.Context, backup io.Reader, merge mergeBackup) error {
	if !n.leads() {
		return n.notLeading()
	}
	from, err := state.ReadBackup(backup)
	if err != nil {
		return cluster.Errorf(cluster.CodeBadRequest, "the backup cannot be restored: %w", err)
	}
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return err
	}
	r := restoring{n: n, inst: inst, from: from, merge: merge}
	done := make(chan error, 1)
	// it may outlast the caller: writes stay paused until the library has finished what it started
	n.jobs.Go(func() { done <- r.run(ctx, release) })
	select {
	case err = <-done:
	case <-ctx.Done():
		if r.begun.Load() {
			return unknownOutcome(ctx.Err())
		}
		err = <-done
	}
	return err
}

// restoring is one restore in progress.
type restoring struct {
	n     *Node
	inst  *raftnode.Instance
	from  *state.Backup
	merge mergeBackup
	begun atomic.Bool // the library has got the new state
}

// run merges the backup into the state while nothing is proposed. release gives the change lock back. A leadership that
// ends meanwhile ends the pause of proposals, because this node may lead again before the merge is over.
func (r *restoring) run(ctx context.Context, release func()) error {
	n := r.n
	if err := n.mayWrite(false); err != nil {
		release()
		return err
	}
	n.queue.freeze(true)
	resume := sync.OnceFunc(func() {
		n.queue.freeze(false)
		release()
	})
	defer resume()
	if err := n.queue.idle(ctx); err != nil {
		return cluster.Errorf(cluster.CodeBusy, "writes in flight did not end: %w", err)
	}
	// The term is read first: install refuses if the proof of prepare is of a later one.
	return r.runInTerm(ctx, r.inst.CurrentTerm(), resume)
}

// runInTerm is run for the leadership of term. A node that is only a candidate in term does nothing: it could win after
// its first answer that it does not lead, when proposals go on.
func (r *restoring) runInTerm(ctx context.Context, term uint64, resume func()) error {
	if !r.inst.Leads(term) {
		return leadershipOver(term)
	}
	stop := r.afterLeadership(term, resume)
	merged, err := r.prepare(ctx, term)
	stop()
	if err != nil {
		return err
	}
	return r.install(merged)
}

// afterLeadership calls ended when this node's leadership of term is over, unless stop is called first. It is not
// called once stop has returned.
func (r *restoring) afterLeadership(term uint64, ended func()) (stop func()) {
	quit := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			changed := r.n.LeaderChanged()
			if !r.inst.Leads(term) {
				ended()
				return
			}
			select {
			case <-changed:
			case <-quit:
				return
			}
		}
	})
	return func() {
		close(quit)
		watch.Wait()
	}
}

// mergedState is a state with a backup.
type mergedState struct {
	*state.Snapshot
	size int64  // the library needs it first
	term uint64 // this node led it and no later one when it read the state
}

// prepare returns the state with the backup. term is the current one.
func (r *restoring) prepare(ctx context.Context, term uint64) (m mergedState, err error) {
	if err := r.n.ReadBarrier(ctx); err != nil {
		return m, err
	}
	m.term = term
	if m.Snapshot, err = r.merge(r.n.state.Snapshot(), r.from, time.Now()); err != nil {
		return m, cluster.Errorf(cluster.CodeBadRequest, "the backup cannot be restored: %w", err)
	}
	if !r.inst.Leads(term) {
		return m, leadershipOver(term)
	}
	if m.size, err = m.WriteTo(io.Discard); err != nil {
		return m, cluster.Errorf(cluster.CodeInternal, "the merged state cannot be written: %w", err)
	}
	return m, nil
}

// install makes merged the cluster's state through the library. merged is of the state that this node had as leader of
// its term. Another leader may have changed the state since, and this node may lead again: then nothing is installed.
func (r *restoring) install(merged mergedState) error {
	term := merged.term
	r.n.installing <- struct{}{}
	defer func() { <-r.n.installing }()
	if !r.inst.Leads(term) {
		return leadershipOver(term)
	}
	if err := r.n.mayWrite(false); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	content := &guardedReader{r: pr, leads: func() bool { return r.inst.Leads(term) }}
	go func() {
		_, err := merged.WriteTo(pw)
		_ = pw.CloseWithError(err)
	}()
	read := r.n.fsm.Progress()
	r.n.replacing.Store(term)
	r.begun.Store(true)
	r.n.restoring.Store(merged.size)
	err := r.inst.Restore(term, merged.size, content)
	r.n.restoring.Store(0)
	restored := err == nil
	if restored {
		// The library has committed an entry that it does not hand to the state machine. This one makes its index
		// reachable for read barriers, also when the caller has given up.
		err = r.inst.ApplyNothing(2 * r.n.cfg.TimeoutMax)
	}
	if restored || r.n.fsm.Progress() == read { // committed, or never started
		r.n.replacing.Store(0)
	}
	_ = pr.CloseWithError(errors.New("restore ended")) // ends the writer in any case
	if content.refused.Load() {
		return leadershipOver(term)
	}
	if err != nil {
		// Even "not the leader" may come from the library's last step, after it replaced the state.
		return unknownOutcome(err)
	}
	return nil
}

// snapshotDone notes that a snapshot was written, or has replaced the state. raft's main loop goes on then: what is
// left of a leader's restore is the commit of an empty entry.
func (n *Node) snapshotDone(restored bool) {
	if restored {
		n.restoring.Store(0)
	}
	if n.deps.Hooks.Snapshot != nil {
		n.deps.Hooks.Snapshot(restored)
	}
}

func leadershipOver(term uint64) error {
	return notLeader("not restored: this node's leadership of term %d, whose state the backup was merged into, is over",
		term)
}

// guardedReader refuses the first read once the leadership is over. The library's main loop reads, before it replaces
// anything, and cannot change its role meanwhile.
type guardedReader struct {
	r       io.Reader
	leads   func() bool
	begun   bool
	refused atomic.Bool
}

func (g *guardedReader) Read(p []byte) (int, error) {
	if !g.begun && !g.leads() {
		g.refused.Store(true)
		return 0, errors.New("the leadership has changed")
	}
	g.begun = true
	return g.r.Read(p)
}

// boundWriter ends a long write with its caller's context.
type boundWriter struct {
	ctx context.Context
	w   io.Writer
}

func (b *boundWriter) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.w.Write(p)
}
