package proc

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// dryRuns are the calls that move leadership or change the membership, with effective bodies. In each path and body, L
// stands for the leader and F for a follower.
var dryRuns = []struct {
	method, path, body string
	status             int
}{
	{"POST", "/admin/transfer", `{"dry_run":true}`, 200},
	{"POST", "/admin/transfer", `{"dry_run":true,"target_leader_id":"F","reason":"r"}`, 200},
	{"POST", "/admin/transfer", `{"dry_run":true,"target_leader_id":"L"}`, 200},
	{"POST", "/admin/transfer", `{"dry_run":true,"target_leader_id":"n9"}`, 404},
	{"POST", "/admin/failover", `{"dry_run":true}`, 200},
	{"POST", "/admin/failover", `{"dry_run":true,"target_leader_id":"F"}`, 200},
	{"POST", "/admin/failover/emergency", `{"dry_run":true,"target_leader_id":"F"}`, 200},
	{"POST", "/admin/failover/emergency", `{"dry_run":true,"target_leader_id":"F","force":true,"reason":"r"}`, 200},
	{"POST", "/admin/members", `{"dry_run":true,"id":"n9","raft_address":"127.0.0.1:1","http_address":"127.0.0.1:2"}`, 200},
	{"PATCH", "/admin/members/F", `{"dry_run":true,"priority":7,"eligible":false,"zone":"z"}`, 200},
	{"PATCH", "/admin/members/F", `{"dry_run":true,"suffrage":"nonvoter"}`, 200},
	{"PATCH", "/admin/members/L", `{"dry_run":true,"suffrage":"nonvoter"}`, 200},
	{"PATCH", "/admin/members/L", `{"dry_run":true,"raft_address":"127.0.0.1:1"}`, 200},
	{"PATCH", "/admin/members/F", `{"dry_run":true,"readmit":true}`, 200},
	{"DELETE", "/admin/members/F", `{"dry_run":true}`, 200},
	{"DELETE", "/admin/members/L", `{"dry_run":true,"reason":"r"}`, 200},
	{"POST", "/admin/nodes/L/drain", `{"dry_run":true}`, 200},
	{"POST", "/admin/nodes/F/drain", `{"dry_run":true}`, 200},
	{"POST", "/admin/nodes/F/undrain", `{"dry_run":true}`, 200},
	{"POST", "/admin/recover", `{"dry_run":true,"survivors":["F"],"confirm":"ID"}`, 200},
}

// own matches metrics that change without a request, or by any request and its audit record.
var own = regexp.MustCompile(`^northstar_(http_|connections|heartbeat_age_ms|peer_last_contact_ms|peer_lag_entries|leader_tenure_seconds|silence_threshold_seconds|disk_fsync_ms|` +
	`commit_index|applied_index|apply_duration_ms|proposals_total|audit_records_total|raft_)`)

// known returns everything that a dry run might change: every node's term and role, the members, settings, elections
// and keys with their revisions. It includes every metric that does not match own.
func known(t *testing.T, c *Cluster) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, n := range c.Nodes {
		st := mustStatus(t, n)
		all[n.ID+" status"] = fmt.Sprintf("term %d, %s, leader %s, %s, %s", st.Term, st.State, st.LeaderID,
			st.Lifecycle, st.Suffrage)
		var cl struct {
			Revision uint64
			Members  []map[string]any
		}
		for _, path := range []string{
			"/v1/cluster", "/admin/auto-failover", "/v1/elections?limit=100",
			"/v1/kv?consistency=stale", "/metrics",
		} {
			a, err := do(t.Context(), n, http.MethodGet, path, nil)
			if err != nil || a.Status != http.StatusOK {
				t.Fatalf("%s at %s: %d %v", path, n.ID, a.Status, err)
			}
			switch path {
			case "/v1/cluster":
				if err := json.Unmarshal(a.Body, &cl); err != nil {
					t.Fatal(err)
				}
				for _, m := range cl.Members {
					delete(m, "last_contact_ms")
					delete(m, "lag_entries")
				}
				all[n.ID+" "+path] = fmt.Sprint(cl)
			case "/metrics":
				for line := range strings.Lines(string(a.Body)) {
					if strings.HasPrefix(line, "northstar_") && !own.MatchString(line) {
						name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
						all[n.ID+" "+name] = value
					}
				}
			default:
				all[n.ID+" "+path] = string(a.Body)
			}
		}
	}
	return all
}

