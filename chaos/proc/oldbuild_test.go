package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"northstar/state"
)

const (
	oldCommit         = "f89d65c" // the previous build
	oldCommandVersion = 4         // the highest command version that it applies
)

var errNoOldCommit = errors.New("commit " + oldCommit + " is not in this clone")

// oldBin is the program of oldCommit, built from the history of this repository.
var oldBin = sync.OnceValues(func() (string, error) {
	if err := exec.Command("git", "cat-file", "-e", oldCommit+"^{commit}").Run(); err != nil {
		return "", fmt.Errorf("%w: %w", errNoOldCommit, err)
	}
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", err
	}
	sources, bin := filepath.Join(binDir, oldCommit), filepath.Join(binDir, "northstar-node-"+oldCommit)
	extract := exec.Command("sh", "-c", `mkdir -p "$1" && git archive "$0" | tar -x -C "$1"`, oldCommit, sources)
	extract.Dir = strings.TrimSpace(string(root))
	if out, err := extract.CombinedOutput(); err != nil {
		return "", fmt.Errorf("extract %s: %w\n%s", oldCommit, err, out)
	}
	compile := exec.Command("go", "build", "-o", bin, "./cmd/northstar-node")
	compile.Dir = sources
	if out, err := compile.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", oldCommit, err, out)
	}
	return bin, nil
})

// replaceProgram stops a node with SIGTERM and starts it with another program, "" for the present one.
func replaceProgram(t *testing.T, c *Cluster, n *Node, bin string) {
	t.Helper()
	if err := n.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := n.Wait(); code != 0 {
		t.Fatalf("%s: exit code %d on SIGTERM:\n%s", n.ID, code, c.Log(n))
	}
	if c.Bin[n.ID] = bin; bin == "" {
		delete(c.Bin, n.ID)
	}
	if err := c.StartNode(n); err != nil {
		t.Fatal(err)
	}
}

// Nodes of the previous and of the present build run together. Each node is replaced in turn during writes. The first
// one returns to the old build twice: among old nodes, and when all others run the present build.
func TestUpgradeFromTheBuildBefore(t *testing.T) {
	t.Parallel()
	old, err := oldBin()
	if errors.Is(err, errNoOldCommit) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 3)
	for _, n := range c.Nodes {
		c.Bin[n.ID] = old
	}
	start(t, c)
	w := newWriters(c, 4)
	stop := w.meanwhile(t)
	written := func(what string) {
		t.Helper()
		before := w.acknowledged()
		eventually(t, soon, func() error {
			if n := w.acknowledged() - before; n < 50 {
				return fmt.Errorf("%s: %d writes acknowledged", what, n)
			}
			return nil
		})
		for _, n := range c.Nodes {
			awaitApplied(t, c, n)
		}
		w.check(t)
	}
	first := c.Nodes[0]
	written("all old")
	replaceProgram(t, c, first, "")
	written(first.ID + " upgraded")
	replaceProgram(t, c, first, old) // the log has no command that the old nodes do not apply
	written(first.ID + " downgraded")
	for _, n := range c.Nodes {
		replaceProgram(t, c, n, "")
		written(n.ID + " upgraded")
	}
	if state.CommandVersion == oldCommandVersion {
		replaceProgram(t, c, first, old)
		written(first.ID + " downgraded, the others upgraded")
	}
	stop()
	w.check(t)
}

// acknowledged returns the number of writes acknowledged so far.
func (w *writers) acknowledged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}
