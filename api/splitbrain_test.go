package api

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/splitbrain"
)

// fakeSplitBrain returns the report that the test sets.
type fakeSplitBrain struct {
	mu       sync.Mutex
	report   splitbrain.Report
	refusing string
	checks   int
	fail     error
}

func (f *fakeSplitBrain) set(change func(*fakeSplitBrain)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeSplitBrain) Report(context.Context) (splitbrain.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.report, f.fail
}

func (f *fakeSplitBrain) Check(ctx context.Context) (splitbrain.Report, error) {
	f.set(func(f *fakeSplitBrain) { f.checks++ })
	return f.Report(ctx)
}

func (f *fakeSplitBrain) Refusing() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusing
}

func withSplitBrain(f *fakeSplitBrain) func(*Deps) { return func(d *Deps) { d.SplitBrain = f } }

func TestSplitBrainReport(t *testing.T) {
	virtual(t, func(t *testing.T) {
		at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		f := &fakeSplitBrain{report: splitbrain.Report{
			Verdict: splitbrain.StaleLeader, CheckedAt: at,
			Findings: []splitbrain.Finding{{
				Verdict: splitbrain.StaleLeader, Detail: "why",
				Nodes: []cluster.NodeID{"n2"},
			}},
			Claims: []splitbrain.Claim{
				{
					Node: "n1", Source: splitbrain.FromSelf, At: at, ClusterID: "c1",
					Generation: cluster.Generation{Number: 2, RecoveryID: "r"}, Term: 7, Leads: true, LeaderID: "n1",
				},
				{Node: "n2", Source: splitbrain.FromHTTP, Address: "h2:1", At: at, Error: "refused"},
			},
		}}
		n := startServer(t, newFakeCluster("n1", true), withSplitBrain(f))
		want := `{"verdict":"stale_leader","findings":[{"verdict":"stale_leader","detail":"why","nodes":["n2"],"refusing":false}],` +
			`"claims":[{"node_id":"n1","source":"self","address":"","cluster_id":"c1","generation":2,"recovery_id":"r","term":7,"leads":true,"leader_id":"n1","at":"2026-11-20T12:00:00Z"},` +
			`{"node_id":"n2","source":"http","address":"h2:1","cluster_id":"","generation":0,"term":0,"leads":false,"leader_id":"","at":"2026-11-20T12:00:00Z","error":"refused"}],` +
			`"checked_at":"2026-11-20T12:00:00Z","checked_by":"n1","refusing":false}`
		for i, r := range []reply{n.do("GET", "/admin/splitbrain", ""), n.do("POST", "/admin/splitbrain/check", ""), n.do("POST", "/admin/splitbrain/check", `{"reason":"drill"}`, "Content-Type", apiv1.TypeJSON)} {
			if r.status != 200 || strings.TrimSpace(r.body) != want {
				t.Errorf("%d: %d %s", i, r.status, r.body)
			}
		}
		if f.checks != 2 {
			t.Errorf("%d checks", f.checks)
		}
		f.set(func(f *fakeSplitBrain) { f.fail = errors.New("too late") })
		n.do("GET", "/admin/splitbrain", "").is(t, 503, cluster.CodeBusy)
	})
}

// TestRefusingNode: a node that is part of a conflict serves nothing that only
// a leader may answer, here or through another node, and says why.
func TestRefusingNode(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := &fakeSplitBrain{refusing: "two leaders in term 7"}
		for name, leads := range map[string]bool{"leader": true, "follower": false} {
			n := startServer(t, newFakeCluster("n1", leads), withSplitBrain(f))
			n.fake.put("k", "v")
			for _, r := range []reply{
				n.do("PUT", "/v1/kv/k", "v"), n.do("DELETE", "/v1/kv/k", ""), n.do("GET", "/v1/kv/k", ""),
				n.do("GET", "/v1/kv", ""),
				n.do("GET", "/v1/kv/k?consistency=lease", ""),
			} {
				p := r.is(t, 409, cluster.CodeSplitBrain)
				if p.Retryable || !strings.Contains(p.Detail, "two leaders in term 7") {
					t.Errorf("%s: %+v", name, p)
				}
			}
			if r := n.do("GET", "/v1/kv/k?consistency=stale", ""); r.status != 200 {
				t.Errorf("%s: stale read: %d %s", name, r.status, r.body)
			}
			for _, path := range []string{"/readyz", "/health/leader", "/health/follower"} {
				r := n.do("GET", path, "")
				if p := r.is(t, 503, cluster.CodeSplitBrain); p.Retryable || r.header.Get("Retry-After") != "" ||
					!strings.Contains(p.Detail, "two leaders in term 7") {
					t.Errorf("%s: %s: %v %s", name, path, r.header, r.body)
				}
			}
			if r := n.do("GET", "/readyz", ""); !strings.Contains(r.body, "[-]no_split_brain: two leaders in term 7") {
				t.Errorf("%s: readyz: %d %s", name, r.status, r.body)
			}
			var c apiv1.Cluster
			r := n.do("GET", "/v1/cluster", "", "X-Northstar-Forwarded-By", "n3")
			if err := json.Unmarshal([]byte(r.body), &c); err != nil || len(c.Members) == 0 ||
				c.Members[0].ID != "n1" || c.Members[0].Healthy || !slices.Contains(c.Members[0].Reasons, "is part of a split brain and refuses service") {
				t.Errorf("%s: its own health: %d %s, %v", name, r.status, r.body, err)
			}
			if r := n.do("GET", "/status", ""); r.status != 200 || !strings.Contains(r.body, "two leaders in term 7") {
				t.Errorf("%s: status: %d %s", name, r.status, r.body)
			}
		}
	})
}

func TestAskLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		peer, _ := pair(t)
		f := newFakeCluster("n2", false)
		f.addRecord(cluster.Member{ID: "n1", HTTPAddress: peer.addr})
		n := startServer(t, f)
		a, address, err := n.AskLeader(t.Context(), "n1")
		if err != nil || address != peer.addr ||
			a != (splitbrain.Answer{
				By: "n1", ClusterID: "c1", Generation: cluster.Generation{Number: 1}, Term: 2,
				LeaderID: "n1",
			}) {
			t.Errorf("%+v at %s, %v", a, address, err)
		}
		if _, _, err := n.AskLeader(t.Context(), "n9"); err == nil {
			t.Error("of a node without an address")
		}
		peer.fake.lead("", 3)
		if a, _, err := n.AskLeader(t.Context(), "n1"); err != nil || a != (splitbrain.Answer{By: "n1"}) {
			t.Errorf("without a leader: %+v, %v", a, err)
		}
	})
}

// Clients know a fixed set of verdicts.
func TestWireVerdict(t *testing.T) {
	t.Parallel()
	for v, want := range map[splitbrain.Verdict]string{
		splitbrain.OK: "ok", splitbrain.Unreachable: "unreachable", splitbrain.OldGeneration: "unreachable",
		splitbrain.StaleLeader: "stale_leader", splitbrain.ForeignCluster: "foreign_cluster",
		splitbrain.SplitBrain: "split_brain",
	} {
		if got := wireVerdict(v); got != want {
			t.Errorf("%s is %q in responses, want %q", v, got, want)
		}
	}
}
