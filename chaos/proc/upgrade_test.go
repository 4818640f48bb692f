package proc

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Old and new programs run together: the new ones propose nothing that an old one cannot apply, and no node stops. A
// node that returns to the old program afterwards stops with a clear message, and nothing diverges.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	next, err := nextBin()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 3)
	start(t, c)
	mustPut(t, c, "k", "old")

	for i, n := range c.Nodes {
		if err := n.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := n.Wait(); code != 0 {
			t.Fatalf("%s: exit code %d on SIGTERM:\n%s", n.ID, code, c.Log(n))
		}
		c.Bin[n.ID] = next
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
		leader(t, c)
		mustPut(t, c, "k", fmt.Sprint("upgraded ", i+1))
		for _, other := range c.Nodes {
			awaitApplied(t, c, other)
			if i < 2 && strings.Contains(c.Log(other), "note: applied") {
				t.Fatalf("%s proposed what the old nodes cannot read", other.ID)
			}
		}
	}
	eventually(t, soon, func() error {
		for _, n := range c.Nodes {
			if strings.Contains(c.Log(n), "note: applied") {
				return nil
			}
		}
		return fmt.Errorf("no new command was proposed though every member reads it")
	})

	back := c.Nodes[0]
	if err := back.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	back.Wait()
	leader(t, c)
	logged := len(c.Log(back))
	delete(c.Bin, back.ID)
	if err := c.StartNode(back); err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() { ended <- back.Wait() }()
	select {
	case code := <-ended:
		said := c.Log(back)[logged:]
		if code != 1 || !strings.Contains(said, "upgrade this node") || strings.Contains(said, "goroutine ") {
			t.Errorf("exit code %d:\n%s", code, said)
		}
	case <-time.After(soon):
		t.Fatal("the old program runs on a log that it cannot read")
	}
	mustPut(t, &Cluster{Nodes: c.Nodes[1:]}, "k", "two of three")
	c.Bin[back.ID] = next
	if err := c.StartNode(back); err != nil {
		t.Fatal(err)
	}
	awaitApplied(t, c, back)
	got, err := do(t.Context(), back, http.MethodGet, "/v1/kv/k?consistency=stale", nil)
	if err != nil || string(got.Body) != "two of three" {
		t.Errorf("the node that came back holds %q, %v", got.Body, err)
	}
}

// awaitApplied waits until the node has applied everything that the leader had applied, and serves stale reads.
func awaitApplied(t *testing.T, c *Cluster, n *Node) {
	t.Helper()
	l := mustStatus(t, leader(t, c))
	eventually(t, soon, func() error {
		s, err := nodeStatus(t.Context(), n)
		if err == nil && s.AppliedIndex < l.AppliedIndex {
			err = fmt.Errorf("%s applied %d of %d", n.ID, s.AppliedIndex, l.AppliedIndex)
		}
		if err != nil {
			return err
		}
		got, err := do(t.Context(), n, http.MethodGet, "/v1/kv?consistency=stale", nil)
		if err == nil && got.Status != http.StatusOK {
			err = fmt.Errorf("%s: %d %s", n.ID, got.Status, got.Body)
		}
		return err
	})
}
