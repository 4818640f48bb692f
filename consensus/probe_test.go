package consensus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// A probe takes three round trips with TLS. With the timeouts of distant nodes it has the time for them.
func TestProbeTimeout(t *testing.T) {
	t.Parallel()
	for timeoutMin, want := range map[time.Duration]time.Duration{
		150 * time.Millisecond:  500 * time.Millisecond,
		800 * time.Millisecond:  1600 * time.Millisecond,
		3000 * time.Millisecond: 6 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &Node{cfg: Config{TimeoutMin: timeoutMin}}
			n.deps.Probe = func(ctx context.Context, _ string) (cluster.Peer, cluster.Admission, error) {
				<-ctx.Done()
				return cluster.Peer{}, cluster.Admission{}, ctx.Err()
			}
			began := time.Now()
			if _, _, err := n.probe(t.Context(), "h:1"); err == nil || time.Since(began) != want {
				t.Errorf("timeout-min %v: a probe ended after %v, %v; want %v", timeoutMin, time.Since(began), err, want)
			}
		})
	}
}
