package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"northstar/api/apiv1"
	"northstar/chaos/testenv"
	"northstar/client"
	"northstar/cluster"
)

// An operator revokes the role of an interactive campaign. The command reports why, fails, and ends its session, so
// that the next holder need not wait.
func TestRoleCampaign_Evicted(t *testing.T) {
	t.Parallel()
	testLostRole(t, "role revoked: ", func(endpoint string, _ *client.Client, _ apiv1.Role) {
		evict(t, endpoint, "job")
	})
}

// Another process resigns for the session of an interactive campaign. No renewal reports that.
func TestRoleCampaign_Resigned(t *testing.T) {
	t.Parallel()
	testLostRole(t, "role was lost: resigned\n", func(_ string, c *client.Client, held apiv1.Role) {
		if _, err := c.ResignRole(t.Context(), held.Role, held.SessionID); err != nil {
			t.Error(err)
		}
	})
}

// testLostRole checks how a campaign on a real node ends when its role is lost.
func testLostRole(t *testing.T, want string, lose func(endpoint string, c *client.Client, held apiv1.Role)) {
	endpoint, c := oneNode(t)
	ttl := testenv.Slowdown() * 9 * time.Second // a node without processor time for a third does not end the campaign
	var stderr bytes.Buffer
	exit := make(chan int, 1)
	go func() {
		exit <- run(t.Context(), []string{"--endpoints", endpoint, "role", "campaign", "job", "--ttl", ttl.String()},
			strings.NewReader(""), io.Discard, &stderr)
	}()
	var held apiv1.Role
	if err := eventually(func() (err error) { held, err = c.GetRole(t.Context(), "job"); return err }); err != nil {
		select {
		case code := <-exit:
			t.Fatalf("%v; the campaign ended with %d, %q", err, code, stderr.String())
		default:
			t.Fatalf("%v, while the campaign goes on", err)
		}
	}
	lose(endpoint, c, held)
	var code int
	select {
	case code = <-exit:
	case <-time.After(testTimeout):
		t.Fatal("it goes on")
	}
	want = "northstarctl: " + want
	if code != exitFailed || !strings.HasPrefix(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("exit %d, %q; want %d, %q", code, stderr.String(), exitFailed, want)
	}
	if _, err := c.GetSession(t.Context(), held.SessionID); !errors.Is(err, client.ErrSessionEnded) {
		t.Errorf("its session: %v", err)
	}
}

// The queue of a role is shown also without a holder, and the exit code says that there is none.
func TestRoleShow_Vacant(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == apiv1.PathLeader {
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 4, ObservedBy: "n1"})
			return
		}
		if r.URL.Path != "/v1/roles/job" || r.URL.Query().Get("all") != "true" {
			problem(w, cluster.Errorf(cluster.CodeNotFound, "%s", r.URL))
			return
		}
		reply(w, apiv1.Role{
			Role: "job", Vacant: "nobody holds \"job\"",
			Candidates: []apiv1.RoleCandidate{{Name: "worker-b", SessionID: "s2", TakeoverDelayMS: 500}},
		})
	}))
	defer s.Close()
	code, stdout, stderr := ctl(t, nil, "", "role", "show", "job", "--endpoints", s.URL, "--timeout", "5s")
	if code != exitMissing || !strings.Contains(stdout, "worker-b") || !strings.Contains(stderr, "nobody holds") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// A client chooses the names of its sessions, and an operator a reason. They must not act on an operator's terminal.
func TestNamesAreNoCommandsOfTheTerminal(t *testing.T) {
	t.Parallel()
	const name = "\x1b[2J\x1b]0;title\a\nn1"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case apiv1.PathLeader:
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 4, ObservedBy: "n1"})
		case apiv1.PathRoles:
			reply(w, apiv1.Roles{Items: []apiv1.Role{{Role: "job", Holder: name, SessionID: "s1", Token: 7}}})
		case apiv1.PathSessions:
			reply(w, apiv1.Sessions{Items: []apiv1.Session{{SessionID: "s1", Name: name, Identity: "client a"}}})
		case apiv1.PathEvents:
			if strings.Contains(r.Header.Get("Accept"), "event-stream") {
				w.Header().Set("Content-Type", apiv1.TypeEventStream)
				lost := map[string]any{"result": "lost", "reason": name}
				data, _ := json.Marshal(apiv1.Event{Seq: "p1-1", Type: "election", Fields: lost})
				fmt.Fprintf(w, "id: p1-1\nevent: election\ndata: %s\n\n", data)
				fmt.Fprint(w, "event: error\ndata: {\"code\":4403,\"status\":403}\n\n")
				return
			}
			reply(w, apiv1.Events{Items: []apiv1.Event{{Type: "role", Message: name + " holds role job"}}})
		case apiv1.PathAuto:
			reply(w, apiv1.AutoFailoverState{Operator: "anna", Reason: name})
		default:
			problem(w, cluster.Errorf(cluster.CodeNotFound, "%s of %s", r.URL.Path, name))
		}
	}))
	defer s.Close()
	for _, args := range []string{
		"role ls", "sessions ls", "events", "role show job", "auto-failover", "elections --follow",
	} {
		_, stdout, stderr := ctl(t, nil, "", append(strings.Fields(args), "--endpoints", s.URL, "--timeout", "5s")...)
		if out := stdout + stderr; strings.ContainsAny(out, "\x1b\a") || !strings.Contains(out, `\x1b[2J`) {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// Programs get such names as they are, escaped in JSON and YAML: one client cannot make a list fail, either.
func TestNamesAreNoCommandsInJSON(t *testing.T) {
	t.Parallel()
	const name = "\x1b\x7f\u0080\u0085\u009b2J\ufffe\uffff"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case apiv1.PathLeader:
			reply(w, apiv1.Leader{LeaderID: "n1", LeaderAddress: r.Host, Term: 4, ObservedBy: "n1"})
		case apiv1.PathRoles:
			reply(w, apiv1.Roles{Items: []apiv1.Role{{Role: name}}})
		case apiv1.PathKV:
			reply(w, apiv1.List{Items: []apiv1.Item{{Key: name}}})
		case apiv1.PathWatch:
			w.Header().Set("Content-Type", apiv1.TypeEventStream)
			data, _ := json.Marshal(keyValue{Key: name, Revision: 10})
			fmt.Fprintf(w, "id: 10\nevent: put\ndata: %s\n\n", data)
			fmt.Fprint(w, "event: error\ndata: {\"code\":4015,\"status\":410,\"detail\":\"a backup was restored\"}\n\n")
		}
	}))
	defer s.Close()
	raw := regexp.MustCompile("[^\n -~]")
	for _, args := range []string{"role ls", "kv ls", "kv watch --since 9"} {
		for _, format := range []string{"json", "yaml"} {
			code, stdout, stderr := ctl(t, nil, "",
				append(strings.Fields(args), "-o", format, "--endpoints", s.URL, "--timeout", "5s")...)
			var got any
			if err := yaml.Unmarshal([]byte(stdout), &got); err != nil || raw.MatchString(stdout) ||
				!strings.Contains(fmt.Sprint(got), name) {
				t.Errorf("%s -o %s: exit %d, %q, %v, %s", args, format, code, stdout, err, stderr)
			}
		}
	}
}
