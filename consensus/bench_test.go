package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/state"
)

// TestThroughput prints what three nodes in one process carry; it measures and asserts nothing, so it runs only when
// asked for.
func TestThroughput(t *testing.T) {
	t.Parallel()
	if os.Getenv("NORTHSTAR_MEASURE") == "" {
		t.Skip("set NORTHSTAR_MEASURE=1")
	}
	_, leader := startCluster(t, 3)
	value := string(make([]byte, 256))
	load := func(name string, clients int, op func(i int) error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		counts := make([]int, clients)
		start, before := time.Now(), cpu()
		for i := range clients {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := op(i); err != nil {
						t.Error(err)
						return
					}
					counts[i]++
				}
			})
		}
		wg.Wait()
		total := 0
		for _, n := range counts {
			total += n
		}
		took := time.Since(start)
		t.Logf("%-6s %4d clients: %8.0f/s, mean %v, cpu %.0f%%", name, clients, float64(total)/took.Seconds(),
			took*time.Duration(clients)/time.Duration(max(total, 1)), 100*(cpu()-before).Seconds()/took.Seconds())
	}
	for _, clients := range []int{1, 16, 64, 256} {
		load("write", clients, func(i int) error { return leader.put(fmt.Sprint("k", i), value) })
		load("read", clients, func(int) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return leader.ReadBarrier(ctx)
		})
	}
	before := cpu()
	time.Sleep(5 * time.Second)
	t.Logf("idle: %.1f%% of a core for three nodes", 100*(cpu()-before).Seconds()/5)
}

// TestStartCost prints what each entry of the log costs a start: the check when the directory is opened, and the rest.
// Like TestThroughput it runs only when asked for.
func TestStartCost(t *testing.T) {
	if os.Getenv("NORTHSTAR_MEASURE") == "" {
		t.Skip("set NORTHSTAR_MEASURE=1")
	}
	const entries, writes = 20_000, 8
	c, n := startCluster(t, 1)
	c.write("a", "b")
	last, term := n.Status().LastLogIndex, n.Status().Term
	n.stop()
	fillLog(t, n.dir, last, term, entries, writes)
	used := []time.Duration{cpu()}
	done := make(chan struct{})
	caughtUp := func(consensus.StartTimes) { used = append(used, cpu()); close(done) }
	n.caughtUp.Store(&caughtUp)
	store, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	used = append(used, cpu())
	if err := n.startOn(store); err != nil {
		t.Fatal(err)
	}
	<-done
	perEntry := func(from, to int) float64 { return float64((used[to] - used[from]).Microseconds()) / entries }
	t.Logf("an entry of %d writes: the opening %.1f µs, all else until it is applied %.1f µs of processor time", writes,
		perEntry(0, 1), perEntry(1, 2))
}

// fillLog appends entries of so many writes of 256 bytes each.
func fillLog(t *testing.T, dir string, last, term uint64, entries, writes int) {
	t.Helper()
	store, err := storage.Open(storage.Options{Dir: dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	g := storage.Guard(store, storage.GuardConfig{
		StallMin: time.Minute, StallMax: time.Minute, OnFatal: func(error) {}, Logger: testLogger(),
	})
	value := string(make([]byte, 256))
	var batch []*raft.Log
	for i := range entries {
		var cmds []state.Command
		for k := range writes {
			cmds = append(cmds, put(fmt.Sprint("k", (i*writes+k)%5000), value))
		}
		data, err := state.EncodeBatch(cmds)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, &raft.Log{Index: last + uint64(i) + 1, Term: term, Type: raft.LogCommand, Data: data})
	}
	if err := errors.Join(g.Log().StoreLogs(batch), g.Close()); err != nil {
		t.Fatal(err)
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
