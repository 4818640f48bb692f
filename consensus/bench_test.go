package consensus_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
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

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
