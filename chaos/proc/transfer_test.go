package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// moved is the response to a call that moves leadership, or to its dry run.
type moved struct {
	Status      int
	Code        int    `json:"code"`
	Detail      string `json:"detail"`
	NewLeaderID string `json:"new_leader_id"`
	Term        uint64 `json:"term"`
	TargetID    string `json:"target_id"`
	PlanID      string `json:"plan_id"`
	How         string `json:"how"`
	LeaderID    string `json:"leader_id"`
	Votes       []struct {
		VoterID string `json:"voter_id"`
		Granted bool   `json:"granted"`
		Reason  string `json:"reason"`
	} `json:"votes"`
}

// move posts a leadership request to a node.
func move(t *testing.T, n *Node, path, body string) moved {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	a, err := do(ctx, n, http.MethodPost, path, []byte(body), "Content-Type", "application/json")
	if err != nil {
		t.Fatalf("%s at %s: %v", path, n.ID, err)
	}
	m := moved{Status: a.Status}
	if err := json.Unmarshal(a.Body, &m); err != nil {
		t.Fatalf("%s at %s: %s: %v", path, n.ID, a.Body, err)
	}
	return m
}

// acquainted waits until every node of a fresh cluster receives messages of every other.
func acquainted(t *testing.T, c *Cluster) *Node {
	t.Helper()
	leader(t, c)
	mustPut(t, c, "first", "1")
	n := steady(t, c)
	for _, asked := range c.Nodes {
		eventually(t, soon, func() error {
			a, err := do(t.Context(), asked, http.MethodPost, "/admin/failover/emergency", []byte(`{"target_leader_id":"n1","dry_run":true}`), "Content-Type", "application/json")
			if err != nil || strings.Contains(string(a.Body), "does not answer") {
				return fmt.Errorf("at %s: %s %v", asked.ID, a.Body, err)
			}
			return nil
		})
	}
	return n
}

// rounds returns how often a test repeats: the usual number, or the value of an environment variable.
func rounds(t *testing.T, variable string, usual int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// Planned transfers under writes reach the named node, or the one that a dry run predicted. The responses are true, and
// no acknowledged write is lost. NORTHSTAR_TRANSFERS sets the number of transfers, for example 200. Not parallel: on a
// busy machine more of them fail.
func TestTransfersUnderLoad(t *testing.T) {
	c := newCluster(t, 3, "--failover-takeover-delay", "1h")
	start(t, c)
	acquainted(t, c)
	w := newWriters(c, 4)
	stop := w.meanwhile(t)

	arrived, foretold, plans := 0, 0, 0
	total := rounds(t, "NORTHSTAR_TRANSFERS", 12)
	for round := range total {
		old := leader(t, c)
		asked := c.Nodes[rand.IntN(len(c.Nodes))]
		body, want := "{}", ""
		if round%3 == 0 {
			plan := move(t, asked, "/admin/transfer", `{"dry_run":true}`)
			if plan.Status != http.StatusOK {
				continue // a leader that no other node can follow at present says so
			}
			plans++
			want = plan.TargetID
		} else {
			for want == "" || want == old.ID {
				want = c.Nodes[rand.IntN(len(c.Nodes))].ID
			}
			body = fmt.Sprintf(`{"target_leader_id":%q,"reason":"round %d"}`, want, round)
		}
		m := move(t, asked, "/admin/transfer", body)
		if m.Status != http.StatusOK {
			t.Logf("round %d, %s to %s: %d %s", round, old.ID, want, m.Status, m.Detail)
			continue
		}
		arrived++
		if round%3 == 0 && m.NewLeaderID == want {
			foretold++
		} else if round%3 != 0 && m.NewLeaderID != want {
			t.Errorf("round %d: %s leads, %s was named", round, m.NewLeaderID, want)
		}
		if e := electionAfter(t, asked, m.Term-1); e.Term == m.Term && e.CandidateID != m.NewLeaderID {
			t.Errorf("round %d: the answer says %s leads term %d, the record %s", round, m.NewLeaderID, m.Term,
				e.CandidateID)
		}
	}
	stop()
	t.Logf("%d of %d transfers arrived, %d of %d plans foretold who leads; %d writes", arrived, total, foretold, plans,
		w.total)
	if arrived < total-1-total/20 || foretold < plans-1 {
		t.Errorf("%d of %d transfers arrived, %d of %d plans came true", arrived, total, foretold, plans)
	}
	w.check(t)
}

// A target is stopped when it receives TimeoutNow. The old leader keeps leading and takes writes. The message that the
// target finds when it resumes must not depose that leader, which has long given up the transfer.
func TestTransferTargetPaused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, append([]string{"--failover-takeover-delay", "1h"}, patient...)...)
	start(t, c)
	old := acquainted(t, c)
	target := c.Nodes[0]
	if target == old {
		target = c.Nodes[1]
	}
	caughtUp(t, c)
	before := mustStatus(t, old).Term
	if err := target.Pause(); err != nil {
		t.Fatal(err)
	}
	m := move(t, old, "/admin/transfer", fmt.Sprintf(`{"target_leader_id":%q}`, target.ID))
	// 504: it received TimeoutNow; 409: an entry was in flight to it, and it never received TimeoutNow.
	if m.Status != http.StatusGatewayTimeout && m.Status != http.StatusConflict || m.Code != 4003 ||
		m.LeaderID != old.ID {
		t.Errorf("answer: %+v", m)
	}
	if a, err := put(t.Context(), old, "k", "v"); err != nil || a.Status != http.StatusOK {
		t.Errorf("a write after it: %+v %v", a, err)
	}
	if err := target.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, c)
	if st := mustStatus(t, old); st.Term != before || st.State != "leader" {
		t.Errorf("term %d, %s; it was leader in term %d", st.Term, st.State, before)
	}
}

