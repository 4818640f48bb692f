package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// twoTimeouts is 2 × election.timeout-max of the default configuration: the longest time that a request is queued for a
// leader.
const twoTimeouts = 600 * time.Millisecond

// event is one server-sent event of a watch.
type event struct {
	name, id, data string
}

// watch follows GET /v1/watch until the stream or the test ends.
func (c *contract) watch(n *Node, query string, headers ...string) <-chan event {
	c.t.Helper()
	var resp *http.Response
	eventually(c.t, soon, func() error {
		req, err := http.NewRequestWithContext(c.t.Context(), "GET", "http://"+n.HTTP+"/v1/watch?"+query, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		if resp, err = (&http.Client{}).Do(req); err != nil {
			c.t.Fatal(err)
		}
		if resp.StatusCode == 200 {
			return nil
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 503 { // 503: this node has just started, and has not applied its log yet
			c.t.Fatalf("watch %s at %s: %s %s", query, n.ID, resp.Status, body)
		}
		return errors.New(string(body))
	})
	events := make(chan event, 1<<16)
	go func() {
		defer close(events)
		defer resp.Body.Close()
		var e event
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				if e.name != "" {
					events <- e
				}
				e = event{}
			}
		}
	}()
	return events
}

// next returns the next events.
func next(t *testing.T, events <-chan event, n int) []event {
	t.Helper()
	var got []event
	timeout := time.After(soon)
	for len(got) < n {
		select {
		case e, open := <-events:
			if !open {
				t.Fatalf("the watch has ended after %v", got)
			}
			got = append(got, e)
		case <-timeout:
			t.Fatalf("only %d of %d events: %v", len(got), n, got)
		}
	}
	return got
}

// load writes and reads at the nodes until stop is called. stop returns the acknowledged revisions; more waits for a
// few more. Any error fails the test.
func (c *contract) load(prefix string, nodes ...*Node) (more func(), stop func() []uint64) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		revs []uint64
		most time.Duration
	)
	done := make(chan struct{})
	report := func(h heard, err error) {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, h.took)
		switch {
		case err != nil:
			c.t.Error(err)
		case h.status != 200:
			c.t.Errorf("%s: %d %s", h.what, h.status, h.body)
		case strings.HasPrefix(h.what, "PUT"):
			revs = append(revs, h.revision())
		}
	}
	for i, n := range nodes {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("/v1/kv/%s%d-%d", prefix, i, k)
				report(c.try(n, "PUT", key, "v", "Idempotency-Key", key))
				report(c.try(n, "GET", key, ""))
			}
		})
	}
	acknowledged := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(revs)
	}
	more = func() {
		c.t.Helper()
		before := acknowledged()
		eventually(c.t, soon, func() error {
			if n := acknowledged(); n < before+20 {
				return fmt.Errorf("%d writes were acknowledged, then %d", before, n)
			}
			return nil
		})
	}
	return more, func() []uint64 {
		close(done)
		wg.Wait()
		c.t.Logf("%d writes, the longest answer took %v", len(revs), most)
		slices.Sort(revs)
		return revs
	}
}

// TestContractFailover: a failover and a graceful stop cause pauses and no errors. A watch misses nothing and repeats
// nothing.
func TestContractFailover(t *testing.T) {
	t.Parallel()
	cl, lead, _ := contractCluster(t, 3, patient...) // requests are queued for longer than a busy machine's failover
	c := newContract(t)
	others := slices.DeleteFunc(slices.Clone(cl.Nodes), func(n *Node) bool { return n == lead })
	since := c.ask(lead, "PUT", "/v1/kv/first", "1").is(200).revision()
	events := c.watch(others[0], fmt.Sprintf("prefix=kill&since=%d", since))

	more, stop := c.load("kill", others...)
	more()
	lead.Kill()
	leader(t, cl)
	more()
	revs := stop()
	for i, e := range next(t, events, len(revs)) {
		if e.id != fmt.Sprint(revs[i]) || e.name != "put" {
			t.Fatalf("event %d is %v, want revision %d", i, e, revs[i])
		}
	}

	if err := cl.StartNode(lead); err != nil {
		t.Fatal(err)
	}
	second := leader(t, cl)
	others = slices.DeleteFunc(slices.Clone(cl.Nodes), func(n *Node) bool { return n == second })
	ending := c.watch(second, "prefix=never")
	more, stop = c.load("drain", others...)
	more()
	if err := second.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := next(t, ending, 1); e[0].name != "moving" {
		t.Errorf("a watch at the draining node ends with %v", e)
	}
	if code := second.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	more()
	stop()
	leader(t, cl)

	// The same revisions from a history that was rebuilt at a restart.
	cl.KillAll()
	lead = start(t, cl)
	for _, n := range cl.Nodes {
		from := c.watch(n, "prefix=kill", "Last-Event-ID", fmt.Sprint(revs[1]))
		if e := next(t, from, 1); e[0].id != fmt.Sprint(revs[2]) {
			t.Errorf("%s resumes with %v, want revision %d", n.ID, e, revs[2])
		}
	}
	contractRestore(c, cl, lead, revs[0])
}

