package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/ports"
)

// report is the detector's response, reduced to what these tests use.
type report struct {
	Verdict  string `json:"verdict"`
	Refusing bool   `json:"refusing"`
	Findings []struct {
		Verdict string   `json:"verdict"`
		Detail  string   `json:"detail"`
		Nodes   []string `json:"nodes"`
	} `json:"findings"`
	Claims []struct {
		NodeID, Source string
	} `json:"claims"`
	CheckedAt time.Time `json:"checked_at"`
}

func checkSplitBrain(t *testing.T, n *Node) (r report, err error) {
	a, err := do(t.Context(), n, http.MethodPost, "/admin/splitbrain/check", nil)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", n.ID, a.Status, a.Body)
	}
	if err == nil {
		err = json.Unmarshal(a.Body, &r)
	}
	return r, err
}

// verdict waits until a node's detector has that verdict, and refuses service or not.
func verdict(t *testing.T, n *Node, want string, refusing bool) (r report) {
	t.Helper()
	eventually(t, soon, func() (err error) {
		if r, err = checkSplitBrain(t, n); err == nil && (r.Verdict != want || r.Refusing != refusing) {
			err = fmt.Errorf("%s says %s, refusing %v, want %s, %v: %+v", n.ID, r.Verdict, r.Refusing, want, refusing,
				r.Findings)
		}
		return err
	})
	return r
}

// refuses checks that a node serves nothing that needs a leader, and names the reason.
func refuses(t *testing.T, n *Node) {
	t.Helper()
	for _, call := range []struct{ method, path string }{
		{http.MethodPut, "/v1/kv/refused"},
		{http.MethodGet, "/v1/kv/k"},
	} {
		a, err := do(t.Context(), n, call.method, call.path, []byte("x"))
		if err != nil || a.Status != http.StatusConflict || a.Code != 4004 {
			t.Errorf("%s %s at %s: %d %s %v", call.method, call.path, n.ID, a.Status, a.Body, err)
		}
	}
	a, err := do(t.Context(), n, http.MethodGet, "/readyz", nil)
	if err != nil || a.Status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.Body), "[-]no_split_brain") {
		t.Errorf("readyz of %s: %d %s %v", n.ID, a.Status, a.Body, err)
	}
}

// detected returns the node's metric.
func detected(t *testing.T, n *Node) (count int) {
	t.Helper()
	body, err := Get(t.Context(), "http://"+n.HTTP+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if _, err := fmt.Sscanf(line, "northstar_split_brain_detected %d", &count); err == nil {
			return count
		}
	}
	t.Fatalf("%s has no such metric", n.ID)
	return 0
}

// alarmed reports whether a node's event log has a critical event with that verdict.
func alarmed(t *testing.T, n *Node, verdict string) bool {
	t.Helper()
	a, err := do(t.Context(), n, http.MethodGet, "/v1/events?type=splitbrain", nil, "X-Northstar-Forwarded-By", "test")
	return err == nil && strings.Contains(string(a.Body), `"severity":"critical"`) && strings.Contains(string(a.Body), `"verdict":"`+verdict+`"`)
}

// TestDetectorWatches: the detector of a healthy cluster, with a node killed, and with the leader stopped and resumed.
func TestDetectorWatches(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	first := start(t, c)
	for _, n := range c.Nodes {
		if r := verdict(t, n, "ok", false); len(r.Claims) != 5 || len(r.Findings) != 0 || r.CheckedAt.IsZero() {
			t.Errorf("%s: %+v", n.ID, r)
		}
		if got := detected(t, n); got != 0 {
			t.Errorf("%s has detected %d", n.ID, got)
		}
	}
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	second := electedWithout(t, c, first)
	verdict(t, second, "unreachable", false)
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		verdict(t, n, "ok", false)
	}
	second.Kill()
	for _, n := range c.Nodes {
		if n != second {
			verdict(t, n, "unreachable", false)
		}
	}
	mustPut(t, c, "k", "v")
}

// A second cluster with the same IDs, addresses and name is created while one node of the first is down. When that node
// returns, it serves no requests, and the larger part continues.
func TestSecondCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	start(t, c)
	mustPut(t, c, "k", "of the first cluster")
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	var firstID string
	eventually(t, soon, func() error {
		if firstID = mustStatus(t, n1).ClusterID; firstID == "" {
			return errors.New("n1 has not adopted the cluster's ID yet")
		}
		return nil
	})
	c.KillAll()
	for _, n := range []*Node{n2, n3} {
		if err := os.RemoveAll(c.DataDir(n)); err != nil {
			t.Fatal(err)
		}
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	leader(t, c)
	mustPut(t, c, "k", "of the second cluster")
	if err := c.StartNode(n1); err != nil {
		t.Fatal(err)
	}
	verdict(t, n1, "foreign_cluster", true)
	refuses(t, n1)
	for _, n := range []*Node{n2, n3} {
		r := verdict(t, n, "foreign_cluster", false)
		if !strings.Contains(r.Findings[0].Detail, firstID) || strings.Join(r.Findings[0].Nodes, ",") != "n1" {
			t.Errorf("%s: %+v", n.ID, r.Findings)
		}
		if a, err := put(t.Context(), n, "k2", "v"); err != nil || a.Status != http.StatusOK {
			t.Errorf("write at %s: %d %s %v", n.ID, a.Status, a.Body, err)
		}
	}
	for _, n := range c.Nodes {
		if detected(t, n) == 0 || !alarmed(t, n, "foreign_cluster") {
			t.Errorf("%s has not raised the alarm", n.ID)
		}
	}
	n1.Kill()
	for _, n := range []*Node{n2, n3} {
		verdict(t, n, "unreachable", false)
	}
}

