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

// Backup writes a snapshot of the state that holds every write acknowledged
// before the call. Errors are Barrier's, or w's.
func (n *Node) Backup(ctx context.Context, w io.Writer) error {
	if err := n.ReadBarrier(ctx); err != nil {
		return err
	}
	_, err := n.state.Snapshot().WriteTo(&boundWriter{ctx, w})
	return err
}

// Restore replaces keys and settings by those of a backup; identity, members and
// all that only grows stay. The backup is read whole and checked before anything
// else: a damaged one is CodeBadRequest and changes nothing. Then writes wait
// until it is in place. The followers get the result as a snapshot; nobody is
// elected. Errors besides: Barrier's, CodeBusy, CodeOutcomeUnknown once the
// library has begun.
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
	n.jobs.Go(func() { // it may outlast the caller: what the library has begun is waited for with writes held back
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
	if err != nil {
		return err
	}
	// The library has committed an entry that the state machine is not shown:
	// one more makes its index reachable for read barriers.
	settings := state.SettingsChange(n.View().Settings())
	if err := n.proposeInternal(ctx, state.Command{Kind: state.KindSettings, Settings: &settings}); err != nil {
		return unknownOutcome(err) // whatever became of this: the restore has happened
	}
	return nil
}

// restoring is one restore on its way.
type restoring struct {
	n     *Node
	inst  *raftnode.Instance
	from  *state.Backup
	begun atomic.Bool // the library was given the new state
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

// install makes merged the cluster's state through the library. It is not bound
// by time: the library's own timeout would run out during a long restore, and
// its error then reads as if nothing had been done.
func (r *restoring) install(merged *state.Snapshot) error {
	size, err := merged.WriteTo(io.Discard) // the library must be told before
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
	if err == nil || r.n.fsm.Progress() == read { // committed, or never begun
		r.n.replacing.Store(0)
	}
	_ = pr.CloseWithError(errors.New("restore ended")) // ends the writer in any case
	if err != nil {
		// Even "not the leader" may come from the library's last step, after the
		// state was replaced.
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
