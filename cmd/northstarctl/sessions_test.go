package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// serveSessions serves sessions, the roles of them and application nodes. It reports whether the path is one of those.
func (s *server) serveSessions(w http.ResponseWriter, r *http.Request, body string) bool {
	later := started.Add(10 * time.Second)
	session := func(id, name string) apiv1.Session {
		return apiv1.Session{
			SessionID: id, Name: name, Identity: "client alice", TTLMS: 10000, RemainingMS: 7000, CreatedAt: started,
			Roles: []string{"job"}, Keys: 2, Meta: map[string]string{"zone": "b", "host": "h1"},
			RevokedRoles: []apiv1.Revocation{{SessionID: id, Role: "old", Token: 3}},
		}
	}
	node := apiv1.Node{
		ID: "web-1", SessionID: "s1", Hostname: "h1", Address: "10.0.0.5", HTTPPort: 8080, Roles: []string{"web"},
		Version: "1.4.0", Status: "active", Load: &apiv1.Load{Connections: 7, CPU: 0.5, Memory: 0.1},
		StartedAt: &started, LastHeartbeatAt: &started, RegisteredAt: started, ChangedAt: started, Revision: 12,
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/sessions":
		if r.URL.Query().Get("after") == "" {
			reply(w, apiv1.Sessions{Items: []apiv1.Session{session("s1", "worker-a")}, Next: "s1"})
		} else {
			reply(w, apiv1.Sessions{Items: []apiv1.Session{session("s2", "other")}})
		}
	case "GET /v1/sessions/s1":
		reply(w, session("s1", "worker-a"))
	case "DELETE /v1/sessions/s1", "DELETE /v1/sessions/s2":
		reply(w, apiv1.SessionEnded{SessionID: r.URL.Path[len("/v1/sessions/"):]})
	case "DELETE /v1/sessions/gone":
		problem(w, cluster.Errorf(cluster.CodeSessionEnded, "it has ended"))
	case "DELETE /v1/sessions/other":
		problem(w, cluster.Errorf(cluster.CodeForbidden, "not yours"))
	case "DELETE /v1/sessions":
		more := len(s.requests) == 1
		reply(w, apiv1.SessionsEnded{SessionIDs: []string{fmt.Sprint("s", len(s.requests))}, More: more})
	case "POST /v1/sessions":
		reply(w, apiv1.SessionCreated{SessionID: "s1", TTLMS: 10000})
	case "GET /v1/roles/job":
		reply(w, apiv1.Role{
			Role: "job", Holder: "worker-a", SessionID: "s1", Token: 7, AcquiredAt: &started, LeaseUntil: &later,
			Candidates: []apiv1.RoleCandidate{{Name: "worker-b", SessionID: "s2", Eligible: true}},
		})
	case "POST /admin/roles/job/transfer":
		reply(w, apiv1.RoleChange{
			Role: "job", Message: `role job went from "worker-a" to "worker-b"`, NewHolder: "worker-b", Token: 8,
		})
	case "DELETE /admin/roles/job":
		if strings.Contains(body, `"dry_run":true`) {
			reply(w, apiv1.Plan{
				DryRun: true, PlanID: "role_evict.4.job.00", Action: "role_evict", Term: 4, LeaderID: "n1",
				Possible: true,
				Summary:  `role job goes from "worker-a" to "worker-b"`, Risk: "low",
				Affected: apiv1.Affected{Roles: 1, Sessions: 1},
			})
			return true
		}
		reply(w, apiv1.RoleChange{Role: "job", Message: `role job was revoked from "worker-a"`})
	case "GET /v1/nodes":
		reply(w, apiv1.Nodes{Items: []apiv1.Node{node}})
	case "GET /v1/nodes/counts":
		reply(w, apiv1.Counts{Active: 1, Dead: 2, Total: 3})
	case "GET /v1/nodes/web-1":
		reply(w, node)
	case "PUT /v1/nodes/web-1":
		var put apiv1.NodePut
		_ = json.Unmarshal([]byte(body), &put) // of the program under test
		node.Status = put.Status
		reply(w, node)
	case "DELETE /v1/nodes/web-1":
		reply(w, apiv1.NodeRemoved{ID: "web-1"})
	case "GET /v1/nodes/watch":
		w.Header().Set("Content-Type", apiv1.TypeEventStream)
		data, _ := json.Marshal(node)
		fmt.Fprintf(w, "id: 12\nevent: put\ndata: %s\n\n", data)
		fmt.Fprint(w, "id: 13\nevent: delete\ndata: {\"id\":\"web-1\",\"revision\":13}\n\n")
		fmt.Fprint(w, "event: error\ndata: {\"code\":4015,\"status\":410,\"detail\":\"a backup was restored\"}\n\n")
	default:
		return false
	}
	return true
}