// A node's data directory is copied, and the copy is started elsewhere. Neither node serves or leads, and the others
// continue.
func TestCopiedDataDirectory(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"follower", "leader"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			victim := start(t, c)
			mustPut(t, c, "k", "v")
			if of == "follower" {
				for _, n := range c.Nodes {
					if n != victim {
						victim = n
						break
					}
				}
			}
			twin := startTwin(t, c, victim)
			others := 0
			for _, n := range []*Node{victim, twin} {
				r := verdict(t, n, "split_brain", true)
				if strings.Join(r.Findings[0].Nodes, ",") != victim.ID {
					t.Errorf("%s: %+v", n.HTTP, r.Findings)
				}
				refuses(t, n)
				if !alarmed(t, n, "split_brain") {
					t.Errorf("%s has not raised the alarm", n.HTTP)
				}
			}
			for _, n := range c.Nodes {
				if n == victim {
					continue
				}
				others++
				verdict(t, n, "split_brain", false)
				eventually(t, soon, func() error {
					a, err := put(t.Context(), n, "k2", "v")
					if err == nil && a.Status != http.StatusOK {
						err = fmt.Errorf("write at %s: %d %s", n.ID, a.Status, a.Body)
					}
					return err
				})
			}
			if others != 2 {
				t.Errorf("%d others", others)
			}
			twin.Kill()
			for _, n := range c.Nodes {
				verdict(t, n, "ok", false)
			}
			if a, err := put(t.Context(), victim, "k3", "v"); err != nil || a.Status != http.StatusOK {
				t.Errorf("write at %s when its twin has gone: %d %s %v", victim.ID, a.Status, a.Body, err)
			}
		})
	}
}

// startTwin copies the data directory of a node and starts the copy at other addresses. The copy is made while the node
// is down, so that it is consistent; the twin starts after the node has restarted.
func startTwin(t *testing.T, c *Cluster, of *Node) *Node {
	t.Helper()
	dir := filepath.Join(c.Dir, "twin")
	if err := of.Pause(); err != nil {
		t.Fatal(err)
	}
	err := copyDir(c.DataDir(of), dir)
	if err2 := of.Signal(syscall.SIGCONT); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	leader(t, c)
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	twin := &Node{ID: of.ID, Raft: addrs[0], HTTP: addrs[1]}
	twin.log, err = os.Create(filepath.Join(c.Dir, "twin.log"))
	if err != nil {
		t.Fatal(err)
	}
	twin.Cmd = exec.Command(bin, "run", "--id", of.ID, "--data-dir", dir, "--raft-addr", twin.Raft, "--http-addr",
		twin.HTTP)
	twin.Cmd.Stdout, twin.Cmd.Stderr = twin.log, twin.log
	if err := startTied(twin.Cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		twin.Kill()
		if t.Failed() {
			data, _ := os.ReadFile(filepath.Join(c.Dir, "twin.log"))
			t.Logf("--- the twin\n%s", data)
		}
	})
	return twin
}

// copyDir copies the files of a data directory except for its lock.
func copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case rel == "lock", rel == "reserve":
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	})
}

// A false response at a member's HTTP address does not affect a leader that a majority follows: it keeps leading in its
// term.
func TestLyingLeaderAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, calm...)
	first := start(t, c)
	mustPut(t, c, "k", "v")
	before := mustStatus(t, first)
	var liar *Node
	for _, n := range c.Nodes {
		if n != first {
			liar = n
		}
	}
	liar.Kill()
	claims := func(term uint64) string {
		return fmt.Sprintf(`{"leader_id":%q,"leader_address":"x:1","raft_address":"x:2","term":%d,"observed_by":%q}`, liar.ID, term, liar.ID)
	}
	lies := []struct{ cluster, generation, body string }{
		{before.ClusterID, "1", claims(999)},
		{before.ClusterID, "1", claims(before.Term)},
		{"another", "1", claims(7)},
		{before.ClusterID, "99", claims(7)},
		{"", "", `{"leader_id":`},
		{"", "1", `<html>`},
		{"", "", strings.Repeat("x", 1<<20)},
		{},
	}
	var turn atomic.Int64
	l, err := net.Listen("tcp", liar.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/leader" {
			http.NotFound(w, r)
			return
		}
		lie := lies[turn.Add(1)%int64(len(lies))]
		w.Header().Set("X-Northstar-Cluster", lie.cluster)
		w.Header().Set("X-Northstar-Generation", lie.generation)
		fmt.Fprint(w, lie.body)
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	for n := range int64(2 * len(lies)) {
		eventually(t, soon, func() error {
			if turn.Load() <= n {
				return errors.New("no node asks the liar")
			}
			return nil
		})
		r, err := checkSplitBrain(t, first)
		if err != nil || r.Refusing {
			t.Errorf("after lie %d: %+v %v", n, r, err)
		}
		if a, err := put(t.Context(), first, "k", fmt.Sprint(n)); err != nil || a.Status != http.StatusOK {
			t.Errorf("write after lie %d: %d %s %v", n, a.Status, a.Body, err)
		}
	}
	_ = s.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if after := mustStatus(t, first); after.Term != before.Term || after.State != "leader" {
		t.Errorf("%s in term %d, it was the leader of term %d", after.State, after.Term, before.Term)
	}
}
