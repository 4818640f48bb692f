package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// asProgram in the environment makes the test binary the program.
const asProgram = "NORTHSTARCTL_TEST_AS_PROGRAM"

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func TestMain(m *testing.M) {
	if os.Getenv(asRoot) != "" {
		runAsRoot()
	}
	if os.Getenv(asProgram) != "" {
		main()
	}
	for _, name := range []string{"ENDPOINTS", "TOKEN", "TOKEN_FILE", "CA", "CERT", "KEY", "CONTEXT"} {
		os.Unsetenv("NORTHSTAR_" + name)
	}
	config, err := os.MkdirTemp("", "northstarctl-config") // not the contexts of who runs the tests
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CONFIG_HOME", config)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(config)
		os.Exit(code)
	}))
}

// server is a fake node.
type server struct {
	*httptest.Server
	noLeader bool
	fail     error // error of all paths except /leader and /v1/cluster, if not nil
	requests []string
	bodies   []string
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

var started = time.Date(2026, 3, 1, 12, 30, 0, 250e6, time.UTC)

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == apiv1.PathLeader {
		if s.noLeader {
			problem(w, cluster.Errorf(cluster.CodeNoLeader, "none"))
			return
		}
		reply(w,
			apiv1.Leader{
				LeaderID: "n1", LeaderAddress: "127.0.0.1:1", RaftAddress: "127.0.0.1:2", Term: 4,
				ObservedBy: "n1",
			})
		return
	}
	body, _ := io.ReadAll(r.Body)
	if r.URL.Path != apiv1.PathCluster {
		s.requests = append(s.requests, r.Method+" "+r.URL.EscapedPath())
		s.bodies = append(s.bodies, string(body))
		if s.fail != nil {
			problem(w, s.fail)
			return
		}
	}
	zero, contact := int64(0), int64(12)
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/cluster":
		c := apiv1.Cluster{
			ClusterID: "c1", ClusterName: "demo", Term: 4, LeaderID: "n1", Revision: 1099511627790, AutoFailover: true,
			ObservedBy: "n1",
			Quorum:     apiv1.Quorum{Voters: 3, Needed: 2, Healthy: 2},
			State: apiv1.StateSize{
				Keys: 40, Sessions: 3, Bytes: 3 << 20, BytesLimit: 1 << 30, SessionsPerIdentity: 20000,
			},
			Members: []apiv1.Member{
				{
					ID: "n1", RaftAddress: "10.0.0.1:7700", Suffrage: "voter", Priority: 100, Eligible: true,
					Lifecycle: "active",
					Healthy:   true, State: "leader", LastContactMS: &zero, Version: "v1",
				},
				{
					ID: "n2", RaftAddress: "10.0.0.2:7700", Suffrage: "voter", Priority: 50, Eligible: true, Zone: "b",
					Lifecycle: "draining", Healthy: true, State: "follower", LastContactMS: &contact, LagEntries: 3,
					Version: "v1",
				},
				{
					ID: "n3", RaftAddress: "10.0.0.3:7700", Suffrage: "voter", Priority: 0, Lifecycle: "dead",
					Reasons: []string{
						"no contact", "lag",
					}, State: "unknown",
				},
			},
		}
		if s.noLeader {
			c.LeaderID = ""
		}
		reply(w, c)
	case "GET /status":
		reply(w, apiv1.Status{
			NodeID: "n2", ClusterID: "c1", ClusterName: "demo", State: "follower", Suffrage: "voter",
			Lifecycle: "active",
			Term:      4, LeaderID: "n1", LeaderAddress: "10.0.0.1:7701",
			LastContactMS: &contact, LastLogIndex: 9, CommitIndex: 8, AppliedIndex: 8, Revision: 5, Priority: 100,
			Eligible: true, Version: "v1", StartedAt: started, Warnings: []string{
				"zone differs from the configuration",
			},
			ElectionObstacle: "its disk is full",
			Silence:          &apiv1.Silence{ThresholdMS: 42.4, Reason: "1.5 times the longest gap of 2m0s, 28ms"},
		})
	case "GET /v1/kv/app/config":
		w.Header().Set(apiv1.HeaderRevision, "7")
		w.Write([]byte("line\x00two"))
	case "PUT /v1/kv/app/config":
		reply(w, apiv1.PutResult{Key: "app/config", Revision: 8})
	case "DELETE /v1/kv/app/config":
		reply(w, apiv1.DeleteResult{Key: "app/config", Revision: 9})
	case "GET /v1/kv":
		reply(w, apiv1.List{Revision: 9, Items: []apiv1.Item{
			{Key: "app/config", Value: []byte("on\x1b[31m\n"), Revision: 7, Version: 2},
			{Key: "app/ключ", Value: []byte{0xff, 0}, Revision: 8, Version: 1},
			{Key: "long", Value: bytes.Repeat([]byte("x"), 100), Revision: 9, Version: 1},
		}})
	case "GET /v1/watch":
		w.Header().Set("Content-Type", apiv1.TypeEventStream)
		fmt.Fprint(w,
			"id: 10\nevent: put\ndata: {\"key\":\"a\",\"value\":\"djE=\",\"revision\":10}\n\nid: 11\nevent: delete\ndata: "+
				"{\"key\":\"a\",\"revision\":11}\n\n")
		fmt.Fprint(w, "event: error\ndata: {\"code\":4015,\"status\":410,\"detail\":\"a backup was restored\"}\n\n")
	case "GET /admin/audit":
		reply(w, apiv1.Audit{Next: "9", Items: []apiv1.AuditRecord{
			{
				Seq: "8", When: started, Who: "ann", Role: "operator", From: "10.0.0.9:4000",
				What:   "POST /admin/transfer",
				Reason: "upgrade", Result: "ok", Status: 200, Class: "operators", DryRun: true,
			},
			{
				Seq: "9", When: started, Role: "observer", From: "10.0.0.9:4001", What: "PUT /v1/kv/a",
				Result: "ERR_FORBIDDEN",
				Status: 403, Code: 4403, Class: "clients", Delayed: true,
			},
		}})
	case "GET /v1/elections":
		reply(w, apiv1.Elections{Items: []apiv1.Election{{
			Term: 4, Trigger: "connection_lost", CandidateID: "n1", Result: "won", StartedAt: started, DurationMS: 3,
			LeaderlessMS: 9,
			Votes:        []apiv1.Vote{{VoterID: "n1", Granted: true}, {VoterID: "n2", Granted: true}, {VoterID: "n3"}},
		}}})
	case "GET /v1/events":
		ev := apiv1.Event{Seq: "p1-1", Node: "n1", Type: "election", At: started, Term: 4, Message: "n1 leads"}
		if strings.Contains(r.Header.Get("Accept"), "event-stream") {
			if r.Header.Get("Last-Event-ID") != "" {
				problem(w, cluster.Errorf(cluster.CodeForbidden, "enough"))
				return
			}
			data, _ := json.Marshal(ev)
			fmt.Fprintf(w, "id: p1-1\nevent: election\ndata: %s\n\n", data)
			ev.Seq, ev.At, ev.Message, ev.Fields = "p1-2", started.Add(time.Second), "n2 lost", map[string]any{
				"result": "lost", "trigger": "timeout", "candidate_id": "n2", "duration_ms": 12, "leaderless_ms": 160,
				"reason": "Raft's timer fired",
				"votes": []apiv1.Vote{
					{VoterID: "n2", Granted: true, Reason: "itself"}, {VoterID: "n3", Reason: "log behind: 41 < 44"},
				},
			}
			data, _ = json.Marshal(ev)
			fmt.Fprintf(w, "id: p1-2\nevent: election\ndata: %s\n\n", data)
			return
		}
		reply(w, apiv1.Events{Items: []apiv1.Event{ev}, Missing: []string{"n3"}})
	case "POST /admin/nodes/n1/drain":
		reply(w, apiv1.MemberResult{ID: "n1", Message: "done"}) // it stays leader
	case "POST /admin/nodes/n2/drain", "POST /admin/nodes/n2/undrain", "POST /admin/members", "PATCH /admin/members/n4",
		"DELETE /admin/members/n4":
		id := "n4"
		if strings.HasPrefix(r.URL.Path, "/admin/nodes/") {
			id = "n2"
		}
		if strings.Contains(string(body), `"dry_run":true`) {
			reply(w, memberPlan(r.Method, id, string(body)))
			return
		}
		reply(w, apiv1.MemberResult{ID: id, Message: "done"})
	case "GET /admin/auto-failover", "POST /admin/auto-failover":
		until := started.Add(time.Hour)
		reply(w, apiv1.AutoFailoverState{PausedUntil: &until, Reason: "upgrade", Operator: "anna"})
	case "GET /admin/splitbrain", "POST /admin/splitbrain/check":
		reply(w, apiv1.SplitBrain{
			Verdict: "stale_leader", CheckedAt: started, CheckedBy: "n1", Refusing: true,
			Findings: []apiv1.SplitBrainFinding{{
				Verdict: "stale_leader", Detail: "node n1 leads in term 4, but a majority follows node n2 in term 5",
				Nodes: []string{
					"n1",
				}, Refusing: true,
			}},
			Claims: []apiv1.SplitBrainClaim{
				{
					NodeID: "n1", Source: "self", Address: "10.0.0.1:7700", ClusterID: "c1", Generation: 1, Term: 4,
					Leads:    true,
					LeaderID: "n1", At: started,
				},
				{
					NodeID: "n2", Source: "peer", Address: "10.0.0.2:7700", ClusterID: "c1", Generation: 1, Term: 5,
					Leads: true, LeaderID: "n2", At: started.Add(
						-12 * time.Millisecond,
					),
				},
				{
					NodeID: "n3", Source: "peer", Address: "10.0.0.3:7700", ClusterID: "c2", Generation: 1,
					At: started.Add(
						-time.Second,
					),
				},
				{NodeID: "n3", Source: "http", Address: "10.0.0.3:7701", Error: "no answer", At: started},
			},
		})
	case "POST /admin/transfer", "POST /admin/failover", "POST /admin/failover/emergency":
		if strings.Contains(string(body), `"dry_run":true`) {
			reply(w, examplePlan(r.URL.Path))
			return
		}
		reply(w, apiv1.TransferResult{Success: true, OldLeaderID: "n1", NewLeaderID: "n2", Term: 5, DurationMS: 6})
	case "POST /admin/recover":
		if strings.Contains(string(body), `"dry_run":true`) {
			reply(w, recoveryPlan())
			return
		}
		reply(w, apiv1.RecoverResult{
			RecoveredID: "n2", ClusterID: "c-1", Generation: 2, RecoveryID: "r-1", Term: 1000005, Revision: 1 << 40,
			LostIDs: []string{
				"n3", "n4",
			},
			Survivors: []apiv1.Survivor{{
				ID: "n2", LastTerm: 4, LastIndex: 90, Outcome: "recovered",
			}, {ID: "n1", LastTerm: 4, LastIndex: 88, Outcome: "set aside"}},
			Warnings: []string{"lost: much", "nodes of generation 1 can still form a quorum of their own"},
		})
	default:
		if s.serveSessions(w, r, string(body)) {
			return
		}
		e := cluster.Errorf(cluster.CodeBadRequest, "no such key")
		e.Status = http.StatusNotFound
		problem(w, e)
	}
}