// A leader hangs while automatic failover is paused. A manual failover through any working node makes the named node
// lead.
func TestManualFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	old := acquainted(t, c)
	var target, asked *Node
	for _, n := range c.Nodes {
		if n != old {
			asked, target = target, n
		}
	}
	if a, err := do(t.Context(), old, http.MethodPost, "/admin/auto-failover", []byte(`{"enabled":false}`), "Content-Type", "application/json"); err != nil || a.Status != http.StatusOK {
		t.Fatalf("pause: %s %v", a.Body, err)
	}
	eventually(t, soon, func() error { // it is applied everywhere
		for _, n := range c.Nodes {
			if a, err := do(t.Context(), n, http.MethodGet, "/status", nil); err != nil || !strings.Contains(string(a.Body), `"auto_failover":false`) {
				return fmt.Errorf("%s: %s %v", n.ID, a.Body, err)
			}
		}
		return nil
	})
	if err := old.Pause(); err != nil {
		t.Fatal(err)
	}
	plan := move(t, asked, "/admin/failover", fmt.Sprintf(`{"target_leader_id":%q,"dry_run":true}`, target.ID))
	if plan.Status != http.StatusOK || plan.How != "election" || plan.TargetID != target.ID {
		t.Errorf("plan: %+v", plan)
	}
	began := time.Now()
	m := move(t, asked, "/admin/failover", fmt.Sprintf(`{"plan_id":%q,"reason":"it hangs"}`, plan.PlanID))
	took := time.Since(began)
	if m.Status != http.StatusOK || m.NewLeaderID != target.ID {
		t.Fatalf("answer after %v: %+v", took, m)
	}
	if limit := testenv.Slowdown() * 5 * time.Second; took >= limit { // about 110 ms, and election timers add seconds
		t.Errorf("the failover took %v, want less than %v", took, limit)
	}
	if e := electionAfter(t, target, m.Term-1); e.Trigger != "manual" || e.Reason != "it hangs" ||
		e.CandidateID != target.ID {
		t.Errorf("record: %+v", e)
	}
	mustPut(t, c, "k", "v")
	if err := old.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, c)
	if again := move(t, asked, "/admin/failover", fmt.Sprintf(`{"plan_id":%q}`, plan.PlanID)); again.Status != http.StatusConflict || again.Code != 4005 {
		t.Errorf("an old plan: %+v", again)
	}
}

// An emergency failover targets a node that lags. The voters refuse, each with its reason, and the leader is not
// disturbed.
func TestEmergencyOnALaggingNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "1s", "--election-timeout-max",
		"2s")
	start(t, c)
	old := acquainted(t, c)
	var target, asked *Node
	for _, n := range c.Nodes {
		if n != old {
			asked, target = target, n
		}
	}
	target.Kill()
	for i := range 40 {
		mustPut(t, c, "k", fmt.Sprint(i))
	}
	before := mustStatus(t, old).Term
	old.Kill() // it could bring the target up to date
	if err := c.StartNode(target); err != nil {
		t.Fatal(err)
	}
	var m moved
	eventually(t, soon, func() error {
		if _, err := nodeStatus(t.Context(), target); err != nil {
			return err
		}
		m = move(t, asked, "/admin/failover/emergency", fmt.Sprintf(`{"target_leader_id":%q,"force":true,"reason":"drill"}`, target.ID))
		if m.Code != 4006 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	if m.Status != http.StatusConflict || len(m.Votes) != 3 {
		t.Errorf("answer: %+v", m)
	}
	for _, v := range m.Votes {
		if v.VoterID == asked.ID && (v.Granted || v.Reason == "") {
			t.Errorf("the vote of %s: %+v", asked.ID, v)
		}
	}
	if m = move(t, target, "/admin/failover", `{"reason":"the drill is over"}`); m.Status != http.StatusOK && m.Code != 4003 && m.Code != 4001 {
		t.Errorf("a failover to the best: %+v", m)
	}
	if err := c.StartNode(old); err != nil {
		t.Fatal(err)
	}
	leader(t, c)
	if got := string(mustGet(t, c, "k").Body); got != "39" {
		t.Errorf("k is %s after it", got)
	}
	if after := mustStatus(t, old).Term; after <= before {
		t.Errorf("term %d, it was %d", after, before)
	}
}
