package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// roleServer behaves like a node with one session, s1, that holds role r with token 7. It records the requests.
func roleServer(t *testing.T) (c *Client, nextRequest func() string) {
	t.Helper()
	requests := make(chan string, 100)
	problem := func(w http.ResponseWriter, code cluster.Code) {
		w.Header().Set("Content-Type", apiv1.TypeProblem)
		w.WriteHeader(code.Status())
		_ = json.NewEncoder(w).Encode(
			apiv1.Problem{
				Status: code.Status(), Code: int(code), Name: code.Name(), Detail: "x",
				Retryable: code.Retryable(),
			},
		)
	}
	h := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		query := r.URL.Query()
		query.Del("timeout_ms")
		line := strings.TrimSpace(r.Method + " " + r.URL.Path + " " + query.Encode() + " " + string(body))
		w.Header().Set("Content-Type", apiv1.TypeJSON)
		switch {
		case r.URL.Path == "/leader" || r.URL.Path == "/v1/cluster":
			problem(w, cluster.CodeNoLeader)
			return
		case strings.HasSuffix(r.URL.Path, "/watch"):
			w.Header().Set("Content-Type", apiv1.TypeEventStream)
			if query.Get("since") == "3" { // interrupted after one event, and resumed
				fmt.Fprint(w, "event: elected\nid: 7\ndata: {\"role\":\"r\",\"token\":7,\"revision\":7}\n\n")
			} else {
				fmt.Fprint(w,
					"event: vacated\nid: 9\ndata: {\"role\":\"r\",\"token\":7,\"revision\":9,\"cause\":\"expired\"}\n\n")
			}
		case strings.Contains(line, "down"):
			problem(w, cluster.CodeSessionEnded)
		case strings.Contains(line, "other"):
			problem(w, cluster.CodeRoleHeld)
		default:
			fmt.Fprint(w, `{"role":"r","token":7,"session_id":"s1","ttl_ms":1000}`)
		}
		requests <- line
	}
	s := httptest.NewServer(http.HandlerFunc(h))
	t.Cleanup(s.Close)
	c, err := New(Config{Endpoints: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, func() string { return <-requests }
}

func TestRoleCalls(t *testing.T) {
	t.Parallel()
	c, requests := roleServer(t)
	ctx := t.Context()
	want := func(line string, err error) {
		t.Helper()
		if got := requests(); err != nil || got != line {
			t.Errorf("request %q, %v; want %q", got, err, line)
		}
	}
	ttl := int64(1000)
	_, err := c.CreateSession(ctx, apiv1.SessionCreate{Name: "a", TTLMS: &ttl})
	want(`POST /v1/sessions  {"name":"a","ttl_ms":1000}`, err)
	renewal, err := c.RenewSession(ctx, "s1")
	want("POST /v1/sessions/s1/renew", err)
	if renewal.TTLMS != 1000 {
		t.Errorf("%+v", renewal)
	}
	_, err = c.RenewSessions(ctx, []string{"s1", "s2"})
	want(`POST /v1/sessions/renew  {"session_ids":["s1","s2"]}`, err)
	role, err := c.CampaignRole(ctx, "r", apiv1.Campaign{SessionID: "s1", WaitMS: 5})
	want(`POST /v1/roles/r/campaign  {"session_id":"s1","wait_ms":5}`, err)
	if role.Token != 7 {
		t.Errorf("%+v", role)
	}
	_, err = c.ResignRole(ctx, "r", "s1")
	want("DELETE /v1/roles/r session_id=s1", err)
	want("DELETE /v1/sessions/s1", c.EndSession(ctx, "s1"))
	_, err = c.GetRole(ctx, "a:b")
	want("GET /v1/roles/a:b", err)
	_, err = c.Roles(ctx, true, "q")
	want("GET /v1/roles after=q&all=true&limit=1000", err)
	_, err = c.Nodes(ctx, NodeFilter{Status: "active", Role: "w"}, "")
	want("GET /v1/nodes limit=1000&role=w&status=active", err)
	_, err = c.PutNode(ctx, "w1", apiv1.NodePut{SessionID: "s1"})
	want(`PUT /v1/nodes/w1  {"session_id":"s1"}`, err)

	if _, err := c.RenewSession(ctx, "down"); !errors.Is(err, ErrSessionEnded) {
		t.Error(err)
	}
	if _, err := c.CampaignRole(ctx, "r", apiv1.Campaign{SessionID: "other"}); !errors.Is(err, ErrRoleHeld) {
		t.Error(err)
	}
}

func TestWatchRole(t *testing.T) {
	t.Parallel()
	c, _ := roleServer(t)
	var got []string
	for ch, err := range c.WatchRole(t.Context(), "r", WatchOptions{Since: 3}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %v %s", ch.Revision, ch.Elected, ch.Cause))
		if len(got) == 2 {
			break
		}
	}
	if fmt.Sprint(got) != "[7 true  9 false expired]" {
		t.Fatalf("%q", got)
	}
}
