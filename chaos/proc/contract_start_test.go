package proc

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/ports"
)

// runNode runs northstar-node until it exits by itself.
func runNode(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	bin, err := nodeBin()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	timeout := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestContractExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "node.toml")
	if err := os.WriteFile(config,
		[]byte("id = \"n1\"\ndata-dir = \"x\"\npriority = 300\nfoo = 1\n[election]\nbar = 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	good := []string{"--id=n1", "--data-dir=" + filepath.Join(dir, "n1")}
	with := func(command string, more ...string) []string {
		return append(append([]string{command}, good...), more...)
	}
	for _, tc := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"version"}, 0, []string{"northstar-node", "raft"}},
		{[]string{"--help"}, 0, []string{"check-config"}},
		{nil, 2, nil},
		{[]string{"frobnicate"}, 2, []string{"frobnicate"}},
		{with("check-config"), 0, []string{"configuration OK"}},
		{[]string{"check-config", "--config", config}, 2, []string{
			"priority = 300", "line 3", "foo: unknown key",
			"line 4", "election.bar: unknown key", "line 6",
		}},
		{[]string{"check-config", "--id=n1"}, 2, []string{"data-dir: required"}},
		{with("run", "--election-timeout-max=200ms"), 2, []string{"election.timeout-max", "twice"}},
		{with("run", "--snapshot-trailing-logs=999"), 2, []string{"snapshot.trailing-logs", "1000"}},
		{with("run", "--http-addr=10.0.0.1:7701"), 2, []string{"http-addr", "not a loopback address"}},
		{with("run", "--http-advertise=0.0.0.0:7701"), 2, []string{"http-advertise", "0.0.0.0"}},
		{
			with("run", "--initial-cluster=n2=127.0.0.1:1@127.0.0.1:2"), 2,
			[]string{"initial-cluster", "does not name this node"},
		},
		{
			with("run", "--initial-cluster=n1=127.0.0.1:7700@127.0.0.1:7701,n1=127.0.0.1:3@127.0.0.1:4"), 2,
			[]string{"duplicate node ID"},
		},
		{
			with("run", "--raft-addr="+taken.Addr().String(), "--http-addr=127.0.0.1:0"), 1,
			[]string{"raft-addr", "in use"},
		},
		{with("run", "--raft-addr=127.0.0.1:0", "--http-addr=127.0.0.1:0"), 2, []string{"the data directory is empty"}},
	} {
		out, code := runNode(t, tc.args...)
		if code != tc.code {
			t.Errorf("%v: exit code %d, want %d: %s", tc.args, code, tc.code, out)
		}
		for _, s := range tc.says {
			if !strings.Contains(out, s) {
				t.Errorf("%v does not say %q: %s", tc.args, s, out)
			}
		}
	}
}

// slowPut begins a write and leaves its last byte to the caller.
func slowPut(t *testing.T, n *Node) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", n.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn,
		"PUT /v1/kv/slow?timeout_ms=30000 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\na"); err != nil {
		t.Fatal(err)
	}
	in := func() error {
		body, err := Get(t.Context(), "http://"+n.HTTP+"/metrics")
		// this connection, and the request that asks
		if err == nil && !strings.Contains(string(body), "northstar_http_in_flight 2\n") {
			err = fmt.Errorf("the request is not in flight")
		}
		return err
	}
	eventually(t, soon, in)
	return conn
}