// examplePlan is possible except for an emergency failover.
func examplePlan(path string) apiv1.Plan {
	gap, worst := int64(5), int64(12)
	p := apiv1.Plan{
		DryRun: true, PlanID: "transfer.4.n2.0123456789abcdef", Action: "transfer", Term: 4, LeaderID: "n1",
		TargetID: "n2",
		How:      "transfer",
		Summary:  "node n1 transfers leadership to node n2", Possible: true, ExpectedGapMS: &gap, WorstGapMS: &worst,
		GapSamples: 9, Risk: "low",
		Warnings: []string{"node n3 has priority 200, node n2 100: it takes leadership over again"},
		Candidates: []apiv1.TargetCandidate{
			{ID: "n2", Eligible: true, Voter: true, Priority: 100, LagEntries: 3},
			{ID: "n3", Voter: true, Priority: 200, Reason: "node n3 is not healthy: silent for 3s"},
		},
	}
	if path == apiv1.PathEmergency {
		p.Possible, p.Summary, p.How, p.ExpectedGapMS, p.WorstGapMS, p.GapSamples = false,
			"nothing: node n2 gets no majority", "election", nil, nil, 0
		p.Refusal = &apiv1.PlannedError{
			Code: 4006, Name: "ERR_VOTE_DENIED", Status: 409,
			Detail: "node n2 gets no majority", Votes: []apiv1.Vote{
				{
					VoterID: "n1", Reason: "log behind: 41 < 44",
				}, {VoterID: "n2", Granted: true, Reason: "itself"}, {VoterID: "n3", Reason: "log behind: 41 < 44"},
			},
		}
	}
	return p
}

