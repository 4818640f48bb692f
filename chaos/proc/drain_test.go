package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// endpoints returns the addresses of all nodes in the form that northstarctl expects.
func endpoints(c *Cluster) string { return strings.Join(httpAddrs(c), ",") }

// lifecycle waits until a node is in that lifecycle.
func lifecycle(t *testing.T, n *Node, want string) {
	t.Helper()
	eventually(t, soon, func() error {
		st, err := nodeStatus(t.Context(), n)
		if err == nil && st.Lifecycle != want {
			err = fmt.Errorf("%s says that it is %s, want %s", n.ID, st.Lifecycle, want)
		}
		return err
	})
}

// The leader is drained under writes, and undrained. When the command returns, another node leads, and the drained one
// is not ready but votes. A dry run, or an unknown node, changes nothing.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	old := acquainted(t, c)
	w := newWriters(c, 2)
	stop := w.meanwhile(t)
	at := []string{"--endpoints", endpoints(c)}

	if out := mustCtl(t, append(at, "drain", old.ID, "--dry-run")...); !strings.Contains(out, "transfers leadership") {
		t.Errorf("the dry run does not say that leadership moves:\n%s", out)
	}
	if st := mustStatus(t, old); st.Lifecycle != "active" {
		t.Fatalf("a dry run has drained %s: %+v", old.ID, st)
	}
	if out, code := ctl(t, append(at, "drain", "n9", "--wait")...); code != 6 {
		t.Errorf("drain of a node that is not there: exit code %d\n%s", code, out)
	}
	mustCtl(t, append(at, "drain", old.ID, "--wait", "--reason", "drill")...)
	lead := leader(t, c)
	if lead == old {
		t.Errorf("%s leads still", old.ID)
	}
	lifecycle(t, old, "draining")
	if a, err := do(t.Context(), old, http.MethodGet, "/readyz?verbose", nil); err != nil ||
		a.Status != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a drained node: %d %s %v", a.Status, a.Body, err)
	}
	if m := move(t, lead, "/admin/transfer", fmt.Sprintf(`{"target_leader_id":%q}`, old.ID)); m.Status != http.StatusConflict || m.Code != 4003 || !strings.Contains(m.Detail, "draining") {
		t.Errorf("a transfer to a drained node: %+v", m)
	}
	// It still votes: without it the other two have no majority after a failure.
	for _, n := range others(c, old, lead) {
		n.Kill()
	}
	mustPut(t, &Cluster{Nodes: []*Node{lead, old}}, "k", "with the drained node's vote")
	mustCtl(t, append(at, "undrain", old.ID)...)
	lifecycle(t, old, "active")
	for _, n := range others(c, old, lead) {
		if err := c.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	w.check(t)
}

// A drained voter is the only node with the newest log. It becomes leader, brings another node up to date and transfers
// leadership, so the cluster keeps a leader.
func TestDrainedVoterHasTheNewestLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	old := acquainted(t, c)
	rest := others(c, old)
	drained, behind := rest[0], rest[1]
	mustCtl(t, "--endpoints", endpoints(c), "drain", drained.ID, "--wait")
	caughtUp(t, c)
	behind.Kill()
	for i := range 40 {
		mustPut(t, c, "k", fmt.Sprint(i))
	}
	awaitApplied(t, &Cluster{Nodes: []*Node{old, drained}}, drained)
	old.Kill()
	if err := c.StartNode(behind); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		st, err := nodeStatus(t.Context(), behind)
		if err == nil && (st.State != "leader" || st.LeaderID != behind.ID) {
			err = fmt.Errorf("%s knows leader %q in term %d", behind.ID, st.LeaderID, st.Term)
		}
		return err
	})
	if got := string(mustGet(t, c, "k").Body); got != "39" {
		t.Errorf("k is %s after it", got)
	}
	lifecycle(t, drained, "draining")
}

// restarter restarts nodes for a script. Each connection sends the arguments of one ssh call as a line, and receives an
// exit code.
type restarter struct {
	t     *testing.T
	c     *Cluster
	wants string // the expected arguments after the node's ID

	mu   sync.Mutex
	done []string
}

func (r *restarter) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil {
			err = r.restart(strings.TrimSpace(line))
		}
		code := 0
		if err != nil {
			r.t.Error(err)
			code = 1
		}
		fmt.Fprintln(conn, code)
		conn.Close()
	}
}

// restart does what systemctl does with the unit file: SIGTERM, then start.
func (r *restarter) restart(line string) error {
	id, command, _ := strings.Cut(line, " ")
	if command != r.wants {
		return fmt.Errorf("ssh to %q was told %q", id, command)
	}
	for _, n := range r.c.Nodes {
		if n.ID != id {
			continue
		}
		if lead := r.c.agreed(r.t.Context()); lead == n {
			return fmt.Errorf("%s is to be restarted and leads", id)
		}
		if err := n.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if code := n.Wait(); code != 0 {
			return fmt.Errorf("%s: exit code %d on SIGTERM", id, code)
		}
		r.mu.Lock()
		r.done = append(r.done, id)
		r.mu.Unlock()
		return r.c.StartNode(n)
	}
	return errors.New("no node " + id)
}

// restartScript returns the rolling restart of the documentation.
func restartScript(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/maintenance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(block[1], "systemctl restart northstar") {
			return block[1]
		}
	}
	t.Fatal("docs/maintenance.md has no rolling restart")
	return ""
}

// executable writes a program into dir.
func executable(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// The documented rolling restart script runs under writes. Every node is restarted, none while it leads, and no
// acknowledged write is lost.
func TestRollingRestartScript(t *testing.T) {
	t.Parallel()
	for _, needs := range []string{"bash", "jq"} {
		if _, err := exec.LookPath(needs); err != nil {
			t.Skipf("the script needs %s", needs)
		}
	}
	tool, err := ctlBin()
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	acquainted(t, c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &restarter{t: t, c: c, wants: "sudo systemctl restart northstar"}
	var serving sync.WaitGroup
	serving.Go(func() { r.serve(l) })
	defer func() { l.Close(); serving.Wait() }()
	path := t.TempDir()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	executable(t, path, "ssh", "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/"+port+
		"\necho \"$*\" >&3\nread -r code <&3\nexit \"$code\"\n")
	if err := os.Symlink(tool, filepath.Join(path, "northstarctl")); err != nil {
		t.Fatal(err)
	}

	w := newWriters(c, 3)
	stop := w.meanwhile(t)
	script, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	cmd := exec.CommandContext(script, "bash", "-c", restartScript(t))
	cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), "NORTHSTAR_ENDPOINTS="+endpoints(c))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	stop()
	if err != nil {
		t.Fatalf("the script: %v\n%s", err, out)
	}
	if got := strings.Join(r.done, " "); got != "n1 n2 n3" {
		t.Errorf("restarted: %s\n%s", got, out)
	}
	t.Logf("%d writes in %v", w.total, took)
	if w.total == 0 {
		t.Error("nothing was written meanwhile")
	}
	w.check(t)
	for _, n := range c.Nodes {
		lifecycle(t, n, "active")
	}
}
