package proc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// asksPeers are the calls that ask several nodes, and calls that must never do so.
var asksPeers = []struct{ method, path, body string }{
	{"GET", "/leader", ""},
	{"GET", "/status", ""},
	{"GET", "/livez", ""},
	{"GET", "/readyz", ""},
	{"GET", "/health/leader", ""},
	{"GET", "/metrics", ""},
	{"GET", "/v1/cluster", ""},
	{"GET", "/v1/events", ""},
	{"GET", "/v1/elections", ""},
	{"GET", "/v1/kv/k", ""},
	{"PUT", "/v1/kv/k", "v"},
	{"GET", "/admin/splitbrain", ""},
	{"POST", "/admin/splitbrain/check", `{}`},
	{"GET", "/admin/audit", ""},
	{"POST", "/admin/transfer", `{"dry_run":true}`},
	{"POST", "/admin/auto-failover", `{"enabled":true,"dry_run":true}`},
	{"PATCH", "/admin/members/n1", `{"priority":100,"dry_run":true}`},
}

// prompt sends all these calls to a node several times, and requires half of the responses to each within the limit. A
// call that waits for a hung node waits each time. On a machine that stands still for some seconds all calls take
// long, also those that ask no other node, so each has five rounds.
func prompt(t *testing.T, n *Node, limit time.Duration) {
	t.Helper()
	for _, call := range asksPeers {
		var took []time.Duration
		half := limit + 1
		for round := 0; round < 5 && half > limit; round++ {
			took = took[:0]
			for range 7 {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				began := time.Now()
				a, err := do(ctx, n, call.method, call.path, []byte(call.body), "Content-Type", "application/json")
				took = append(took, time.Since(began))
				cancel()
				if err != nil || a.Status >= 500 && call.path != "/health/leader" {
					t.Errorf("%s %s at %s: %d %s %v", call.method, call.path, n.ID, a.Status, a.Body, err)
				}
			}
			slices.Sort(took)
			half = took[len(took)/2]
		}
		if half > limit {
			t.Fatalf("%s %s at %s took %v, while another node hangs: %v", call.method, call.path, n.ID, half, took)
		}
		t.Logf("%s %s at %s: %v, at most %v", call.method, call.path, n.ID,
			half.Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
	}
}

// A hung node delays no response of the others. That holds for calls that ask all nodes, and for calls that ask the
// hung former leader. A call that waited would take timeout-max, which is twice the limit here.
func TestHungPeerHoldsUpNoAnswer(t *testing.T) {
	t.Parallel()
	limit := testenv.Slowdown() * 1500 * time.Millisecond
	c := newCluster(t, 3, "--election-timeout-min", limit.String(), "--election-timeout-max", (2 * limit).String())
	start(t, c)
	lead := steady(t, c)
	for _, hung := range []*Node{others(c, lead)[0], lead} {
		if err := hung.Pause(); err != nil {
			t.Fatal(err)
		}
		rest := others(c, hung)
		if hung == lead {
			electedWithout(t, c, lead)
		}
		// The first callers discover the hang, and wait for at most that long.
		for _, n := range rest {
			eventually(t, soon, func() error {
				a, err := do(t.Context(), n, http.MethodGet, "/v1/events?limit=1", nil)
				if err == nil && !strings.Contains(string(a.Body), fmt.Sprintf(`"missing":[%q]`, hung.ID)) {
					err = fmt.Errorf("%s misses nobody: %s", n.ID, a.Body)
				}
				return err
			})
			verdict(t, n, "unreachable", false)
		}
		for _, n := range rest {
			prompt(t, n, limit)
		}
		if err := hung.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		// It is asked again as soon as it answers.
		for _, n := range c.Nodes {
			eventually(t, soon, func() error {
				a, err := do(t.Context(), n, http.MethodGet, "/v1/events?limit=1", nil)
				if err == nil && !strings.Contains(string(a.Body), `"missing":[]`) {
					err = fmt.Errorf("%s goes on without %s: %s", n.ID, hung.ID, a.Body)
				}
				return err
			})
		}
	}
}
