package api

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a JSON answer with testdata/NAME.json.
func golden(t *testing.T, name, got string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(got), &v); err != nil {
		t.Fatalf("%s: %q: %v", name, got, err)
	}
	pretty, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	pretty = append(pretty, '\n')
	file := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(file, pretty, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(pretty) {
		t.Errorf("%s is\n%s\nwant\n%s", name, pretty, want)
	}
}

// goldenCluster is a leader with everything that a view can show.
func goldenCluster() *fakeCluster {
	f := newFakeCluster("n1", true)
	f.addRecord(cluster.Member{
		ID: "n1", HTTPAddress: "h1:7701", RaftAddress: "h1:7700", Priority: 120, Eligible: true,
		Zone: "a", Lifecycle: cluster.Active, Version: "v0",
	})
	f.addRecord(cluster.Member{
		ID: "n2", HTTPAddress: "h2:7701", RaftAddress: "h2:7700", Priority: 100, Eligible: true,
		Zone: "b", Lifecycle: cluster.Active, Version: "v0",
	})
	f.addRecord(cluster.Member{
		ID: "n4", HTTPAddress: "h4:7701", RaftAddress: "h4:7700", Priority: 0,
		Lifecycle: cluster.Joining,
	})
	f.addRecord(cluster.Member{ID: "n9", HTTPAddress: "h9:7701", Removed: true})
	f.peers = []cluster.PeerStatus{
		{ID: "n2", Healthy: true, Contacted: true, LastContact: 12 * time.Millisecond, LagEntries: 2},
		{
			ID: "n3", Reasons: []string{"no answer for 11s"}, Contacted: true, LastContact: 11 * time.Second,
			LagEntries: 500,
		},
	}
	f.st.CommitIndex, f.st.AppliedIndex, f.st.LastLogIndex = 40, 39, 41
	f.st.Disk = cluster.DiskState{FsyncP99: 120 * time.Microsecond}
	return f
}

func TestResponses_MatchGoldenFiles(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := goldenCluster()
		f.apply(state.Command{Kind: state.KindLeaderStart, Now: 2e18 + 42e6, LeaderStart: &state.LeaderStart{
			Term: 2, Node: "n1", Trigger: "timeout", Reason: "leader was silent", StartedAt: 2e18,
			Votes: []byte(`[{"voter_id":"n2","granted":true,"reason":"granted"}]`),
		}})
		s := bareServer(t, func(d *Deps) {
			d.Reads = f
			d.Node.StartedAt = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
			d.Node.HTTPAddress, d.Node.RaftAddress = "h1:7701", "h1:7700"
			d.Warnings = func() []string { return []string{"zone: the file says c, the member record a"} }
		})
		for _, name := range []string{"/leader", "/status", "/v1/cluster", "/v1/elections", "/nowhere"} {
			w := serveBriefly(s, local(name))
			golden(t, strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", "_"), w.Body.String())
		}
	})
}

// The stream of leaders has both addresses of the leader, as GET /leader has.
func TestLeaderStream_HasTheLeadersAddresses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t, func(d *Deps) { d.Node.RaftAddress = "h1:7700" })
		for _, n := range []*node{leader, follower} {
			m, _ := n.stream(apiv1.PathLeaderWatch).next()
			var l apiv1.Leader
			if err := json.Unmarshal([]byte(m.data), &l); err != nil {
				t.Fatal(err)
			}
			if m.event != apiv1.EventLeader || l.LeaderID != "n1" || l.LeaderAddress != leader.addr ||
				l.RaftAddress != "h1:7700" {
				t.Errorf("%s: %+v", l.ObservedBy, m)
			}
		}
	})
}

func TestNoLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", false))
		n.do("GET", "/leader", "").is(t, 503, cluster.CodeNoLeader)
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			if r := n.do(method, "/health/leader", ""); r.status != 503 {
				t.Errorf("%s /health/leader: %d", method, r.status)
			}
		}
		n.do("GET", "/health/follower", "").is(t, 503, cluster.CodeNoLeader)
		var st map[string]any
		if err := json.Unmarshal([]byte(n.do("GET", "/status", "").body), &st); err != nil {
			t.Fatal(err)
		}
		if st["leader_id"] != "" || st["last_contact_ms"] != nil || st["state"] != "follower" {
			t.Errorf("status %v", st)
		}
		// No leader can be asked: the node answers with its own view.
		if r := n.do("GET", "/v1/cluster", ""); r.status != 200 || !strings.Contains(r.body, `"observed_by":"n1"`) {
			t.Errorf("/v1/cluster: %+v", r)
		}
	})
}

