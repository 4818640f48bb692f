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
