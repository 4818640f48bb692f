package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"northstar/chaos/ports"
	"northstar/chaos/testenv"
	"northstar/cluster"
)

// The tests of this package wait much and compute little: more of them run in parallel than the machine has processors.
func TestMain(m *testing.M) {
	testenv.Parallel(8)
	testenv.InMemory(maxTestData)
	// After a body that it has not read, net/http keeps the connection for 500 ms. goleak waits for 431 ms.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// maxTestData bounds the bytes in the data directories of the nodes that run at one time.
const maxTestData = 2 << 30

// freeAddresses returns addresses that stay free for the test's own listeners.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	addrs, err := ports.Reserve(n)
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

// notices collects what a node tells its service manager.
type notices struct {
	mu  sync.Mutex
	all []string
}

func (n *notices) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, s)
}

func (n *notices) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// testNode is a node of a test, which runs from start to stop.
type testNode struct {
	*Node
	t       *testing.T
	cfg     Config
	env     Env
	notices *notices
	log     *lockedBuffer
	cancel  context.CancelFunc
	ended   chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func prepare(t *testing.T, id cluster.NodeID, change func(*Config)) *testNode {
	t.Helper()
	n := &testNode{t: t, cfg: Default(), notices: &notices{}, log: &lockedBuffer{}}
	n.cfg.ID, n.cfg.DataDir, n.cfg.Disk.Reserve = id, filepath.Join(t.TempDir(), string(id)), 1<<20
	n.cfg.RaftAddr, n.cfg.HTTPAddr = "127.0.0.1:0", "127.0.0.1:0"
	// No needless elections on a busy machine; but a call without a limit of its own ends after 10 s.
	n.cfg.Election.TimeoutMin = min(testenv.Slowdown()*slowdown, 3) * time.Second
	n.cfg.Election.TimeoutMax = 2 * n.cfg.Election.TimeoutMin
	if change != nil {
		change(&n.cfg)
	}
	n.env = Env{
		Notify: n.notices.add, WatchdogInterval: 20 * time.Millisecond,
		Logger: hclog.New(&hclog.LoggerOptions{Output: n.log, Level: hclog.Debug}),
	}
	return n
}

// calm makes election timeouts so long that only the test moves leadership, also on a busy machine. startAll does not
// wait for them.
func calm(_ int, c *Config) {
	c.Election.TimeoutMin, c.Election.TimeoutMax = 5*c.Election.TimeoutMin, 5*c.Election.TimeoutMax
	c.Failover.Hold = time.Minute
	c.Failover.Silence = Silence(c.Election.TimeoutMin)
}

// newCluster prepares nodes that know each other; nothing runs yet.
func newCluster(t *testing.T, size int, change func(i int, c *Config)) []*testNode {
	t.Helper()
	addrs := freeAddresses(t, 2*size)
	var members InitialCluster
	for i := range size {
		members = append(members, InitialMember{
			ID: cluster.NodeID(fmt.Sprintf("n%d", i+1)), RaftAddress: addrs[2*i],
			HTTPAddress: addrs[2*i+1],
		})
	}
	var all []*testNode
	for i, m := range members {
		all = append(all, prepare(t, m.ID, func(c *Config) {
			c.RaftAddr, c.HTTPAddr, c.InitialCluster = m.RaftAddress, m.HTTPAddress, members
			if change != nil {
				change(i, c)
			}
		}))
	}
	return all
}

func (n *testNode) start() {
	n.t.Helper()
	eventually(n.t, "the ports are free", func() bool { // the run before may be giving them back
		var err error
		n.Node, err = New(n.cfg, n.env)
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			n.t.Fatal(err)
		}
		return err == nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan error, 1)
	node, ended := n.Node, n.ended
	go func() { ended <- node.Run(ctx) }()
	n.t.Cleanup(func() {
		if n.ended == ended {
			n.stop()
		}
		if n.t.Failed() {
			log := n.log.String()
			n.t.Logf("log of %s:\n%s", n.cfg.ID, log[max(0, len(log)-5000):])
		}
	})
}

// mayVote reports whether the node may grant votes.
func (n *testNode) mayVote() bool {
	kind, _ := n.Consensus().VoteObstacle()
	return kind == ""
}

// startAll starts nodes and has the first one start an election immediately, and not after an election timeout. It
// returns the leader that they elect.
func startAll(t *testing.T, nodes []*testNode) *testNode {
	t.Helper()
	for _, n := range nodes {
		n.start()
	}
	led := func(n *testNode) bool { return n.Consensus().Status().LeaderID != "" }
	eventually(t, "all take part in elections", func() bool {
		return slices.ContainsFunc(nodes, led) || !slices.ContainsFunc(nodes, func(n *testNode) bool {
			return len(n.Consensus().Status().Servers) == 0 || !n.mayVote()
		})
	})
	if first := nodes[0]; !slices.ContainsFunc(nodes, led) { // otherwise, or if it fails, a timer starts one
		_, _ = first.transport.Raft().StartElection(t.Context(), first.Consensus().Status().Term, cluster.CauseOperator)
	}
	return leader(t, nodes)
}

// stop ends Run without draining.
func (n *testNode) stop() {
	n.t.Helper()
	n.cancel()
	select {
	case err := <-n.ended:
		if err != nil {
			n.t.Errorf("%s: Run: %v", n.cfg.ID, err)
		}
	case <-time.After(soon):
		n.t.Errorf("%s: Run does not end", n.cfg.ID)
	}
	n.ended = nil
}

// soon is when something must have happened even on a machine that is very busy.
var soon = testenv.Slowdown() * slowdown * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", soon, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// leader waits until all nodes see the same one lead.
func leader(t *testing.T, nodes []*testNode) *testNode {
	t.Helper()
	var found *testNode
	eventually(t, "all nodes see one leader", func() bool {
		id := nodes[0].Consensus().Status().LeaderID
		for _, n := range nodes {
			if st := n.Consensus().Status(); st.LeaderID != id || (st.NodeID == id && st.LeaderSince.IsZero()) {
				return false
			}
			if n.cfg.ID == id {
				found = n
			}
		}
		return id != "" && found != nil
	})
	return found
}

func request(c *http.Client, method, url, body string) (int, string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func want(t *testing.T, c *http.Client, method, url, body string, status int, answer string) {
	t.Helper()
	var got int
	var text string
	var err error
	eventually(t, method+" "+url+" is answered", func() bool {
		got, text, err = request(c, method, url, body)
		// On a busy machine leadership may move. As any client, this one repeats what may be repeated, as a put may.
		repeat := strings.Contains(text, `"retryable":true`) ||
			method == http.MethodPut && strings.Contains(text, "ERR_OUTCOME_UNKNOWN")
		return err != nil || got == status || !repeat
	})
	if err != nil || got != status || !strings.Contains(text, answer) {
		t.Errorf("%s %s: %d %q, %v; want %d %q", method, url, got, text, err, status, answer)
	}
}

// plain is a client that leaves no connections behind.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: soon}
