package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// elections returns the newest elections that a leader won, as a node knows them, the newest first.
func elections(ctx context.Context, n *Node) ([]apiv1.Election, error) {
	var page apiv1.Elections
	body, err := Get(ctx, "http://"+n.HTTP+"/v1/elections?limit=50")
	if err == nil {
		err = json.Unmarshal(body, &page)
	}
	return slices.DeleteFunc(page.Items, func(e apiv1.Election) bool { return !e.Won() }), err
}

// electionAfter waits until the newest record at a node is of a later term than the given one. A leader is known before
// its record is applied.
func electionAfter(t *testing.T, n *Node, term uint64) apiv1.Election {
	t.Helper()
	var all []apiv1.Election
	eventually(t, soon, func() (err error) {
		all, err = elections(t.Context(), n)
		if err == nil && (len(all) == 0 || all[0].Term <= term) {
			err = fmt.Errorf("%s has no record after term %d: %+v", n.ID, term, all)
		}
		return err
	})
	return all[0]
}

func priorities(c *Cluster, all map[string]string) {
	for id, p := range all {
		c.Extra[id] = append(c.Extra[id], "--priority", p)
	}
}

// steady waits until every node has a recent heartbeat of the leader, so that the connections of a fresh cluster are
// open.
func steady(t *testing.T, c *Cluster) *Node {
	t.Helper()
	n := leader(t, c)
	eventually(t, soon, func() error {
		for _, n := range c.Nodes {
			a, err := do(t.Context(), n, http.MethodGet, "/v1/cluster", nil)
			if err != nil || strings.Count(string(a.Body), `"healthy":true`) < len(c.Nodes) {
				return fmt.Errorf("%s does not find all healthy: %s %v", n.ID, a.Body, err)
			}
		}
		return nil
	})
	caughtUp(t, c)
	return n
}

// caughtUp waits until all nodes hold the same log.
func caughtUp(t *testing.T, c *Cluster) {
	t.Helper()
	eventually(t, soon, func() error {
		first := mustStatus(t, c.Nodes[0])
		for _, n := range c.Nodes[1:] {
			if s := mustStatus(t, n); s.LastLogIndex != first.LastLogIndex {
				return fmt.Errorf("%s holds %d entries, %s %d", n.ID, s.LastLogIndex, c.Nodes[0].ID, first.LastLogIndex)
			}
		}
		return nil
	})
}

// After a crash the survivors agree, and the best ranked of them leads before a timer fires. The record shows the cause
// and all votes.
//
// On a busy machine a process may wait for longer than the stagger or a dial may take. Another node, or a timer, is
// then rightly first. So agreement and rank are required of three crashes in a few. Not parallel: it compares nodes
// that start an election within milliseconds.
func TestCrashFailover(t *testing.T) {
	const timeoutMin = 2 * time.Second
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", timeoutMin.String(),
		"--election-timeout-max", (2 * timeoutMin).String())
	priorities(c, map[string]string{"n1": "50", "n2": "100", "n3": "200"})
	start(t, c)
	var others []apiv1.Election
	for good := 0; good < 3; {
		old := steady(t, c)
		mustPut(t, c, "k", "v")
		caughtUp(t, c) // priority decides between equal logs
		term := mustStatus(t, old).Term
		old.Kill()
		now := electedWithout(t, c, old)
		e := electionAfter(t, now, term)
		for _, v := range e.Votes {
			if v.VoterID == old.ID && (v.Granted || v.Reason == "") {
				t.Errorf("the dead leader's vote: %+v", v)
			}
		}
		agreed := e.Trigger == "connection_lost" && strings.Contains(e.Reason, old.ID+" is dead") &&
			e.LeaderlessMS < timeoutMin.Milliseconds()
		first, best := strings.Contains(e.Reason, "rank 1 "), e.CandidateID == bestOf(c, old)
		if len(e.Votes) != 3 || agreed && first != best {
			t.Errorf("record: %+v", e)
		}
		if agreed && best {
			good++
		} else if others = append(others, e); len(others) > 6 {
			t.Fatalf("the survivors agreed on the best placed %d times, not in %+v", good, others)
		}
		mustPut(t, c, "k", "w")
		if err := c.StartNode(old); err != nil {
			t.Fatal(err)
		}
	}
}

// bestOf returns the running node of the highest priority.
func bestOf(c *Cluster, without *Node) string {
	for i := len(c.Nodes) - 1; i >= 0; i-- {
		if n := c.Nodes[i]; n != without {
			return n.ID
		}
	}
	return ""
}

// A leader that hangs is usually replaced as soon as the survivors agree that it has been silent for timeout-min.
// Raft's timers may fire from that time on, and win by chance or on a busy machine. So agreement is required of one
// hang in a few. Not parallel: more load makes timers win.
func TestHangFailover(t *testing.T) {
	c := newCluster(t, 3, "--election-timeout-min", "500ms", "--election-timeout-max", "1s")
	start(t, c)
	var records []apiv1.Election
	for range 10 {
		old := steady(t, c)
		term := mustStatus(t, old).Term
		if err := old.Pause(); err != nil {
			t.Fatal(err)
		}
		e := electionAfter(t, electedWithout(t, c, old), term)
		if err := old.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if e.Trigger == "timeout" && strings.Contains(e.Reason, old.ID+" is silent") {
			return
		}
		records = append(records, e)
	}
	t.Errorf("the survivors never agreed that the leader is silent: %+v", records)
}

// Leadership returns to the node of the highest priority once it is healthy and caught up, and the election record
// names the reason.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1s")
	priorities(c, map[string]string{"n2": "200"})
	start(t, c)
	led := func(id string) func() error {
		return func() error {
			if n := leader(t, c); n.ID != id {
				return fmt.Errorf("%s leads", n.ID)
			}
			return nil
		}
	}
	eventually(t, soon, led("n2"))
	best := c.Nodes[1]
	best.Kill()
	mustPut(t, c, "k", "v")
	if err := c.StartNode(best); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, led("n2"))
	eventually(t, soon, func() error {
		if e := electionAfter(t, best, 0); e.Trigger != "priority" ||
			!strings.Contains(e.Reason, "n2 has priority 200") {
			return fmt.Errorf("record: %+v", e)
		}
		return nil
	})
}

// While automatic failover is paused no node starts an election, until the pause ends automatically.
func TestPausedFailover(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	c := newCluster(t, 3, patient...)
	start(t, c)
	old := steady(t, c)
	body := fmt.Sprintf(`{"enabled":false,"ttl_ms":%d,"reason":"test"}`, ttl.Milliseconds())
	paused := time.Now()
	a, err := do(t.Context(), c.Nodes[0], http.MethodPost, "/admin/auto-failover", []byte(body), "Content-Type",
		"application/json")
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("pause: %d %s %v", a.Status, a.Body, err)
	}
	eventually(t, soon, func() error { // it is applied everywhere
		for _, n := range c.Nodes {
			if a, err := do(t.Context(), n, http.MethodGet, "/status", nil); err != nil || !strings.Contains(string(a.Body), `"auto_failover":false`) {
				return fmt.Errorf("%s: %s %v", n.ID, a.Body, err)
			}
		}
		return nil
	})
	old.Kill()
	now := electedWithout(t, c, old)
	if after := time.Since(paused); after < ttl-100*time.Millisecond {
		t.Errorf("%s leads after %v of a pause of %v", now.ID, after, ttl)
	}
}
