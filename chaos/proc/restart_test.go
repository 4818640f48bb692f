package proc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// From empty data directories there is a leader before an election timer expires, and every node agrees on one cluster
// ID. No busy machine needs as long as a timer here.
func TestFirstElection(t *testing.T) {
	t.Parallel()
	const timer = 30 * time.Second
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, size, "--election-timeout-min", timer.String(), "--election-timeout-max",
				(2 * timer).String())
			began := time.Now()
			start(t, c)
			took := time.Since(began)
			t.Logf("%d nodes: leader known everywhere after %s", size, took)
			if took >= timer {
				t.Errorf("the first election took %v, and a timer expires after %v", took, timer)
			}
			ofOneCluster(t, c)
		})
	}
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
