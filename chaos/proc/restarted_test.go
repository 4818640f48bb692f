package proc

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// notElected is how long a test watches that no node is elected: each node's timer expires three times at least.
const notElected = 4 * time.Second

// TestRestart_MayNotLead: the leader dies, and a follower restarts that may not become leader: failover is paused, or
// no follower is eligible. It knows that from its own log, and no node leads until the leader returns.
func TestRestart_MayNotLead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, method, path, body string }{
		{"failover is paused", http.MethodPost, "/admin/auto-failover", `{"enabled":false}`},
		{"not eligible", http.MethodPatch, "/admin/members/%s", `{"eligible":false}`},
		{"priority 0", http.MethodPatch, "/admin/members/%s", `{"priority":0}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
				"--election-timeout-max", "800ms")
			start(t, c)
			old := acquainted(t, c)
			rest := others(c, old)
			for _, n := range rest {
				path := strings.ReplaceAll(tt.path, "%s", n.ID)
				if a, err := do(t.Context(), old, tt.method, path, []byte(tt.body), "Content-Type",
					"application/json"); err != nil || a.Status != http.StatusOK {
					t.Fatalf("%s: %d %s %v", path, a.Status, a.Body, err)
				}
			}
			mustPut(t, c, "k", "v")
			for _, n := range rest {
				awaitApplied(t, c, n)
			}
			old.Kill()
			restarted := rest[0]
			restarted.Kill()
			if err := c.StartNode(restarted); err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); time.Since(began) < notElected; pause(20 * time.Millisecond) {
				for _, n := range rest {
					if st := mustStatus(t, n); st.State == "leader" {
						t.Fatalf("%s leads in term %d after %v; %s was restarted", n.ID, st.Term, time.Since(began),
							restarted.ID)
					}
				}
			}
			if err := c.StartNode(old); err != nil {
				t.Fatal(err)
			}
			if n := leader(t, c); n != old {
				t.Errorf("%s leads, and %s did", n.ID, old.ID)
			}
			if got := string(mustGet(t, c, "k").Body); got != "v" {
				t.Errorf("k is %q", got)
			}
		})
	}
}

// TestRestart_AllNodes: all nodes are killed, and one of them has been a follower that may not lead. They elect a
// leader by themselves.
func TestRestart_AllNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "--failover-takeover-delay", "1h", "--election-timeout-min", "400ms",
		"--election-timeout-max", "800ms")
	start(t, c)
	old := acquainted(t, c)
	drained := others(c, old)[0]
	for i, body := range []string{`{"enabled":false}`, `{"enabled":true}`} {
		if a, err := do(t.Context(), old, http.MethodPost, "/admin/auto-failover", []byte(body), "Content-Type",
			"application/json"); err != nil || a.Status != http.StatusOK {
			t.Fatalf("%s: %d %s %v", body, a.Status, a.Body, err)
		}
		mustPut(t, c, "k", fmt.Sprint(i))
	}
	mustCtl(t, "--endpoints", endpoints(c), "drain", drained.ID, "--wait")
	caughtUp(t, c)
	c.KillAll()
	if n := start(t, c); n == drained {
		t.Errorf("%s leads, which is drained", n.ID)
	}
	if got := string(mustGet(t, c, "k").Body); got != "1" {
		t.Errorf("k is %q", got)
	}
	lifecycle(t, drained, "draining")
}