// signalled sends a signal repeatedly until the node has ended. The kernel merges signals that are close together.
func signalled(n *Node, sig syscall.Signal) (code int) {
	ended := make(chan int)
	process := n.Cmd.Process
	go func() { ended <- n.Wait() }()
	for {
		_ = process.Signal(sig) // it may have ended
		select {
		case code := <-ended:
			return code
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// notices reads a service manager's socket until it is closed. The kernel queues only a few unread messages.
func notices(socket *net.UnixConn) (all []string) {
	for buf := make([]byte, 256); ; {
		n, err := socket.Read(buf)
		if err != nil {
			return all
		}
		all = append(all, string(buf[:n]))
	}
}

// TestContractSignals: SIGTERM lets requests in flight finish, a second one does not; the service manager is notified.
func TestContractSignals(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, 3, patient...)
	socket := filepath.Join(cl.Dir, "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	heard := make(chan []string, 1)
	go func() { heard <- notices(notify) }()
	cl.Nodes[0].Wrapper = []string{"env", "NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=300000"}
	start(t, cl)
	lead := steady(t, cl)
	c := newContract(t)
	term := mustStatus(t, lead).Term
	conn := slowPut(t, lead)
	if err := lead.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// Leadership has moved before the request in flight has ended.
	eventually(t, soon, func() error {
		for _, n := range cl.Nodes {
			if n == lead {
				continue
			}
			if h, err := c.try(n, "GET", "/leader", ""); err != nil || h.status != 200 ||
				h.fields()["leader_id"] == lead.ID {
				return fmt.Errorf("%s: %s %v", n.ID, h.body, err)
			}
		}
		return nil
	})
	if _, err := io.WriteString(conn, "b"); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("the request in flight: %v %v", resp, err)
	}
	if code := lead.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if now := mustStatus(t, leader(t, cl)).Term; now != term+1 {
		t.Errorf("term %d after %d: want one election, that of the transfer", now, term)
	}
	for _, n := range cl.Nodes {
		if n.Running() {
			slowPut(t, n)
			began := time.Now()
			if err := n.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			awaitLog(t, cl, n, "draining")
			if code := signalled(n, syscall.SIGTERM); code != 1 {
				t.Errorf("exit code %d after the second signal", code)
			}
			if took := time.Since(began); took < 100*time.Millisecond {
				t.Errorf("ended %v after the first signal: one that comes so soon is the first again", took)
			}
		}
	}
	_ = notify.Close()
	messages := <-heard
	if len(messages) < 3 || messages[0] != "READY=1" || !slices.Contains(messages, "WATCHDOG=1") ||
		!slices.Contains(messages, "STOPPING=1") {
		t.Errorf("the service manager got %q", messages)
	}
}

// A single node has no peer to transfer leadership to, and its stop does not wait for one.
func TestContractStopAlone(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, 1, "--drain-timeout", "1h")
	n := start(t, cl)
	if err := n.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := n.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGINT", code)
	}
}

// rejections returns how many connections and messages of peers a node has refused.
func rejections(t *testing.T, n *Node) (total int) {
	t.Helper()
	body, err := Get(t.Context(), "http://"+n.HTTP+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "northstar_rpc_rejected_total{"); ok {
			var n int
			if _, err := fmt.Sscan(value[strings.LastIndexByte(value, ' ')+1:], &n); err != nil {
				t.Fatal(line, err)
			}
			total += n
		}
	}
	return total
}

