package proc

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A big snapshot is installed on one node while another is down, and a backup of it is restored. Neither causes an
// election. NORTHSTAR_SNAPSHOT is its size in MB. Not parallel: it takes much memory and most of the disk's time.
func TestBigSnapshot(t *testing.T) {
	megabytes := 200
	if s := os.Getenv("NORTHSTAR_SNAPSHOT"); s != "" {
		var err error
		if megabytes, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	// Both take much longer than these timeouts, which rarely fire on a busy machine.
	c := newCluster(t, 3, "--election-timeout-min", "1s", "--election-timeout-max", "2s", "--snapshot-threshold", "100",
		"--snapshot-interval", "2s", "--snapshot-trailing-logs", "1000")
	// The node that will lag must not lead, so that stopping it causes no election.
	first := start(t, c)
	lagging := c.Nodes[0]
	if lagging == first {
		lagging = c.Nodes[1]
	}
	lagging.Kill()
	fill(t, c, megabytes)
	// Small writes push the big ones out of the retained log.
	small(t, c, 2500)
	l := leader(t, c) // the load may have moved leadership
	var down *Node
	for _, n := range c.Nodes {
		if n != l && n != lagging {
			down = n
		}
	}
	awaitSnapshot(t, c, l, int64(megabytes)<<20)
	before := mustStatus(t, l)

	if err := c.StartNode(lagging); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		if _, err := nodeStatus(t.Context(), lagging); err != nil {
			return err
		}
		entries, err := os.ReadDir(filepath.Join(c.DataDir(lagging), "snapshots"))
		if err != nil || len(entries) == 0 {
			return fmt.Errorf("no snapshot arrives yet: %v", err)
		}
		return nil
	})
	down.Kill()
	// From here on the leader has a quorum only with the busy node.
	eventually(t, 4*soon, func() error {
		s, err := nodeStatus(t.Context(), lagging)
		if err != nil {
			return err
		}
		if s.AppliedIndex < before.AppliedIndex {
			return fmt.Errorf("applied %d of %d", s.AppliedIndex, before.AppliedIndex)
		}
		return nil
	})
	if now := mustStatus(t, l); now.Term != before.Term || now.State != "leader" {
		t.Fatalf("term %d to %d, state %s: an election during the install", before.Term, now.Term, now.State)
	}

	backup := filepath.Join(t.TempDir(), "backup")
	saveBackup(t, l, backup)
	mustPut(t, c, "after-backup", "x")
	rev := mustPut(t, c, "after-backup", "y").Revision
	restoreBackup(t, l, backup)
	if now := mustStatus(t, l); now.Term != before.Term || now.State != "leader" {
		t.Fatalf("term %d to %d, state %s: an election during the restore", before.Term, now.Term, now.State)
	}
	if a := mustGet(t, c, "after-backup"); a.Status != http.StatusNotFound {
		t.Errorf("a key newer than the backup is still there: %d", a.Status)
	}
	if a := mustPut(t, c, "after-restore", "z"); a.Revision <= rev {
		t.Errorf("revision %d after %d: it went back", a.Revision, rev)
	}
	if a := mustGet(t, c, fmt.Sprintf("big-%d", megabytes-1)); a.Status != http.StatusOK || len(a.Body) != 1<<20 {
		t.Errorf("big key after the restore: %d, %d bytes", a.Status, len(a.Body))
	}
	if err := c.StartNode(down); err != nil {
		t.Fatal(err)
	}
	eventually(t, 4*soon, func() error {
		s, err := nodeStatus(t.Context(), down)
		if err == nil && s.AppliedIndex < before.AppliedIndex {
			err = fmt.Errorf("applied %d of %d", s.AppliedIndex, before.AppliedIndex)
		}
		return err
	})
	if now := mustStatus(t, l); now.Term != before.Term {
		t.Errorf("term %d to %d when the third node came back", before.Term, now.Term)
	}
}

func fill(t *testing.T, c *Cluster, megabytes int) {
	t.Helper()
	value := make([]byte, 1<<20)
	_, _ = rand.Read(value)
	parallel(t, 4, megabytes, func(i int) error {
		return retryPut(t.Context(), c, fmt.Sprintf("big-%d", i), string(value))
	})
}

func small(t *testing.T, c *Cluster, writes int) {
	t.Helper()
	// One at a time, so that each is a log entry of its own.
	parallel(t, 1, writes, func(i int) error {
		return retryPut(t.Context(), c, fmt.Sprintf("small-%d", i%10), "x")
	})
}

// retryPut writes through any running node, and retries over a few elections.
func retryPut(ctx context.Context, c *Cluster, key, value string) error {
	var last error
	for i := range 40 {
		n := c.Nodes[i%len(c.Nodes)]
		if !n.Running() {
			continue
		}
		a, err := put(ctx, n, key, value)
		if err == nil && a.Status == http.StatusOK {
			return nil
		}
		last = fmt.Errorf("put %s: %d %s %w", key, a.Status, a.Body, err)
		pause(100 * time.Millisecond)
	}
	return last
}

func parallel(t *testing.T, workers, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

// awaitSnapshot waits until the node has a finished snapshot of that size.
func awaitSnapshot(t *testing.T, c *Cluster, n *Node, size int64) {
	t.Helper()
	eventually(t, 2*soon, func() error {
		found, err := filepath.Glob(filepath.Join(c.DataDir(n), "snapshots", "*", "state.bin"))
		if err != nil {
			return err
		}
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.Size() >= size &&
				filepath.Ext(filepath.Dir(path)) != ".tmp" {
				return nil
			}
		}
		return fmt.Errorf("no snapshot of %d bytes among %v", size, found)
	})
}

func saveBackup(t *testing.T, n *Node, path string) {
	t.Helper()
	resp, err := http.Get("http://" + n.HTTP + "/admin/snapshot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := io.Copy(f, resp.Body); err != nil || resp.StatusCode != http.StatusOK || n == 0 {
		t.Fatalf("backup: %s, %d bytes, %v", resp.Status, n, err)
	}
}

func restoreBackup(t *testing.T, n *Node, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	resp, err := http.Post("http://"+n.HTTP+"/admin/snapshot/restore", "application/octet-stream", f)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("restore: %s %s", resp.Status, body)
	}
}