// memberPlan is a plan for a membership change; a demotion is rejected.
func memberPlan(method, id, body string) apiv1.Plan {
	p := apiv1.Plan{
		DryRun: true, PlanID: "member.4." +
			id + ".0123456789abcdef", Action: "member_set", Term: 4, LeaderID: "n1", TargetID: id,
		Summary: "node " + id + " is changed by " + method, Possible: true, Risk: "low",
	}
	if strings.Contains(body, "nonvoter") {
		p.Possible, p.Risk, p.Summary = false, "high", "nothing: too few voters"
		p.Refusal = &apiv1.PlannedError{
			Code: 4016, Name: "ERR_QUORUM_AT_RISK", Status: 409,
			Detail: "of the resulting 2 voters, 2 are needed and 1 are in contact (silent: n3)",
		}
	}
	return p
}

func recoveryPlan() apiv1.Plan {
	return apiv1.Plan{
		DryRun: true, PlanID: "recover.4.n2.0123456789abcdef", Action: "recover", Term: 4, TargetID: "n2",
		Possible: true,
		Risk:     "high",
		Summary:  "node n2 becomes the only voter of generation 2", Warnings: []string{"lost: much"},
		Candidates: []apiv1.TargetCandidate{{
			ID: "n2", Eligible: true, Voter: true, Priority: 100,
		}, {ID: "n1", Voter: true, Priority: 100, LagEntries: 2, Reason: "its log ends earlier"}},
		Survivors: []apiv1.Survivor{
			{ID: "n2", Voter: true, LastTerm: 4, LastIndex: 90}, {ID: "n1", Voter: true, LastTerm: 4, LastIndex: 88},
		},
	}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", apiv1.TypeJSON)
	json.NewEncoder(w).Encode(v)
}

