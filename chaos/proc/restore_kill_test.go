package proc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// TestRestoresUnderKills restores a backup again and again, and kills a node at a random moment of it: the leader, the
// node that was asked, or another one. All nodes must agree soon after that, and no process may end by itself.
func TestRestoresUnderKills(t *testing.T) {
	t.Parallel()
	rounds, seed := testenv.Repeats(setting(t, "ITERATIONS", 16)), setting(t, "SEED", int(time.Now().Unix()%1_000_000))
	if testing.Short() {
		rounds = 3
	}
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(uint64(seed), uint64(size)))
			c := newCluster(t, size, "--snapshot-trailing-logs", "1000")
			start(t, c)
			for i := range 16 {
				mustPut(t, c, fmt.Sprint("big", i), string(make([]byte, 100_000)))
			}
			backup, err := do(t.Context(), leader(t, c), http.MethodGet, "/admin/snapshot", nil)
			if err != nil || backup.Status != http.StatusOK {
				t.Fatalf("%d %v", backup.Status, err)
			}
			slowest := time.Duration(0)
			for round := range rounds {
				asked := c.Nodes[rng.IntN(size)]
				victim := c.Nodes[rng.IntN(size)]
				if rng.IntN(2) == 0 {
					victim = leader(t, c)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				restored := make(chan struct{})
				go func() {
					defer close(restored)
					_, _ = do(ctx, asked, http.MethodPost, "/admin/snapshot/restore", backup.Body, "Content-Type",
						"application/octet-stream")
				}()
				pause(time.Duration(rng.IntN(60_000)) * time.Microsecond)
				victim.Kill()
				pause(time.Duration(rng.IntN(600)) * time.Millisecond)
				if err := c.StartNode(victim); err != nil {
					t.Fatal(err)
				}
				<-restored
				cancel()
				want := fmt.Sprint("round ", round)
				mustPut(t, c, "marker", want)
				began := time.Now()
				for _, n := range c.Nodes {
					eventually(t, soon, func() error { return holds(t.Context(), n, "marker", want) })
				}
				slowest = max(slowest, time.Since(began))
			}
			t.Logf("%d restores: all nodes agree at most %v after a write", rounds, slowest.Round(time.Millisecond))
		})
	}
}

// holds returns an error unless a node's own state has a value and the node is ready.
func holds(ctx context.Context, n *Node, key, want string) error {
	a, err := do(ctx, n, http.MethodGet, "/v1/kv/"+key+"?consistency=stale", nil)
	if err != nil || string(a.Body) != want {
		return fmt.Errorf("%s holds %d %s, %v; want %s", n.ID, a.Status, a.Body, err, want)
	}
	if a, err = do(ctx, n, http.MethodGet, "/readyz", nil); err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: %s", n.ID, a.Body)
	}
	return err
}