func TestReadiness(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		if r := n.do("GET", "/livez?verbose", ""); r.status != 200 || !strings.HasPrefix(r.body, "[+]") {
			t.Errorf("/livez?verbose: %+v", r)
		}
		if r := n.do("GET", "/livez", ""); r.status != 200 {
			t.Errorf("/livez: %+v", r)
		}
		if r := n.do("GET", "/readyz", ""); r.status != 200 || r.body != "ok\n" {
			t.Errorf("ready: %+v", r)
		}
		verbose := n.do("GET", "/readyz?verbose", "")
		if lines := strings.Split(verbose.body, "\n"); verbose.status != 200 || len(lines) != 7 ||
			!strings.HasPrefix(lines[0], "[+]leader: n1") {
			t.Errorf("verbose: %+v", verbose)
		}
		for name, tc := range map[string]struct {
			change func()
			line   string
			code   cluster.Code
		}{
			"no leader": {func() { f.st.LeaderID = "" }, "[-]leader", cluster.CodeNoLeader},
			"one that is not followed": {
				func() { f.st.LeaderID, f.st.NotFollowed = "", "node x is no member" },
				"[-]leader: no leader is known; not followed if they lead: node x is no member", cluster.CodeNoLeader,
			},
			"behind":   {func() { f.st.CaughtUp = false }, "[-]caught_up", cluster.CodeBusy},
			"draining": {func() { f.st.Lifecycle = cluster.Draining }, "[-]not_draining", cluster.CodeBusy},
			"dead": {
				func() { f.st.Lifecycle, f.st.DeadReason = cluster.Dead, "wiped" },
				"[-]not_dead: the cluster refuses this node: wiped", cluster.CodeBusy,
			},
			"no leader too": {
				func() { f.st.LeaderID, f.st.CaughtUp = "", false }, "[-]caught_up",
				cluster.CodeNoLeader,
			},
		} {
			before := f.Status()
			f.set(tc.change)
			r := n.do("GET", "/readyz", "")
			r.is(t, 503, tc.code)
			found := false
			for _, line := range strings.Split(r.body, "\n") {
				found = found || strings.Contains(line, tc.line)
			}
			if !found || strings.Count(r.body, "\n") < 8 {
				t.Errorf("%s: %s", name, r.body)
			}
			f.set(func() { f.st = before })
		}
		f.apply(state.Command{Kind: state.KindSettings, Now: 1, Settings: &state.SettingsChange{}})
		if r := n.do("GET", "/readyz?verbose", ""); r.status != 200 ||
			!strings.Contains(r.body, "auto_failover: paused") {
			t.Errorf("paused: %+v", r)
		}
		if r := n.do("GET", "/readyz", ""); r.status != 200 ||
			!strings.HasPrefix(r.body, "ok\n[+]auto_failover: paused") {
			t.Errorf("paused, not verbose: %+v", r)
		}
	})
}

func TestHealthForLoadBalancers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pairWithCalls(t)
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			if r := leader.do(method, "/health/leader", ""); r.status != 200 {
				t.Errorf("%s at the leader: %+v", method, r)
			}
			if r := follower.do(method, "/health/leader", ""); r.status != 503 {
				t.Errorf("%s at the follower: %+v", method, r)
			}
		}
		// A leader that cannot prove it does not wait for long.
		leader.fake.set(func() {
			leader.fake.barrier = func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}
		})
		start := time.Now()
		leader.do("GET", "/health/leader", "").is(t, 503, cluster.CodeNoLeader)
		follower.do("GET", "/health/follower?max_lag=1000", "").is(t, 503, cluster.CodeNoLeader) // its lag is not known
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
		if p := leader.do("GET", "/health/follower", "").is(t, 503, cluster.CodeConditionFailed); p.Retryable ||
			!strings.Contains(p.Detail, "is leader, not follower") {
			t.Errorf("of the leader: %+v", p)
		}

		leader.fake.set(func() { leader.fake.barrier = nil })
		for leader.fake.Applied() < follower.fake.Applied()+7 {
			leader.fake.put("k", "v")
		}
		for query, want := range map[string]int{"": 200, "?max_lag=7": 200, "?max_lag=6": 503, "?max_lag=0": 503} {
			if r := follower.do("GET", "/health/follower"+query, ""); r.status != want {
				t.Errorf("%q: %+v", query, r)
			}
		}
		follower.do("GET", "/health/follower?max_lag=6", "").is(t, 503, cluster.CodeBusy)
		follower.fake.set(func() { follower.fake.st.LeaderContactAge = 601 * time.Millisecond })
		follower.do("GET", "/health/follower", "").is(t, 503, cluster.CodeNoLeader)
	})
}

func TestClusterIsTheLeadersView(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.fake.set(func() {
			leader.fake.peers = []cluster.PeerStatus{
				{ID: "n2", Healthy: true, Contacted: true},
				{ID: "n3", Healthy: true, Contacted: true},
			}
		})
		var c apiv1.Cluster
		if err := json.Unmarshal([]byte(follower.do("GET", "/v1/cluster", "").body), &c); err != nil {
			t.Fatal(err)
		}
		if c.ObservedBy != "n1" || c.Quorum != (apiv1.Quorum{Voters: 3, Needed: 2, Healthy: 3, Tolerates: 1}) {
			t.Errorf("%+v", c)
		}
		// One that was asked by a node does not ask on.
		if r := follower.do("GET", "/v1/cluster", "", "X-Northstar-Forwarded-By", "n3"); !strings.Contains(r.body, `"observed_by":"n2"`) {
			t.Errorf("%s", r.body)
		}
		follower.fake.addRecord(cluster.Member{ID: "n1", HTTPAddress: "127.0.0.1:1"})
		if err := json.Unmarshal([]byte(follower.do("GET", "/v1/cluster", "").body), &c); err != nil ||
			c.ObservedBy != "n2" {
			t.Errorf("leader out of reach: %+v %v", c, err)
		}
	})
}

func TestMetricsOfRequests(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		n.do("PUT", "/v1/kv/some/key", "v")
		n.do("GET", "/v1/kv/other%20key", "")
		n.do("GET", "/no/such/place", "")
		r := n.do("GET", "/metrics", "")
		for _, want := range []string{
			`northstar_http_request_duration_ms_count{method="PUT",route="/v1/kv/{key}",status="200"} 1`,
			`northstar_http_request_duration_ms_count{method="GET",route="/v1/kv/{key}",status="404"} 1`,
			`northstar_http_request_duration_ms_count{method="GET",route="unmatched",status="404"} 1`,
			`northstar_http_in_flight 1`,
		} {
			if !strings.Contains(r.body, want) {
				t.Errorf("/metrics has no %s", want)
			}
		}
	})
}