func problem(w http.ResponseWriter, err error) {
	var e *cluster.Error
	errors.As(err, &e)
	w.Header().Set("Content-Type", apiv1.TypeProblem)
	w.WriteHeader(e.HTTPStatus())
	p := apiv1.Problem{
		Status: e.HTTPStatus(), Detail: e.Detail, Code: int(e.Code), Name: e.Code.Name(), Retryable: e.Retryable(),
	}
	for _, v := range e.Votes {
		p.Votes = append(p.Votes, apiv1.Vote{VoterID: string(v.Voter), Granted: v.Granted, Reason: v.Reason})
	}
	json.NewEncoder(w).Encode(p)
}

// ctl runs the program against s.
func ctl(t *testing.T, s *server, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if s != nil {
		args = append([]string{"--endpoints", s.URL, "--timeout", "900ms"}, args...)
	}
	var out, err bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"status":              {"status"},
		"status_node":         nil, // below
		"leader":              {"leader"},
		"leader_json":         {"leader", "-o", "json"},
		"members":             {"members", "list"},
		"members_json":        {"members", "list", "-o", "json"},
		"transfer":            {"transfer", "--to", "n2"},
		"transfer_plan":       {"transfer", "--to", "n2", "--dry-run"},
		"transfer_plan_json":  {"transfer", "--dry-run", "-o", "json"},
		"failover":            {"failover"},
		"failover_plan":       {"failover", "--dry-run"},
		"emergency_plan":      {"failover", "--emergency", "--to", "n2", "--dry-run"},
		"recover":             {"recover", "--survivors", "n1,n2", "--confirm", "c-1", "--reason", "drill", "--yes"},
		"recover_plan":        {"recover", "--survivors", "n1,n2", "--confirm", "c-1", "--dry-run"},
		"auto_failover":       {"auto-failover", "status"},
		"splitbrain":          {"splitbrain", "--check", "--reason", "drill"},
		"elections":           {"elections", "--votes"},
		"elections_show":      {"elections", "show"},
		"elections_show_json": {"elections", "show", "4", "-o", "json"},
		"why":                 {"why"},
		"why_node":            {"why", "n3"},
		"why_code":            {"why", "ERR_FORBIDDEN"},
		"why_refused":         {"why", "refused", "--limit", "2"},
		"sessions":            {"sessions"},
		"sessions_list":       {"sessions", "list", "--prefix", "work"},
		"sessions_show":       {"sessions", "show", "s1"},
		"sessions_show_yaml":  {"sessions", "show", "s1", "-o", "yaml"},
		"sessions_end":        {"sessions", "end", "s1", "s2", "--yes"},
		"sessions_end_all":    {"sessions", "end", "--identity", "client alice", "--yes"},
		"role_transfer":       {"role", "transfer", "job", "--to", "worker-b", "--reason", "drill"},
		"role_evict_plan":     {"role", "evict", "job", "--dry-run"},
		"role_evict":          {"role", "evict", "job"},
		"nodes":               {"nodes", "--status", "active"},
		"nodes_show":          {"nodes", "show", "web-1"},
		"nodes_counts":        {"nodes", "counts"},
		"nodes_drain":         {"nodes", "drain", "web-1"},
		"nodes_rm":            {"nodes", "rm", "web-1"},
		"nodes_watch":         {"nodes", "watch", "--since", "1"},
		"nodes_watch_yaml":    {"nodes", "watch", "--since", "1", "-o", "yaml"},
		"members_yaml":        {"members", "ls", "-o", "yaml"},
		"elections_follow":    {"elections", "--follow", "--votes"},
		"audit":               {"audit", "--who", "ann", "--class", "operators", "--since", "7", "--limit", "5"},
		"events":              {"events"},
		"events_follow":       {"events", "--follow"},
		"kv_get":              {"kv", "get", "app/config"},
		"kv_get_json":         {"kv", "get", "app/config", "-o", "json"},
		"kv_put":              {"kv", "put", "app/config", "v"},
		"kv_del":              {"kv", "del", "app/config"},
		"kv_ls":               {"kv", "ls"},
		"kv_ls_json":          {"kv", "ls", "-o", "json"},
		"kv_ls_json_one":      {"kv", "ls", "--limit", "1", "-o", "json"},
		"kv_watch":            {"kv", "watch", "--since", "9"},
		"kv_watch_json":       {"kv", "watch", "--since", "9", "-o", "json"},
		"members_add":         {"members", "add", "n4", "--raft", "h:1", "--http", "h:2"},
		"members_add_plan":    {"members", "add", "n4", "--raft", "h:1", "--http", "h:2", "--dry-run"},
		"members_set_plan":    {"members", "set", "n4", "--priority", "7", "--readmit", "--dry-run"}, // no request
		"members_del_plan":    {"members", "remove", "n4", "--dry-run"},
		"demote_plan":         {"members", "demote", "n4", "--dry-run"},
		"demote_plan_json":    {"members", "demote", "n4", "--dry-run", "-o", "json"},
		"drain":               {"drain", "n2", "--wait", "--reason", "upgrade"},
		"drain_stays":         {"drain", "n1", "--wait", "--for", "200ms"},
		"drain_json":          {"drain", "n2", "-o", "json"},
		"drain_plan":          {"drain", "n2", "--wait", "--dry-run"},
		"undrain":             {"undrain", "n2"},
		"undrain_plan":        {"undrain", "n2", "--dry-run"},
		"transfer_json":       {"transfer", "-o", "json"},
		"recover_plan_json":   {"recover", "--survivors", "n1,n2", "--confirm", "c-1", "--dry-run", "-o", "json"},
		"help":                {"--help"},
		"help_kv_put":         {"kv", "put", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			if name == "status_node" {
				args = []string{"status", s.URL}
			}
			code, stdout, stderr := ctl(t, s, "", args...)
			got := fmt.Sprintf("exit %d\n-- stdout\n%s-- stderr\n%s", code, stdout, stderr)
			got = strings.ReplaceAll(got, s.URL, "http://node")
			file := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// The output is one JSON document, also without items.
func TestJSONOutput_IsOneDocument(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		var out bytes.Buffer
		a := &app{stdout: &out}
		for i := range n {
			if err := a.printItem(i, keyValue{Key: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.closeArray(n); err != nil {
			t.Fatal(err)
		}
		var items []keyValue
		if err := json.Unmarshal(out.Bytes(), &items); err != nil || len(items) != n || items == nil {
			t.Errorf("%d items: %q (%v)", n, out.String(), err)
		}
	}
}

// A list of which a later page fails is not valid JSON: a pipe that ignores the exit code does not take it for all.
func TestKVLs_LaterPageFails(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == apiv1.PathKV && r.URL.Query().Get("after") == "" {
			reply(w, apiv1.List{Items: []apiv1.Item{{Key: "a"}}, Next: "a"})
			return
		}
		problem(w, cluster.Errorf(cluster.CodeForbidden, "the token was removed"))
	})
	code, stdout, stderr := ctl(t, s, "", "kv", "ls", "-o", "json")
	if code != exitRefused || !strings.Contains(stdout, `"key":"a"`) || json.Valid([]byte(stdout)) {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}

// A transfer to a zone leaves the choice of the node to the cluster.
func TestTransfer_ToZone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	code, _, stderr := ctl(t, s, "", "transfer", "--to-zone", "eu-1")
	if body := strings.Join(s.bodies, ""); code != exitDone || !strings.Contains(body, `"target_zone":"eu-1"`) ||
		strings.Contains(body, "target_leader_id") {
		t.Errorf("exit %d, request %s: %s", code, body, stderr)
	}
}

// Without a leader, a transfer fails before its timeout.
func TestTransfer_NoLeader(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.noLeader, s.fail = true, cluster.Errorf(cluster.CodeNoLeader, "none")
	start := time.Now()
	if code, _, stderr := ctl(t, s, "", "transfer", "--wait", "60s"); code != exitNoLeader ||
		time.Since(start) > 30*time.Second {
		t.Errorf("exit %d after %v: %s", code, time.Since(start), stderr)
	}
}

// withoutProgress returns what a command has printed beside the line of a call that takes long, as on a busy machine.
func withoutProgress(stderr string) (rest string) {
	for line := range strings.Lines(stderr) {
		if !strings.HasSuffix(line, " …\n") {
			rest += line
		}
	}
	return rest
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	noRetry := cluster.Errorf(cluster.CodeReadOnly, "disk full")
	noRetry.NoRetry = true
	for name, tc := range map[string]struct {
		fail error
		args string
		want int
	}{
		"done":      {nil, "kv put app/config v", exitDone},
		"failed":    {noRetry, "kv put app/config v", exitFailed},
		"arguments": {cluster.Errorf(cluster.CodeBadRequest, "since: not a time"), "audit --since zzz", exitUsage},
		"not found": {nil, "kv get nothing", exitMissing},
		"no session": {
			cluster.Errorf(cluster.CodeSessionEnded, "it has ended"), "sessions show s9", exitMissing,
		},
		"no election": {nil, "elections show 99", exitMissing},
		"no member":   {nil, "why n9", exitMissing},
		"condition": {
			cluster.Errorf(cluster.CodeConditionFailed, "x"), "kv put app/config v --if-revision 3", exitCondition,
		},
		"fenced": {
			cluster.Errorf(cluster.CodeFenced, "token 3"), "kv put app/config v --fence job=2",
			exitCondition,
		},
		"role held":        {cluster.Errorf(cluster.CodeRoleHeld, "by a"), "role campaign job --session s1", exitCondition},
		"no question":      {nil, "why what?", exitUsage},
		"no sessions":      {nil, "sessions end", exitUsage},
		"both":             {nil, "sessions end s1 --prefix a", exitUsage},
		"no candidate":     {nil, "role transfer job", exitUsage},
		"no help":          {nil, "help frobnicate", exitUsage},
		"bad interval":     {nil, "status --watch --interval 1ms", exitUsage},
		"no leader":        {cluster.Errorf(cluster.CodeNoLeader, "none"), "kv get app/config", exitNoLeader},
		"unauthenticated":  {cluster.Errorf(cluster.CodeUnauthenticated, "no token"), "kv get app/config", exitRefused},
		"forbidden":        {cluster.Errorf(cluster.CodeForbidden, "observer"), "members demote n4", exitRefused},
		"unknown":          {cluster.Errorf(cluster.CodeOutcomeUnknown, "lost"), "kv put app/config v", exitUnknown},
		"unknown command":  {nil, "frobnicate", exitUsage},
		"unknown flag":     {nil, "leader --frobnicate", exitUsage},
		"missing argument": {nil, "kv get", exitUsage},
		"bad output":       {nil, "leader -o xml", exitUsage},
		"bad event type":   {nil, "events --type weather", exitUsage},
		"bad fence":        {nil, "kv put a b --fence role", exitUsage},
		"bad endpoint":     {nil, "leader --endpoints ftp://x", exitUsage},
		"bad wait":         {nil, "transfer --wait 2m", exitUsage},
		"long wait":        {nil, "role campaign job --wait 6m", exitUsage},
		"short TTL":        {nil, "role campaign job --ttl 100ms", exitUsage},
		"bad delay":        {nil, "role campaign job --takeover-delay=-1s", exitUsage},
		"bad target":       {nil, "failover --to N2", exitUsage},
		"empty target":     {nil, "transfer --to=", exitUsage}, // a variable of a script that is not set
		"bare emergency":   {nil, "failover --emergency --reason r", exitUsage},
		"no reason":        {nil, "failover --emergency --to n2", exitUsage},
		"refused plan":     {nil, "failover --emergency --to n2 --dry-run", exitFailed},
		"denied votes":     {cluster.Errorf(cluster.CodeVoteDenied, "no majority"), "failover --to n2", exitFailed},
		"stale plan": {
			cluster.Errorf(cluster.CodeTermStale, "term 5"), "transfer --plan transfer.4.n2.0123456789abcdef",
			exitFailed,
		},
		"failover unknown": {cluster.Errorf(cluster.CodeOutcomeUnknown, "lost"), "failover", exitUnknown},
		"bad pause":        {nil, "auto-failover pause --for -1s", exitUsage},
		"reason of none":   {nil, "splitbrain --reason x", exitUsage},
		"split brain":      {nil, "splitbrain", exitFailed},
		"bad timeout":      {nil, "leader --timeout 0s", exitUsage},
		"bad node ID":      {nil, "members remove N4", exitUsage},
		"nothing to set":   {nil, "members set n4", exitUsage},
		"bad role":         {nil, "token new --name a --role god", exitUsage},
		"no CA file":       {nil, "leader --ca /does/not/exist", exitUsage},
		"key without cert": {nil, "leader --key /does/not/exist", exitUsage},
	} {
		s := newServer(t)
		s.fail = tc.fail
		code, _, stderr := ctl(t, s, "", strings.Fields(tc.args)...)
		if code != tc.want {
			t.Errorf("%s: exit %d, want %d (%s)", name, code, tc.want, stderr)
		}
		said := withoutProgress(stderr)
		if code != exitDone && (strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "northstarctl: ")) {
			t.Errorf("%s: stderr is not one line: %q", name, stderr)
		}
	}
	s := newServer(t)
	s.noLeader = true
	for _, cmd := range []string{"status", "leader"} {
		if code, stdout, _ := ctl(t, s, "", cmd); code != exitNoLeader ||
			(cmd == "status" && !strings.Contains(stdout, "n3")) {
			t.Errorf("%s without a leader: exit %d, %q", cmd, code, stdout)
		}
	}
}

func TestKVPut_ReadsValue(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "v")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"argument":    {"argument"},
		"stdin\x00":   nil,
		"stdin\x00 ":  {"-"},
		"from a file": {"@" + file},
		"":            {""},
	} {
		s := newServer(t)
		code, _, stderr := ctl(t, s, want, append([]string{"kv", "put", "app/config"}, args...)...)
		if code != 0 || len(s.bodies) == 0 || s.bodies[len(s.bodies)-1] != want {
			t.Errorf("put %q: exit %d, bodies %q, %s", args, code, s.bodies, stderr)
		}
	}
	s := newServer(t)
	if code, _, _ := ctl(t, s, strings.Repeat("x", apiv1.MaxValueBytes+1), "kv", "put",
		"app/config"); code != exitUsage || len(s.requests) != 0 {
		t.Errorf("value too large: exit %d, requests %q", code, s.requests)
	}
}

