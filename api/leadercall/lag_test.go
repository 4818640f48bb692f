package leadercall

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// TestLag: callers at the same time share one question, whose answer says how much this node has yet to apply. Without
// an answer in time nothing is known.
func TestLag(t *testing.T) {
	t.Parallel()
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		for w.state.View().AppliedIndex() < 12 {
			w.apply(state.Command{Kind: state.KindPut, Put: &state.Put{Key: "k"}})
		}
		other.applied.Store(5)
		w.calls = func(ctx context.Context, _ cluster.NodeID) error {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		type answer struct {
			lag uint64
			err error
		}
		const callers = 20
		answers := make(chan answer, callers)
		gone, leave := context.WithCancel(context.Background()) // of the caller that comes first
		defer leave()
		for i := range callers {
			ctx := context.Background()
			if i == 0 {
				ctx = gone
			}
			go func() {
				lag, err := other.Lag(ctx)
				answers <- answer{lag, err}
			}()
			if i == 0 {
				synctest.Wait()
				leave()
			}
		}
		for range callers {
			if got := <-answers; got.err != nil || got.lag != 7 {
				t.Errorf("%d entries, %v; want 7", got.lag, got.err)
			}
		}
		if asked := leader.asked.Load(); asked != 1 {
			t.Errorf("the leader was asked %d times", asked)
		}
		other.applied.Store(20) // the answer is older than what was applied meanwhile
		if lag, err := other.Lag(context.Background()); err != nil || lag != 0 {
			t.Errorf("%d entries, %v", lag, err)
		}

		unknown := func(n *node) {
			t.Helper()
			start := time.Now()
			if lag, err := n.Lag(context.Background()); !cluster.IsCode(err, cluster.CodeNoLeader) {
				t.Errorf("%d entries, %v", lag, err)
			}
			if took := time.Since(start); took > timeoutMax {
				t.Errorf("it took %v", took)
			}
		}
		unknown(leader)
		w.calls = func(ctx context.Context, _ cluster.NodeID) error { <-ctx.Done(); return ctx.Err() }
		unknown(other)
		w.lead("")
		unknown(other)
	})
}