// A dry run changes nothing, for any call and on any node, except for its audit record.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, append([]string{"--failover-takeover-delay", "1h"}, calm...)...)
	start(t, c)
	lead := acquainted(t, c)
	follower := others(c, lead)[0]
	mustPut(t, c, "k", "v")
	for _, n := range c.Nodes {
		awaitApplied(t, c, n)
	}
	fill := strings.NewReplacer(`"L"`, `"`+lead.ID+`"`, `"F"`, `"`+follower.ID+`"`, "/L", "/"+lead.ID, "/F", "/"+follower.ID, "ID", mustStatus(t, lead).ClusterID)

	records, err := auditLog(t, lead, "/admin/")
	if err != nil {
		t.Fatal(err)
	}
	earlier, calls := len(records), 0
	before := known(t, c)
	for _, call := range dryRuns {
		method, path, body := call.method, fill.Replace(call.path), fill.Replace(call.body)
		for _, n := range c.Nodes {
			a, err := do(t.Context(), n, method, path, []byte(body), "Content-Type", "application/json")
			if err != nil || a.Status != call.status || a.Status == 200 && !strings.Contains(string(a.Body), `"plan_id"`) {
				t.Errorf("%s %s %s at %s: %d %s %v", method, path, body, n.ID, a.Status, a.Body, err)
			}
			calls++
		}
	}
	after := known(t, c)
	for what, was := range before {
		if is := after[what]; is != was {
			t.Errorf("%s\n was %s\n is  %s", what, was, is)
		}
	}
	for what, is := range after {
		if _, was := before[what]; !was {
			t.Errorf("%s is new: %s", what, is)
		}
	}
	eventually(t, soon, func() error {
		records, err := auditLog(t, lead, "/admin/")
		if err != nil || len(records) != earlier+calls {
			return fmt.Errorf("%d audit records of %d calls, %v", len(records)-earlier, calls, err)
		}
		for _, r := range records[earlier:] {
			if !r.DryRun {
				return fmt.Errorf("not known as a dry run: %+v", r)
			}
		}
		return nil
	})
	if after := known(t, c); after[lead.ID+" status"] != before[lead.ID+" status"] {
		t.Errorf("%s, before the dry runs %s", after[lead.ID+" status"], before[lead.ID+" status"])
	}
}

// planned dry-runs a call without a target, and then makes the call with the plan. It returns the predicted leader and
// the result of the call.
func planned(t *testing.T, asked *Node, path string) (foretold string, m moved) {
	t.Helper()
	p := move(t, asked, path, `{"dry_run":true}`)
	if p.Status != http.StatusOK || p.TargetID == "" {
		return "", p
	}
	return p.TargetID, move(t, asked, path, fmt.Sprintf(`{"plan_id":%q,"reason":"as planned"}`, p.PlanID))
}

// The same call with its plan_id does what the dry run predicted, under writes. The calls are transfers, failovers that
// become transfers, and failovers that become elections. The last kind needs automatic failover paused and the leader
// killed. NORTHSTAR_PLANS sets the number of calls, for example 100. Not parallel: on a busy machine fewer come true.
func TestPlanMatchesExecution(t *testing.T) {
	total := rounds(t, "NORTHSTAR_PLANS", 6)
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	acquainted(t, c)
	w := newWriters(c, 2)
	stop := w.meanwhile(t)

	came := 0
	for round := range total {
		old := steadyUnderWrites(t, c)
		path, asked := "/admin/transfer", c.Nodes[rand.IntN(len(c.Nodes))]
		switch round % 3 {
		case 1:
			path = "/admin/failover"
		case 2:
			path, asked = "/admin/failover", others(c, old)[rand.IntN(2)]
			autoFailover(t, c, false)
			old.Kill()
		}
		began := time.Now()
		foretold, m := planned(t, asked, path)
		if m.Status == http.StatusOK && m.NewLeaderID == foretold {
			came++
		} else {
			t.Logf("round %d, %s at %s after %v: %q was foretold, and came %+v", round, path, asked.ID,
				time.Since(began), foretold, m)
		}
		if !old.Running() {
			if err := c.StartNode(old); err != nil {
				t.Fatal(err)
			}
			autoFailover(t, c, true)
		}
	}
	stop()
	t.Logf("%d of %d plans came true, %d writes meanwhile", came, total, w.total)
	if came < total-max(1, total/100) {
		t.Errorf("%d of %d plans came true", came, total)
	}
	w.check(t)
}

// steadyUnderWrites waits until every node receives messages of every other.
func steadyUnderWrites(t *testing.T, c *Cluster) *Node {
	t.Helper()
	var lead *Node
	eventually(t, soon, func() error {
		lead = c.agreed(t.Context())
		if lead == nil {
			return fmt.Errorf("the nodes do not agree on a leader")
		}
		a, err := do(t.Context(), lead, http.MethodGet, "/v1/cluster", nil)
		if err != nil || strings.Count(string(a.Body), `"healthy":true`) < len(c.Nodes) {
			return fmt.Errorf("%s does not find all healthy: %s %v", lead.ID, a.Body, err)
		}
		for _, asked := range c.Nodes { // a node that has just restarted is not connected to all others yet
			p, err := do(t.Context(), asked, http.MethodPost, "/admin/failover/emergency", []byte(`{"target_leader_id":"n1","dry_run":true}`), "Content-Type", "application/json")
			if err != nil || strings.Contains(string(p.Body), "does not answer") {
				return fmt.Errorf("at %s: %s %v", asked.ID, p.Body, err)
			}
		}
		return nil
	})
	return lead
}

// autoFailover pauses or resumes automatic failover, and waits until all running nodes have applied it.
func autoFailover(t *testing.T, c *Cluster, enabled bool) {
	t.Helper()
	eventually(t, soon, func() error {
		body := fmt.Sprintf(`{"enabled":%v,"reason":"test"}`, enabled)
		if a, err := do(t.Context(), c.Nodes[0], http.MethodPost, "/admin/auto-failover", []byte(body), "Content-Type",
			"application/json"); err != nil || a.Status != http.StatusOK {
			return fmt.Errorf("%d %s %v", a.Status, a.Body, err)
		}
		for _, n := range c.Nodes {
			if a, err := do(t.Context(), n, http.MethodGet, "/status", nil); err != nil || !strings.Contains(string(a.Body), fmt.Sprintf(`"auto_failover":%v`, enabled)) {
				return fmt.Errorf("%s: %s %v", n.ID, a.Body, err)
			}
		}
		return nil
	})
}