func contractRestore(c *contract, cl *Cluster, lead *Node, old uint64) {
	backup := c.ask(lead, "GET", "/admin/snapshot", "").is(200).body
	before := c.ask(lead, "PUT", "/v1/kv/after-the-backup", "1").is(200).revision()
	watching := c.watch(cl.Nodes[0], "prefix=none")
	binary := []string{"Content-Type", "application/octet-stream"}
	for _, n := range cl.Nodes {
		flipped := slices.Clone(backup)
		flipped[len(flipped)/2] ^= 1
		for _, bad := range [][]byte{nil, backup[:len(backup)-3], append(slices.Clone(backup), 'x'), flipped} {
			c.ask(n, "POST", "/admin/snapshot/restore", string(bad), binary...).is(400, 4400)
		}
	}
	c.ask(lead, "GET", "/v1/kv/after-the-backup", "").is(200)
	c.ask(cl.Nodes[1], "POST", "/admin/snapshot/restore", string(backup), binary...).is(200)
	e := next(c.t, watching, 1)[0]
	var p struct{ Status, Code int }
	if err := json.Unmarshal([]byte(e.data), &p); err != nil || e.name != "error" || p.Status != 410 || p.Code != 4015 {
		c.t.Errorf("a restore ends a watch with %v", e)
	}
	c.ask(lead, "GET", fmt.Sprintf("/v1/watch?since=%d", old), "").is(410, 4015)
	c.ask(lead, "GET", "/v1/kv/after-the-backup", "").is(404, 4404)
	if after := c.ask(lead, "PUT", "/v1/kv/x", "1").is(200).revision(); after <= before {
		c.t.Errorf("revision %d after the restore, %d before", after, before)
	}
}

// TestContractNoLeader: the responses of one node of three when the others are down.
func TestContractNoLeader(t *testing.T) {
	t.Parallel()
	cl, lead, _ := contractCluster(t, 3)
	c := newContract(t)
	c.ask(lead, "PUT", "/v1/kv/k", "v").is(200)
	for _, n := range cl.Nodes {
		if n != lead {
			n.Kill()
		}
	}
	eventually(t, soon, func() error { return wantStatus(c, lead, "GET", "/leader", 503) })
	for _, path := range []string{"/leader", "/health/leader", "/health/follower", "/readyz", "/readyz?verbose"} {
		c.ask(lead, "GET", path, "").is(503, 4002)
	}
	c.ask(lead, "HEAD", "/health/leader", "").is(503)
	c.ask(lead, "OPTIONS", "/health/leader", "").is(503)
	c.ask(lead, "GET", "/livez", "").is(200)
	for _, request := range []string{
		"PUT /v1/kv/k", "GET /v1/kv/k", "GET /v1/kv", "GET /v1/kv/k?consistency=lease",
		"GET /v1/kv/k?redirect",
	} {
		method, path, _ := strings.Cut(request, " ")
		h := c.ask(lead, method, path, "").is(503, 4002)
		if h.took < twoTimeouts-50*time.Millisecond || h.took > twoTimeouts+testenv.Slowdown()*2*time.Second {
			t.Errorf("%s was held for %v", h.what, h.took)
		}
	}
	if h := c.ask(lead, "PUT", "/v1/kv/k?timeout_ms=50", "v").is(503, 4002); h.took > testenv.Slowdown()*twoTimeouts {
		t.Errorf("%s took %v", h.what, h.took)
	}
	for _, path := range []string{"/v1/kv/k?consistency=stale", "/v1/kv?consistency=stale"} {
		if h := c.ask(lead, "GET", path, "").is(200); len(h.header.Get("X-Northstar-Last-Contact-Ms")) < 3 {
			t.Errorf("%s is %q ms old", h.what, h.header.Get("X-Northstar-Last-Contact-Ms"))
		}
	}
	c.ask(lead, "GET", "/admin/snapshot", "").is(503, 4002)
	c.ask(lead, "POST", "/admin/transfer", "{}", "Content-Type", jsonType).is(503, 4002)
	// It finds out that the others are down.
	eventually(t, soon, func() error {
		q := fmt.Sprint(c.ask(lead, "GET", "/v1/cluster", "").is(200).fields()["quorum"])
		if want := "map[healthy:1 needed:2 tolerates:0 voters:3]"; q != want {
			return fmt.Errorf("quorum is %s, want %s", q, want)
		}
		return nil
	})
	// After a restart its state is empty: the log holds the key, and no leader says that it is committed.
	lead.Kill()
	if err := cl.StartNode(lead); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error { return wantStatus(c, lead, "GET", "/livez", 200) })
	for _, path := range []string{"/v1/kv/k?consistency=stale", "/v1/kv?consistency=stale"} {
		c.ask(lead, "GET", path, "").is(503, 4002)
	}
	for _, n := range cl.Nodes {
		if n != lead {
			if err := cl.StartNode(n); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	eventually(t, soon, func() error { return wantStatus(c, lead, "GET", "/v1/kv/k?consistency=stale", 200) })
	// A queued request is served when there is a leader.
	eventually(t, soon, func() error { return wantStatus(c, lead, "GET", "/v1/kv/k", 200) })
}
