package proc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// firstLeaderWithin is how soon new nodes have a leader that all know.
const firstLeaderWithin = time.Second

// From empty data directories there is a leader in time, and every node agrees on one cluster ID. A busy machine may
// delay a start, so only the fastest of a few starts counts. Not parallel: it measures that time.
func TestFirstElection(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			fastest := time.Hour
			for try := 0; try < 5 && fastest >= firstLeaderWithin; try++ {
				took := firstElection(t, size)
				t.Logf("%d nodes: leader known everywhere after %s", size, took)
				fastest = min(fastest, took)
			}
			if fastest >= firstLeaderWithin {
				t.Errorf("the fastest of 5 first elections took %v, want less than %v", fastest, firstLeaderWithin)
			}
		})
	}
}

// firstElection starts a cluster from empty data directories, and returns the time until all nodes know its leader. All
// nodes must then agree on the cluster ID.
func firstElection(t *testing.T, size int) (took time.Duration) {
	t.Helper()
	c := newCluster(t, size)
	defer c.KillAll()
	began := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	leader(t, c)
	took = time.Since(began)
	ofOneCluster(t, c)
	return took
}

// TestKillAllUnderLoad repeatedly kills all nodes with kill -9 at the same time, under write load.
func TestKillAllUnderLoad(t *testing.T) {
	t.Parallel()
	cycles := testenv.Repeats(50)
	if testing.Short() {
		cycles = 5
	}
	c := newCluster(t, 3)
	w := newWriters(c, 8)
	clusterID := ""
	for i := range cycles {
		n := start(t, c)
		w.check(t)
		if id := mustStatus(t, n).ClusterID; clusterID == "" {
			clusterID = id
		} else if id != clusterID {
			t.Fatalf("cycle %d: cluster ID %q became %q", i, clusterID, id)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+i*67%250)*time.Millisecond)
		w.run(ctx)
		cancel()
		c.KillAll()
	}
	start(t, c)
	w.check(t)
	if w.total < 3*cycles {
		t.Errorf("only %d writes were acknowledged: the load was none", w.total)
	}
	t.Logf("%d cycles, %d writes acknowledged, none lost", cycles, w.total)
}

// TestKillOneUnderLoad kills single nodes, the leader included, with kill -9 and restarts them, under write load.
func TestKillOneUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	start(t, c)
	w := newWriters(c, 4)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	for i := range 12 {
		victim := c.Nodes[i%3]
		if i%2 == 0 {
			victim = leader(t, c)
		}
		victim.Kill()
		leader(t, c)
		if err := c.StartNode(victim); err != nil {
			t.Fatal(err)
		}
		leader(t, c)
	}
	stop()
	<-done
	w.check(t)
	t.Logf("%d writes acknowledged, none lost", w.total)
}