func TestSessionsAndRoles_Requests(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"role transfer job --to worker-b --reason r": `POST /admin/roles/job/transfer {"to_session_id":"s2","reason":"r"}`,
		"role transfer job --to s7 --plan p":         `POST /admin/roles/job/transfer {"to_session_id":"s7","plan_id":"p"}`,
		"role transfer free --to s7":                 `POST /admin/roles/free/transfer {"to_session_id":"s7"}`,
		"role transfer job --to s2 --dry-run":        `POST /admin/roles/job/transfer {"to_session_id":"s2","dry_run":true}`,
		"sessions end s1 --reason r --yes":           `DELETE /v1/sessions/s1 {"reason":"r"}`,
		"sessions end s1 --dry-run":                  `DELETE /v1/sessions/s1 {"dry_run":true}`,
		"sessions end --prefix a --dry-run":          `DELETE /v1/sessions {"dry_run":true}`,
		"role campaign r --session s1 --required":    `POST /v1/roles/r/campaign {"session_id":"s1","required":true}`,
		"role evict job --reason r":                  `DELETE /admin/roles/job {"reason":"r"}`,
		"nodes drain web-1":                          `PUT /v1/nodes/web-1 {"session_id":"s1","hostname":"h1","address":"10.0.0.5","http_port":8080,"roles":["web"],"version":"1.4.0","status":"draining","load":{"connections":7,"jobs":0,"cpu":0.5,"memory":0.1}}`,
		"auto-failover pause --for 1m --dry-run":     `POST /admin/auto-failover {"enabled":false,"ttl_ms":60000,"dry_run":true}`,
		"auto-failover resume --plan p":              `POST /admin/auto-failover {"enabled":true,"plan_id":"p"}`,
	} {
		s := newServer(t)
		_, _, stderr := ctl(t, s, "", strings.Fields(args)...)
		if n := len(s.requests) - 1; n < 0 || s.requests[n]+" "+s.bodies[n] != want {
			t.Errorf("%s: %s\n got %q %q\nwant %s", args, stderr, s.requests, s.bodies, want)
		}
	}
}

