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
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/chaos/proc"
)

var (
	binDir  string
	nodeBin = sync.OnceValues(func() (string, error) {
		bin := filepath.Join(binDir, "northstar-node")
		out, err := exec.Command("go", "build", "-o", bin, "northstar/cmd/northstar-node").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		return bin, nil
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
	for _, argv := range [][]string{
		{"sh", "leader.sh"},
		{"python3", "leader.py"},
		{"node", "leader.mjs"},
		{"java", "Leader.java"},
	} {
		t.Run(argv[0], func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skipf("%s is not on this machine", argv[0])
			}
			if argv[0] == "sh" {
				if _, err := exec.LookPath("curl"); err != nil {
					t.Skip("curl is not on this machine")
				}
			}
			survives(t, argv)
		})
	}
}

// survives runs an example, whose first endpoint is the leader, and kills the leader after some writes.
func survives(t *testing.T, argv []string) {
	t.Helper()
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	c, err := proc.NorthStar(bin, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	leader, err := c.Leader(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, c.Logs())
	}
	endpoints := []string{leader.HTTP}
	for _, n := range c.Nodes {
		if n != leader {
			endpoints = append(endpoints, n.HTTP)
		}
	}
	role := "example-" + argv[0]
	output := run(ctx, t, argv, role, endpoints, leader)

	if want := fmt.Sprintf("leader %s at %s\n", leader.ID, leader.HTTP); !strings.HasPrefix(output, want) {
		t.Errorf("the example does not begin with %q:\n%s", want, output)
	}
	if !strings.HasSuffix(output, "resigned\n") {
		t.Errorf("the example did not resign:\n%s", output)
	}
	next, err := c.Leader(ctx)
	if err != nil || next == leader {
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

// run runs an example to its end and returns its output. It kills the leader when the example has written killAfter
// times.
func run(ctx context.Context, t *testing.T, argv []string, role string, endpoints []string, leader *proc.Node) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], role, fmt.Sprint(writes))...)
	cmd.Env = append(os.Environ(), "NORTHSTAR_ENDPOINTS="+strings.Join(endpoints, ","))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&output, lines.Text())
		if strings.HasPrefix(lines.Text(), fmt.Sprintf("write %d ", killAfter)) {
			leader.Kill()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v\n%s%s", argv, err, output.String(), stderr.String())
	}
	if leader.Running() {
		t.Fatalf("the example ended before the leader was killed:\n%s", output.String())
	}
	return output.String()
}
