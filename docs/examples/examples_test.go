// Package examples_test runs the examples as they stand here: each on a cluster of its own, whose leader is killed in
// the middle.
package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/chaos/proc"
)

var (
	binDir  string
	nodeBin = sync.OnceValues(func() (string, error) {
		return proc.Program(binDir, "northstar-node")
	})
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "northstar-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

const (
	writes    = 30
	killAfter = 8
)

// TestExamples: an example goes on with its role, its session and its token when the leader is killed, every write is
// there, and the role is vacant at the end.
func TestExamples(t *testing.T) {
	for _, e := range []struct{ interpreter, file, needs string }{
		{"sh", "leader.sh", "curl"},
		{"python3", "leader.py", "python3"},
		{"node", "leader.mjs", "node"},
		{"java", "Leader.java", "javac"}, // a JRE alone cannot run a source file
	} {
		t.Run(e.interpreter, func(t *testing.T) {
			t.Parallel()
			for _, program := range []string{e.interpreter, e.needs} {
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("%s is not on this machine", program)
				}
			}
			survives(t, []string{e.interpreter, e.file})
		})
	}
}

// survives runs an example, whose first endpoint is the leader at first, and kills the leader after some writes.
func survives(t *testing.T, argv []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, nodes := startCluster(ctx, t)
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.HTTP)
	}
	role := "example-" + argv[0]
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], role, fmt.Sprint(writes))...)
	cmd.Env = append(os.Environ(), "NORTHSTAR_ENDPOINTS="+strings.Join(endpoints, ","))
	output, killed := run(ctx, t, cmd, c)

	// A busy machine may have changed the leader by itself.
	if !slices.ContainsFunc(c.Nodes, func(n *proc.Node) bool {
		return strings.HasPrefix(output, fmt.Sprintf("leader %s at %s\n", n.ID, n.HTTP))
	}) {
		t.Errorf("the example does not begin with a node as leader:\n%s", output)
	}
	if !strings.HasSuffix(output, "resigned\n") {
		t.Errorf("the example did not resign:\n%s", output)
	}
	next, err := c.Leader(ctx)
	if err != nil || next == killed {
		t.Fatalf("leader %v, error %v", next, err)
	}
	for i := 1; i <= writes; i++ {
		value, err := proc.Get(ctx, fmt.Sprintf("http://%s/v1/kv/examples/%s/%d", next.HTTP, role, i))
		if err != nil || string(value) != fmt.Sprint(i) {
			t.Errorf("write %d has the value %q, error %v", i, value, err)
		}
	}
	response, err := http.Get("http://" + next.HTTP + "/v1/roles/" + role)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("the role's holder: status %d, want 404", response.StatusCode)
	}
}

// startCluster starts three nodes that serve both APIs, and returns them with the leader first.
func startCluster(ctx context.Context, t *testing.T) (*proc.Cluster, []*proc.Node) {
	t.Helper()
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	c, err := proc.EtcdAPI(bin, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.Logs())
	}
	nodes := []*proc.Node{leader}
	for _, n := range c.Nodes {
		if n != leader {
			nodes = append(nodes, n)
		}
	}
	return c, nodes
}

// run runs an example to its end and returns its output. It kills the leader when the example has written killAfter
// times, and returns it.
func run(ctx context.Context, t *testing.T, cmd *exec.Cmd, c *proc.Cluster) (output string, killed *proc.Node) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var written strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&written, lines.Text())
		if strings.HasPrefix(lines.Text(), fmt.Sprintf("write %d ", killAfter)) {
			if killed, err = c.Leader(ctx); err != nil {
				t.Fatal(err)
			}
			killed.Kill()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, written.String(), stderr.String())
	}
	if killed == nil {
		t.Fatalf("the example ended before the leader was killed:\n%s", written.String())
	}
	return written.String(), killed
}
