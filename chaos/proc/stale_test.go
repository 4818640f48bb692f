package proc

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// A leader is stopped, and resumed after another one was elected. It acknowledges no write and answers no linearizable
// read with old data. That holds for requests that waited in its sockets and for new ones.
func TestStaleLeader(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	c := newCluster(t, 3)
	start(t, c)
	for i := range rounds {
		old := leader(t, c)
		mustPut(t, c, "k", fmt.Sprintf("old-%d", i))
		if err := old.Pause(); err != nil {
			t.Fatal(err)
		}
		// The kernel accepts these while the process is stopped.
		waiting := make(chan error, 8)
		for range cap(waiting) / 2 {
			go func() { waiting <- askStale(t.Context(), old, i, http.MethodGet) }()
			go func() { waiting <- askStale(t.Context(), old, i, http.MethodPut) }()
		}
		newLeader := electedWithout(t, c, old)
		mustPut(t, &Cluster{Nodes: []*Node{newLeader}}, "k", fmt.Sprintf("new-%d", i))
		if err := old.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := askStale(t.Context(), old, i, http.MethodGet); err != nil {
			t.Error(err)
		}
		for range cap(waiting) {
			if err := <-waiting; err != nil {
				t.Error(err)
			}
		}
		if got := mustGet(t, c, "k"); string(got.Body) != fmt.Sprintf("new-%d", i) {
			t.Fatalf("round %d: read %q after %q was acknowledged", i, got.Body, fmt.Sprintf("new-%d", i))
		}
		leader(t, c)
	}
}

// askStale sends one request to the stopped leader and checks the response. Its write is conditional on a revision that
// never exists, so any success is false.
func askStale(ctx context.Context, n *Node, round int, method string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if method == http.MethodPut {
		a, err := do(ctx, n, method, "/v1/kv/stale-write", []byte("x"), "If-Match", `"1125899906842624"`)
		if err == nil && a.Status == http.StatusOK {
			return fmt.Errorf("round %d: %s acknowledged an impossible write: %s", round, n.ID, a.Body)
		}
		return nil
	}
	a, err := do(ctx, n, method, "/v1/kv/k", nil)
	if err == nil && a.Status == http.StatusOK && string(a.Body) != fmt.Sprintf("new-%d", round) {
		return fmt.Errorf("round %d: %s answered a linearizable read with %q", round, n.ID, a.Body)
	}
	return nil
}

// electedWithout waits until all other nodes name one leader that is not old.
func electedWithout(t *testing.T, c *Cluster, old *Node) *Node {
	t.Helper()
	var found *Node
	eventually(t, soon, func() error {
		id := ""
		for _, n := range c.Nodes {
			if n == old {
				continue
			}
			s, err := nodeStatus(t.Context(), n)
			if err != nil {
				return err
			}
			if s.LeaderID == "" || s.LeaderID == old.ID || (id != "" && id != s.LeaderID) {
				return fmt.Errorf("%s sees leader %q", n.ID, s.LeaderID)
			}
			id = s.LeaderID
		}
		for _, n := range c.Nodes {
			if n.ID == id {
				found = n
			}
		}
		return nil
	})
	return found
}
