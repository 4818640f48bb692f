package consensus

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

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
// ReadBarrier, CodeBusy, and CodeOutcomeUnknown once the library has started.
func (n *Node) Restore(ctx context.Context, backup io.Reader) error {
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
	r := restoring{n: n, inst: inst, from: from}
	done := make(chan error, 1)
	// it may outlast the caller: writes stay paused until the library has finished what it started
	n.jobs.Go(func() {
		defer release()
		done <- r.run(ctx)
	})
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
	begun atomic.Bool // the library has got the new state
}

// run merges the backup into the state while nothing is proposed.
func (r *restoring) run(ctx context.Context) error {
	n := r.n
	n.queue.freeze(true)
	defer n.queue.freeze(false)
	if err := n.queue.idle(ctx); err != nil {
		return cluster.Errorf(cluster.CodeBusy, "writes in flight did not end: %w", err)
	}
	if err := n.ReadBarrier(ctx); err != nil {
		return err
	}
	merged, err := state.MergeBackup(n.state.Snapshot(), r.from)
	if err != nil {
		return cluster.Errorf(cluster.CodeBadRequest, "the backup cannot be restored: %w", err)
	}
	return r.install(merged)
}

// install makes merged the cluster's state through the library.
func (r *restoring) install(merged *state.Snapshot) error {
	size, err := merged.WriteTo(io.Discard) // the library needs the size first
	if err != nil {
		return cluster.Errorf(cluster.CodeInternal, "the merged state cannot be written: %w", err)
	}
	term := r.inst.CurrentTerm()
	pr, pw := io.Pipe()
	go func() {
		_, err := merged.WriteTo(pw)
		_ = pw.CloseWithError(err)
	}()
	read := r.n.fsm.Progress()
	r.n.replacing.Store(term)
	r.begun.Store(true)
	err = r.inst.Restore(term, size, pr)
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
	if err != nil {
		// Even "not the leader" may come from the library's last step, after it replaced the state.
		return unknownOutcome(err)
	}
	return nil
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