// The responses of the voters are shown with the error.
func TestFailover_ShowsVotes(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	denied := cluster.Errorf(cluster.CodeVoteDenied, "node n2 gets no majority")
	denied.Votes = []cluster.Vote{
		{Voter: "n2", Granted: true, Reason: "itself"}, {Voter: "n3", Reason: "log behind: 41 < 44"},
	}
	s.fail = denied
	if code, stdout, stderr := ctl(t, s, "", "failover", "--to", "n2"); code != exitFailed ||
		!strings.Contains(stdout, "n3     no       log behind: 41 < 44") ||
		!strings.Contains(stderr, "gets no majority") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if _, stdout, _ := ctl(t, s, "", "failover", "--to", "n2", "-o", "json"); !json.Valid([]byte(stdout)) ||
		!strings.Contains(stdout, `"log behind: 41 < 44"`) {
		t.Errorf("%s", stdout)
	}
}

// Operations that can lose data need a confirmation.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{
		"members", "remove", "n4",
	}, {"members", "set", "n4", "--readmit"}, {"failover", "--emergency", "--to", "n2", "--reason", "why"}} {
		for answer, want := range map[string]int{
			"": exitFailed, "n\n": exitFailed, "\n": exitFailed, "y\n": exitDone, "YES": exitDone,
		} {
			s := newServer(t)
			code, _, stderr := ctl(t, s, answer, args...)
			if code != want || (len(s.requests) == 1) != (want == exitDone) || !strings.Contains(stderr, "[y/N]") {
				t.Errorf("%q answered %q: exit %d, want %d, requests %q", args, answer, code, want, s.requests)
			}
		}
		s := newServer(t)
		if code, _, stderr := ctl(t, s, "", append(args, "--yes")...); code != exitDone ||
			strings.Contains(stderr, "[y/N]") {
			t.Errorf("%q --yes: exit %d, %q", args, code, stderr)
		}
	}
}

