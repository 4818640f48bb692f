package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/mutants"
	"northstar/chaos/overlay"
	"northstar/chaos/ports"
	"northstar/chaos/testenv"
)

var (
	binDir  string
	nodeBin = sync.OnceValues(func() (string, error) {
		flags, err := planted(os.Getenv("NORTHSTAR_CHAOS_MUTANT"))
		switch {
		case err != nil:
			return "", err
		case flags != nil:
			return Build(binDir, "northstar/cmd/northstar-node", flags...)
		}
		return Program(binDir, "northstar-node")
	})
	// nextBin is a node that applies, and proposes when possible, one command version more.
	nextBin = sync.OnceValues(func() (string, error) {
		return Build(binDir, "northstar/chaos/proc/nextnode", "-tags", "northstar_next")
	})
)

func TestMain(m *testing.M) {
	if code, is := asCandidate(); is {
		os.Exit(code)
	}
	flag.Parse()
	if err := shareMachine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "northstar-proc-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// shareMachine lets two parallel tests run for each processor, unless -parallel is set: they mostly wait.
func shareMachine() error {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if set {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
}

// planted returns the flags that build a program with a mutant of chaos/mutants; "" means no mutant.
func planted(name string) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	m, err := mutants.Find(name)
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	file, err := overlay.Write(binDir, m.Edits(root))
	return []string{"-overlay", file}, err
}

// calm holds the flags of clusters in which no election may happen. With the default timeouts an overloaded machine
// causes elections, and rightly so. A test process there may also need seconds between two steps of a test.
// A measured silence would be far below the timeout.
var calm = func() []string {
	limit := testenv.Slowdown() * 3 * time.Second
	return []string{
		"--election-timeout-min", limit.String(), "--election-timeout-max", (2 * limit).String(),
		"--failover-silence", limit.String(),
	}
}()

// newCluster prepares a cluster that ends with the test. A failed test prints the nodes' last log lines.
func newCluster(t *testing.T, size int, extra ...string) *Cluster {
	t.Helper()
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	c, err := NorthStar(bin, size, append([]string{"--log-level", "info"}, extra...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		c.Close()
	})
	return c
}

func start(t *testing.T, c *Cluster) *Node {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return leader(t, c)
}

func leader(t *testing.T, c *Cluster) *Node {
	t.Helper()
	n, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ofOneCluster waits until every node has the same cluster ID.
func ofOneCluster(t *testing.T, c *Cluster) {
	t.Helper()
	ids := map[string]bool{}
	eventually(t, soon, func() error {
		clear(ids)
		for _, n := range c.Nodes {
			s, err := nodeStatus(t.Context(), n)
			if err != nil {
				return err
			}
			ids[s.ClusterID] = true
		}
		if len(ids) != 1 || ids[""] {
			return fmt.Errorf("cluster IDs %v", ids)
		}
		return nil
	})
}

// soon is the timeout for any condition, even on a busy machine; benchmarks measure speed.
var soon = testenv.Slowdown() * 30 * time.Second

// eventually polls until ok returns nil, and fails the test with its last error otherwise.
func eventually(t *testing.T, within time.Duration, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", within, err)
		}
		pause(10 * time.Millisecond)
	}
}

// awaitLog waits until a node has logged a text.
func awaitLog(t *testing.T, c *Cluster, n *Node, text string) {
	t.Helper()
	awaitLogFrom(t, c, n, 0, text)
}

// awaitLogFrom waits until a node has logged a text after so many bytes of its log.
func awaitLogFrom(t *testing.T, c *Cluster, n *Node, from int, text string) {
	t.Helper()
	eventually(t, soon, func() error {
		if !strings.Contains(c.Log(n)[from:], text) {
			return fmt.Errorf("%s has not logged %q", n.ID, text)
		}
		return nil
	})
}

// pause waits a little between two polls of another process.
func pause(d time.Duration) { <-time.After(d) }

var testClient = &http.Client{
	// A node closes a connection without a request after 10 s. The client must close it first: a busy test process
	// would send a request on it before it reads of the end, and the request would have no answer.
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second},
}

// answer is one HTTP response, reduced to what these tests use.
type answer struct {
	Status   int
	Body     []byte
	Revision uint64
	Code     int    // of a problem
	Leader   string // HTTP address of the node that answered; "": the one that was asked
}

func do(ctx context.Context, n *Node, method, path string, body []byte, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := testClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{Status: resp.StatusCode, Leader: resp.Header.Get(apiv1.HeaderLeader)}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		return a, err
	}
	if rev := resp.Header.Get("X-Northstar-Revision"); rev != "" {
		if a.Revision, err = strconv.ParseUint(rev, 10, 64); err != nil {
			return a, err
		}
	}
	if method == http.MethodPut || resp.StatusCode >= 400 {
		var fields struct {
			Revision uint64 `json:"revision"`
			Code     int    `json:"code"`
		}
		_ = json.Unmarshal(a.Body, &fields)
		if fields.Revision != 0 {
			a.Revision = fields.Revision
		}
		a.Code = fields.Code
	}
	return a, nil
}

func put(ctx context.Context, n *Node, key, value string) (answer, error) {
	return do(ctx, n, http.MethodPut, "/v1/kv/"+key, []byte(value))
}

// mustPut writes through any running node.
func mustPut(t *testing.T, c *Cluster, key, value string) answer {
	t.Helper()
	var a answer
	eventually(t, soon, func() error {
		last := errors.New("no node runs")
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			got, err := put(ctx, n, key, value)
			cancel()
			if err == nil && got.Status == http.StatusOK {
				a = got
				return nil
			}
			last = fmt.Errorf("write of %s at %s: %d %s %v", key, n.ID, got.Status, got.Body, err)
		}
		return last
	})
	return a
}

// mustGet reads a key linearizably through any running node.
func mustGet(t *testing.T, c *Cluster, key string) answer {
	t.Helper()
	var a answer
	eventually(t, soon, func() error {
		last := errors.New("no node runs")
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			got, err := do(ctx, n, http.MethodGet, "/v1/kv/"+key, nil)
			cancel()
			if err == nil && (got.Status == http.StatusOK || got.Status == http.StatusNotFound) {
				a = got
				return nil
			}
			last = fmt.Errorf("read of %s at %s: %d %s %v", key, n.ID, got.Status, got.Body, err)
		}
		return last
	})
	return a
}

type status struct {
	Term         uint64 `json:"term"`
	State        string `json:"state"`
	LeaderID     string `json:"leader_id"`
	ClusterID    string `json:"cluster_id"`
	Lifecycle    string `json:"lifecycle"`
	AppliedIndex uint64 `json:"applied_index"`
	LastLogIndex uint64 `json:"last_log_index"`
	Suffrage     string `json:"suffrage"`
}

func nodeStatus(ctx context.Context, n *Node) (status, error) {
	return statusAt(ctx, "http://"+n.HTTP)
}

func statusAt(ctx context.Context, url string) (status, error) {
	var s status
	body, err := Get(ctx, url+"/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(body, &s)
}

func mustStatus(t *testing.T, n *Node) status {
	t.Helper()
	var s status
	eventually(t, soon, func() (err error) {
		s, err = nodeStatus(t.Context(), n)
		return err
	})
	return s
}

// The ports of a stopped node are not given to another cluster.
func TestPortsAreGivenOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 40 {
		addrs, err := ports.Reserve(6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if seen[a] {
				t.Errorf("%s twice", a)
			}
			seen[a] = true
		}
	}
}
