package transport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestAlive(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, ends []*end) {
		n1 := ends[0]
		alive := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return n1.raft.CheckMainLoop(ctx)
		}
		if err := alive(); err != nil {
			t.Errorf("before raft runs: %v", err)
		}
		n1.bindOnly()
		if err := alive(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a main loop that hangs: %v", err)
		}
		op := &operation{snapshot: true}
		n1.raft.busy.enter(op, time.Now())
		if err := alive(); err != nil {
			t.Errorf("inside a snapshot: %v", err)
		}
		n1.raft.busy.leave(op)
		n1.serve(func(rpc raft.RPC) {
			if c := rpc.Command.(*raft.AppendEntriesRequest); c.Term != 0 {
				t.Errorf("it asks in term %d", c.Term)
			}
			answer(&rpc, 5)
		})
		if err := alive(); err != nil {
			t.Errorf("a main loop that turns: %v", err)
		}
		n1.stop()
		if err := alive(); !errors.Is(err, errClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A leader's main loop is inside a restore and answers nothing. That is no hang while the restore progresses, or syncs
// what it has written.
func TestMainLoopInALeadersRestore(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(t *testing.T, ends []*end) {
		n1 := ends[0]
		n1.bindOnly()
		alive := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return n1.raft.CheckMainLoop(ctx) == nil
		}
		n1.progress.Add(1)
		if alive() {
			t.Error("it hangs, while a snapshot is sent to another node")
		}
		quiet := n1.tr.params.stall + 10*time.Second
		for _, backup := range []int64{10 * syncRate, 10*syncRate + 1} { // one after the other
			n1.restoring.Store(backup)
			for range 20 {
				if !alive() {
					t.Error("in a restore that progresses")
				}
				time.Sleep(quiet) // of a synctest bubble
				n1.progress.Add(1)
			}
			if !alive() {
				t.Error("in a restore that progressed just now")
			}
			time.Sleep(quiet + time.Millisecond)
			if alive() {
				t.Error("in a restore that hangs")
			}
		}
		n1.restoring.Store(0)
		n1.progress.Add(1)
		if alive() {
			t.Error("it hangs after the restore")
		}
	})
}