// cancelWriter ends a context with the first output.
type cancelWriter struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (w *cancelWriter) Write(p []byte) (int, error) {
	w.cancel()
	return w.Buffer.Write(p)
}

// Ctrl-C ends a command that waits for an answer or a value.
func TestInterrupt_WhileWaitingForInput(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"members remove n4", "kv put app/config", "kv put app/config @" + pipe} {
		s := newServer(t)
		stdin, typing := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		stderr := &cancelWriter{cancel: cancel}
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, append(strings.Fields(args), "--endpoints", s.URL), stdin, io.Discard, stderr)
		}()
		if strings.HasPrefix(args, "kv") { // it asks nothing
			cancel()
		}
		select {
		case code := <-ended:
			if code != exitFailed || len(s.requests) > 0 {
				t.Errorf("%s: exit %d, %q, %s", args, code, s.requests, stderr.String())
			}
		case <-time.After(testTimeout):
			t.Errorf("%s: it goes on", args)
		}
		typing.Close()
	}
	for { // the goroutine that waits for a writer ends
		writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			err = writer.Close()
		}
		if errors.Is(err, syscall.ENXIO) { // it has not come so far
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A command whose output is lost fails.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"why", "why ERR_FENCED", "elections show", "status", "status -o json", "status -o yaml", "kv ls -o json",
		"kv get app/config", "recover --survivors n1 --confirm c --yes", "splitbrain", "version", "completion bash",
		"transfer", "events --follow", "role show job",
	} {
		s := newServer(t)
		var stderr bytes.Buffer
		if code := run(t.Context(), append(strings.Fields(args), "--endpoints", s.URL), strings.NewReader(""), full{},
			&stderr); code != exitFailed {
			t.Errorf("%s: exit %d, %s", args, code, stderr.String())
		}
	}
}