// TestContractFirstStart: late nodes, wiped disks, other clusters' data, joining and leaving.
func TestContractFirstStart(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, 3, calm...)
	third := cl.Nodes[2]
	for _, n := range cl.Nodes[:2] {
		if err := cl.StartNode(n); err != nil {
			t.Fatal(err)
		}
	}
	leader(t, cl)
	c := newContract(t)
	c.ask(cl.Nodes[0], "PUT", "/v1/kv/k", "v").is(200)
	if err := cl.StartNode(third); err != nil {
		t.Fatal(err)
	}
	lead := leader(t, cl)
	eventually(t, soon, func() error { return wantStatus(c, third, "GET", "/readyz", 200) })
	term := c.ask(lead, "GET", "/leader", "").is(200).fields()["term"]

	victim := cl.Nodes[0]
	if victim == lead {
		victim = cl.Nodes[1]
	}
	lifecycle := func(n *Node, want string) {
		t.Helper()
		eventually(t, soon, func() error {
			h, err := c.try(n, "GET", "/status", "")
			if err == nil && h.fields()["lifecycle"] != want {
				err = fmt.Errorf("%s is %v, want %s", n.ID, h.fields()["lifecycle"], want)
			}
			return err
		})
	}
	wipe := func() {
		victim.Kill()
		if err := os.RemoveAll(cl.DataDir(victim)); err != nil {
			t.Fatal(err)
		}
		_ = os.Truncate(filepath.Join(cl.Dir, victim.ID+".log"), 0)
	}
	wipe()
	if err := cl.StartNode(victim); err != nil {
		t.Fatal(err)
	}
	lifecycle(victim, "dead")
	c.ask(victim, "GET", "/livez", "").is(200)
	c.ask(victim, "GET", "/readyz", "").is(503)
	refused := func() (n int) {
		for _, other := range others(cl, victim) {
			n += rejections(t, other)
		}
		return n
	}
	before := refused()
	eventually(t, soon, func() error {
		if n := refused(); n < before+4 {
			return fmt.Errorf("it was refused %d times, then %d", before, n)
		}
		return nil
	})
	if n := strings.Count(cl.Log(victim), "refused by a peer"); n != 1 {
		t.Errorf("it says %d times that it is refused:\n%s", n, cl.Log(victim))
	}
	c.ask(lead, "PATCH", "/admin/members/"+victim.ID, `{"readmit":true,"reason":"new disk"}`, "Content-Type", jsonType).is(200)
	lifecycle(victim, "active")
	eventually(t, soon, func() error { return wantStatus(c, victim, "GET", "/v1/kv/k?consistency=stale", 200) })

	// A data directory of another cluster, made under the same name and address.
	victim.Kill()
	own := cl.DataDir(victim)
	if err := os.Rename(own, own+".kept"); err != nil {
		t.Fatal(err)
	}
	cl.Extra[victim.ID] = []string{"--initial-cluster", fmt.Sprintf("%s=%s@%s", victim.ID, victim.Raft, victim.HTTP)}
	if err := cl.StartNode(victim); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error { return wantStatus(c, victim, "GET", "/v1/kv/k", 404) })
	awaitLog(t, cl, victim, "cluster ID is durable")
	victim.Kill()
	delete(cl.Extra, victim.ID)
	if err := cl.StartNode(victim); err != nil {
		t.Fatal(err)
	}
	if code := victim.Wait(); code != 2 || !strings.Contains(cl.Log(victim), "set it back") {
		t.Errorf("with another cluster's data: exit code %d", code)
	}
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(own+".kept", own); err != nil {
		t.Fatal(err)
	}
	if err := cl.StartNode(victim); err != nil {
		t.Fatal(err)
	}
	lifecycle(victim, "active")
	if now := c.ask(lead, "GET", "/leader", "").is(200).fields()["term"]; now != term {
		t.Errorf("term %v, it was %v: somebody was disturbed", now, term)
	}
	contractJoin(c, cl, lead, lifecycle)
}

// contractJoin adds a fourth node and removes it.
func contractJoin(c *contract, cl *Cluster, lead *Node, lifecycle func(*Node, string)) {
	addrs, err := ports.Reserve(2)
	if err != nil {
		c.t.Fatal(err)
	}
	n := &Node{ID: "n4", Raft: addrs[0], HTTP: addrs[1]}
	all := cl.Nodes
	cl.Nodes = append(slices.Clone(all), n)
	// The last flag counts: it clears the list.
	cl.Extra["n4"] = []string{"--initial-cluster=", "--join", "127.0.0.1:1," + all[0].HTTP}
	if err := cl.StartNode(n); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, soon, func() error {
		h, err := c.try(n, "GET", "/status", "")
		if err == nil && h.fields()["suffrage"] != "voter" {
			err = fmt.Errorf("n4 is %v", h.fields()["suffrage"])
		}
		return err
	})
	lifecycle(n, "active")
	c.ask(n, "PUT", "/v1/kv/by-n4", "v").is(200)
	// Its data directory has a cluster now: it contacts no peer to join.
	if err := n.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	if code := n.Wait(); code != 0 {
		c.t.Errorf("n4: exit code %d after SIGTERM", code)
	}
	cl.Extra["n4"] = []string{"--initial-cluster=", "--join", "127.0.0.1:1"}
	if err := cl.StartNode(n); err != nil {
		c.t.Fatal(err)
	}
	lifecycle(n, "active")
	eventually(c.t, soon, func() error { return wantStatus(c, n, "GET", "/v1/kv/by-n4", 200) })
	c.ask(lead, "DELETE", "/admin/members/n4", "").is(200)
	lifecycle(n, "dead")
	c.ask(n, "GET", "/livez", "").is(200)
	if q := c.ask(lead, "GET", "/v1/cluster",
		"").is(200).fields()["counts"]; fmt.Sprint(q) != "map[active:3 dead:0 draining:0 joining:0 total:3]" {
		c.t.Errorf("after n4 left: %v", q)
	}
}
