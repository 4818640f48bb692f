package proc

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A node with damaged files either exits with 1 and one clear line, or returns with exactly the cluster's data. It
// never prints a panic trace and never serves other data.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--snapshot-threshold", "64", "--snapshot-interval", "1s")
	start(t, c)
	for i := range 200 {
		mustPut(t, c, fmt.Sprintf("k%d", i%20), strings.Repeat(fmt.Sprint(i), 50))
	}
	victim := c.Nodes[2]
	awaitSnapshot(t, c, victim, 1)
	victim.Kill()
	leader(t, c)
	good := t.TempDir()
	if err := os.CopyFS(good, os.DirFS(c.DataDir(victim))); err != nil {
		t.Fatal(err)
	}
	files := dataFiles(t, good)
	if len(files) < 5 { // log, vote, identity, a snapshot and its description
		t.Fatalf("data dir holds only %v", files)
	}

	rng := rand.New(rand.NewPCG(1, 2))
	outcomes := map[string]int{}
	for _, file := range files {
		size := fileSize(t, filepath.Join(good, file))
		for _, kind := range []string{"truncate", "flip", "zero", "empty"} {
			dir := c.DataDir(victim)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			damage(t, filepath.Join(dir, file), kind, size, rng)
			outcomes[startDamaged(t, c, victim, kind+" "+file)]++
		}
	}
	t.Logf("%d files, outcomes %v", len(files), outcomes)
}

// startDamaged starts the damaged node and waits until it has either ended or caught up.
func startDamaged(t *testing.T, c *Cluster, victim *Node, what string) string {
	t.Helper()
	logStart := len(c.Log(victim))
	if err := c.StartNode(victim); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	cmd := victim.Cmd
	go func() { exited <- cmd.Wait() }()
	outcome := ""
	eventually(t, soon, func() error {
		select {
		case <-exited:
			outcome = "refused"
			return nil
		default:
		}
		s, err := nodeStatus(t.Context(), victim)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		l, err := nodeStatus(t.Context(), c.Nodes[0])
		switch {
		case err != nil:
			return err
		case s.Lifecycle == "dead":
			outcome = "dead"
			return nil
		case s.AppliedIndex < l.AppliedIndex || s.LeaderID == "":
			return fmt.Errorf("%s: applied %d of %d", what, s.AppliedIndex, l.AppliedIndex)
		}
		outcome = "recovered"
		return nil
	})
	logged := c.Log(victim)[logStart:]
	for _, trace := range []string{"panic:", "goroutine ", "SIGBUS", "fatal error"} {
		if strings.Contains(logged, trace) {
			t.Errorf("%s: a trace instead of a clear line:\n%s", what, logged)
		}
	}
	switch outcome {
	case "refused":
		if code := cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%s: exit code %d, want 1:\n%s", what, code, logged)
		}
		if !strings.Contains(logged, c.DataDir(victim)) && !strings.Contains(logged, "data") {
			t.Errorf("%s: the error does not say what is damaged:\n%s", what, logged)
		}
		victim.Cmd = nil
	case "recovered":
		for i := range 20 {
			key := fmt.Sprintf("k%d", i)
			want := mustGet(t, &Cluster{Nodes: c.Nodes[:2]}, key)
			got, err := do(t.Context(), victim, "GET", "/v1/kv/"+key+"?consistency=stale", nil)
			if err != nil || string(got.Body) != string(want.Body) || got.Revision != want.Revision {
				t.Errorf("%s: %s diverged: %q rev %d, want %q rev %d (%v)", what, key, got.Body, got.Revision,
					want.Body, want.Revision, err)
			}
		}
		fallthrough
	default:
		_ = cmd.Process.Kill()
		<-exited
		victim.Cmd = nil
	}
	return outcome
}

// dataFiles lists the files that hold data, without lock and reserve.
func dataFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil && fileSize(t, path) > 0 && !strings.Contains(rel, "reserve") &&
			!strings.Contains(strings.ToLower(rel), "lock") {
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func damage(t *testing.T, path, kind string, size int64, rng *rand.Rand) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch kind {
	case "truncate":
		data = data[:rng.Int64N(size)]
	case "flip":
		for range 8 {
			data[rng.Int64N(size)] ^= 1 << rng.IntN(8)
		}
	case "zero":
		from := rng.Int64N(size)
		clear(data[from:min(from+4096, size)])
	case "empty":
		data = nil
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestUnusableDataDir checks the error of a node that cannot use its data directory.
func TestUnusableDataDir(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	n := start(t, c)

	t.Run("second process", func(t *testing.T) {
		second := *n
		second.Cmd = nil
		dup := &Cluster{Kind: c.Kind, Nodes: c.Nodes, Dir: c.Dir, argv: func(m *Node, initial string) []string {
			argv := c.argv(m, initial)
			return append(argv, "--raft-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--raft-advertise", m.Raft,
				"--http-advertise", m.HTTP)
		}}
		expectExit(t, dup, &second, c.DataDir(n))
	})
	t.Run("not a directory", func(t *testing.T) {
		other := newCluster(t, 3)
		if err := os.WriteFile(other.DataDir(other.Nodes[0]), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		expectExit(t, other, other.Nodes[0], other.DataDir(other.Nodes[0]))
	})
	t.Run("cannot be made", func(t *testing.T) {
		other := newCluster(t, 3)
		nowhere := "/proc/northstar" // where not even root can create one
		unwritable := &Cluster{
			Kind: other.Kind, Nodes: other.Nodes, Dir: other.Dir,
			argv: func(m *Node, initial string) []string {
				argv := other.argv(m, initial)
				for i, arg := range argv {
					if arg == other.DataDir(m) {
						argv[i] = nowhere
					}
				}
				return argv
			},
		}
		expectExit(t, unwritable, other.Nodes[0], nowhere)
	})
	t.Run("another node's data", func(t *testing.T) {
		victim := c.Nodes[1]
		victim.Kill()
		swapped := &Cluster{Kind: c.Kind, Nodes: c.Nodes, Dir: c.Dir, argv: func(m *Node, initial string) []string {
			argv := c.argv(m, initial)
			for i, arg := range argv {
				if arg == c.DataDir(m) {
					argv[i] = c.DataDir(victim)
				}
			}
			return argv
		}}
		third := c.Nodes[2]
		third.Kill()
		expectExit(t, swapped, third, string(victim.ID))
	})
}

// expectExit requires the process to exit with 1 and to name the cause.
func expectExit(t *testing.T, c *Cluster, n *Node, names string) {
	t.Helper()
	before := len(c.Log(n))
	if err := c.StartNode(n); err != nil {
		t.Fatal(err)
	}
	done := make(chan int, 1)
	go func() { done <- n.Wait() }()
	select {
	case code := <-done:
		logged := c.Log(n)[before:]
		if (code != 1 && code != 2) || !strings.Contains(logged, names) || strings.Contains(logged, "goroutine ") {
			t.Errorf("exit code %d, log:\n%s", code, logged)
		}
	case <-time.After(soon):
		t.Errorf("still running:\n%s", c.Log(n)[before:])
		_ = n.Signal(os.Kill)
		<-done
	}
}
