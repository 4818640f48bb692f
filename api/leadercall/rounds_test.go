package leadercall

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// TestFullRound: callers that find the next round full wait for the one after it, as long as their contexts last.
func TestFullRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRounds()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ids := make([]string, maxRound/2)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		const callers = 5 // more than one round takes
		answers := make(chan error, callers)
		for range callers {
			go func() {
				left, err := r.join(ctx, ids...)
				if err == nil && len(left) != len(ids) {
					err = fmt.Errorf("%d live", len(left))
				}
				answers <- err
			}()
		}
		synctest.Wait()
		if len(answers) > 0 {
			t.Fatal("answered without a leader:", <-answers)
		}
		brief, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := r.join(brief, ids...); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Errorf("no round before the deadline: %v", err)
		}
		go r.run(ctx, func() context.Context { return ctx }, time.Second,
			func(_ context.Context, ids []string) (map[string]time.Duration, error) {
				if len(ids) > maxRound {
					t.Errorf("a question about %d", len(ids))
				}
				left := map[string]time.Duration{}
				for _, id := range ids {
					left[id] = Renewed
				}
				return left, nil
			})
		for range callers {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
	})
}