// A recovery shows its plan with the question, and runs exactly that plan.
func TestRecover_ConfirmsPlan(t *testing.T) {
	t.Parallel()
	args := strings.Fields("recover --survivors n1,n2 --confirm c-1 --reason drill")
	for answer, requests := range map[string]int{"n\n": 1, "y\n": 2} {
		s := newServer(t)
		code, _, stderr := ctl(t, s, answer, args...)
		if (code == exitDone) != (requests == 2) || len(s.requests) != requests ||
			!strings.Contains(stderr, "node n2 becomes the only voter") || !strings.Contains(stderr, "lost: much") {
			t.Fatalf("answered %q: exit %d, %q, %q", answer, code, s.requests, stderr)
		}
		if want := `{"survivors":["n1","n2"],"confirm":"c-1","force":true,"reason":"drill","plan_id":"recover.4.n2.0123456789abcdef"}`; requests == 2 &&
			s.bodies[1] != want {
			t.Errorf("got  %s\nwant %s", s.bodies[1], want)
		}
	}
	s := newServer(t)
	code, _, stderr := ctl(t, s, "", "recover", "--survivors", "n1", "--confirm", "c-1", "--yes")
	if code != exitDone ||
		len(s.bodies) != 2 || !strings.Contains(s.bodies[1], `"reason":"northstarctl recover, without --reason"`) {
		t.Errorf("without a reason: exit %d, %q, %s", code, s.bodies, stderr)
	}
}