// A session that has ended keeps no other from being ended. What has ended is printed in any case.
func TestSessionsEnd_Some(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		code          int
		ended, stderr string
	}{
		"s1 gone s2":  {exitMissing, `["s1","s2"]`, "end session gone: ERR_SESSION_ENDED: it has ended"},
		"gone":        {exitMissing, "", "end session gone: ERR_SESSION_ENDED: it has ended"},
		"s1 other s2": {exitRefused, `["s1"]`, "end session other: ERR_FORBIDDEN: not yours"},
	} {
		s := newServer(t)
		code, stdout, stderr := ctl(t, s, "", append([]string{"sessions", "end", "--yes", "-o", "json"},
			strings.Fields(args)...)...)
		var out apiv1.SessionsEnded
		_ = json.Unmarshal([]byte(stdout), &out) // no output: nothing has ended
		ended, _ := json.Marshal(out.SessionIDs)
		if out.SessionIDs == nil {
			ended = nil
		}
		if code != want.code || string(ended) != want.ended ||
			withoutProgress(stderr) != "northstarctl: "+want.stderr+"\n" {
			t.Errorf("%s: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
}

// Two candidates with the same name are not told apart by it.
func TestCandidateSession(t *testing.T) {
	t.Parallel()
	role := apiv1.Role{Candidates: []apiv1.RoleCandidate{
		{Name: "a", SessionID: "s1"},
		{Name: "b", SessionID: "s2"},
		{Name: "b", SessionID: "s3"},
		{Name: "s1", SessionID: "s4"},
	}}
	for to, want := range map[string]string{"a": "s1", "b": "b", "s3": "s3", "s1": "s1", "x": "x"} {
		if got := candidateSession(role, to); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
}

// A holder or a write that is refused has an exit code of its own, a lost quorum is said in words.
func TestStatus_QuorumInWords(t *testing.T) {
	t.Parallel()
	for want, q := range map[string]apiv1.Quorum{
		"ok: 3 of 3 voters healthy, 1 may fail":                                                     {Voters: 3, Needed: 2, Healthy: 3, Tolerates: 1},
		"at risk: 2 of 3 voters healthy, 2 needed: none may fail":                                   {Voters: 3, Needed: 2, Healthy: 2},
		"ok: 1 of 1 voters healthy, none may fail":                                                  {Voters: 1, Needed: 1, Healthy: 1},
		"LOST: 1 of 3 voters healthy, 2 needed; no leader can be elected, and no write is possible": {Voters: 3, Needed: 2, Healthy: 1},
	} {
		if got := quorumText(apiv1.Cluster{Quorum: q}); got != want {
			t.Errorf("%+v: %s, want %s", q, got, want)
		}
	}
}

// A leader without a healthy majority has just been elected, or is about to step down, or its voters cannot write.
func TestStatus_LeaderWithoutMajority(t *testing.T) {
	t.Parallel()
	const unheard = "not heard from since this node leads"
	for name, c := range map[string]struct {
		needed       int
		n2, n3, want string
	}{
		"elected":     {2, unheard, unheard, "unclear: "},
		"no majority": {2, "silent for 300ms", "silent for 290ms, disk is full: read-only", "unclear: "},
		"a full disk": {
			2, "disk is full: read-only", "silent for 4s",
			"NO WRITES: 1 of 3 voters healthy, 2 needed; nothing can be written: " +
				"n2 (disk is full: read-only), n3 (silent for 4s)",
		},
		"a stalled disk":        {2, "disk is stalled", "silent for 300ms", "NO WRITES: "},
		"one yet to answer":     {2, "disk is stalled", unheard, "unclear: "},
		"too few yet to answer": {3, "disk is stalled", unheard, "NO WRITES: "},
	} {
		q := apiv1.Quorum{Voters: 3, Needed: c.needed, Healthy: 1}
		cl := apiv1.Cluster{LeaderID: "n1", Quorum: q, Members: []apiv1.Member{
			{ID: "n1", Suffrage: "voter", Healthy: true},
			{ID: "n2", Suffrage: "voter", Reasons: []string{c.n2}},
			{ID: "n3", Suffrage: "voter", Reasons: []string{c.n3}},
			{ID: "n4", Suffrage: "nonvoter", Reasons: []string{"disk is full: read-only"}},
		}}
		if got := quorumText(cl); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Every error of the contract is explained.
func TestWhy_EveryCode(t *testing.T) {
	t.Parallel()
	for n := cluster.Code(4000); n < 4600; n++ {
		if n.Name() != "" && codeHelp[n] == "" {
			t.Errorf("%s is not explained", n.Name())
		}
		if got, ok := parseCode(n.Name()); n.Name() != "" && (!ok || got != n) {
			t.Errorf("%s: %v", n.Name(), got)
		}
	}
}

// The explanation of an error says no more than its answers do: an election may have been held, or leadership may have
// moved.
func TestWhy_ElectionsAndTransfers(t *testing.T) {
	t.Parallel()
	for code, want := range map[cluster.Code]string{
		cluster.CodeElectionFailed: "should not simply be repeated",
		cluster.CodeTransferFailed: "With 504 leadership may have moved",
		cluster.CodeNoLeader:       "may be repeated",
	} {
		if got := strings.Join(explainCode(code), " "); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not say %q", code.Name(), got, want)
		}
	}
}

// A value is printed byte by byte; on a terminal the next prompt begins a line.
func TestKVGet_Newline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		value    string
		terminal bool
		want     string
	}{{"a", true, "a\n"}, {"a\n", true, "a\n"}, {"", true, "\n"}, {"a", false, "a"}, {"a\n", false, "a\n"}} {
		if got := string(shown([]byte(tc.value), tc.terminal)); got != tc.want {
			t.Errorf("%q, terminal %t: %q, want %q", tc.value, tc.terminal, got, tc.want)
		}
	}
}

// interrupter cancels after some lines, as Ctrl-C does.
type interrupter struct {
	bytes.Buffer
	lines  int
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if i.lines -= bytes.Count(p, []byte("\n")); i.lines <= 0 {
		i.cancel()
	}
	return i.Buffer.Write(p)
}

// The watch shows the state until Ctrl-C, which is no failure; as JSON one line each.
func TestStatus_Watch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupter{lines: 2, cancel: cancel}
	var stderr bytes.Buffer
	args := []string{"--endpoints", s.URL, "status", "--watch", "--interval", "100ms", "-o", "json"}
	if code := run(ctx, args, strings.NewReader(""), out, &stderr); code != exitDone {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
	for line := range strings.Lines(out.String()) {
		var cl apiv1.Cluster
		if err := json.Unmarshal([]byte(line), &cl); err != nil || cl.LeaderID != "n1" {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// A dry run names one page: it says so when more sessions match.
func TestSessionsEnd_DryRunOfMany(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := ctl(t, newServer(t), "", "sessions", "end", "--prefix", "w", "--dry-run")
	want := "at least 1 session would end; roles vacated: -; keys deleted: 0\n" +
		"more sessions match: only the first page is shown\n"
	if code != exitDone || strings.ReplaceAll(stdout, "–", "-") != want {
		t.Errorf("exit %d, %q, %s", code, stdout, stderr)
	}
}