func TestMembers_Requests(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"members set n4 --priority 0 --no-eligible --zone b": `PATCH /admin/members/n4 {"priority":0,"eligible":false,"zone":"b"}`,
		"members set n4 --eligible --raft h:1 --http h:2":    `PATCH /admin/members/n4 {"eligible":true,"raft_address":"h:1","http_address":"h:2"}`,
		"members promote n4 --reason why":                    `PATCH /admin/members/n4 {"suffrage":"voter","reason":"why"}`,
		"members demote n4":                                  `PATCH /admin/members/n4 {"suffrage":"nonvoter"}`,
		"drain n2 --reason upgrade":                          `POST /admin/nodes/n2/drain {"reason":"upgrade"}`,
		"undrain n2":                                         `POST /admin/nodes/n2/undrain {}`,
		"members remove n4 --yes":                            `DELETE /admin/members/n4 {}`,
		"members add n4 --raft h:1 --http h:2 --non-voter":   `POST /admin/members {"id":"n4","raft_address":"h:1","http_address":"h:2","suffrage":"nonvoter"}`,
		"auto-failover pause --for 1h --reason upgrade":      `POST /admin/auto-failover {"enabled":false,"ttl_ms":3600000,"reason":"upgrade"}`,
		"auto-failover resume":                               `POST /admin/auto-failover {"enabled":true}`,
		"failover --to n2 --reason hangs":                    `POST /admin/failover {"target_leader_id":"n2","reason":"hangs"}`,
		"failover --emergency --to n2 --reason why --yes":    `POST /admin/failover/emergency {"target_leader_id":"n2","force":true,"reason":"why"}`,
		"failover --plan failover.4.n2.00":                   `POST /admin/failover {"plan_id":"failover.4.n2.00"}`,
		"transfer --to n2":                                   `POST /admin/transfer {"target_leader_id":"n2","timeout_ms":30000}`,
	} {
		s := newServer(t)
		code, _, stderr := ctl(t, s, "", strings.Fields(args)...)
		if code != exitDone || len(s.requests) != 1 || s.requests[0]+" "+s.bodies[0] != want {
			t.Errorf("%s: exit %d %s\n got %q %q\nwant %s", args, code, stderr, s.requests, s.bodies, want)
		}
	}
}

func TestWatch_InterruptExitsCleanly(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	block := make(chan struct{})
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", apiv1.TypeEventStream)
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		if r.URL.Path == apiv1.PathWatch {
			close(block)
			<-r.Context().Done()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-block; cancel() }()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"kv", "watch", "--since", "5", "--endpoints", s.URL}, strings.NewReader(""), &out,
		&errs); code != exitDone {
		t.Errorf("exit %d, %s", code, errs.String())
	}
}

func TestProgress_AppearsAfterOneSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]string{900 * time.Millisecond: "", 5 * time.Second: "saving …\n"} {
			var stderr bytes.Buffer
			a := &app{stderr: &stderr}
			done := a.progress("saving")
			time.Sleep(took)
			done()
			done()
			if stderr.String() != want {
				t.Errorf("after %v: %q, want %q", took, stderr.String(), want)
			}
		}
	})
}
