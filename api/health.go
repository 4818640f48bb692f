package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
)

// getLive serves GET /livez. Any response means that the process is alive; ?verbose uses the form of /readyz.
func getLive(c *request) error {
	verbose, err := c.queryBool("verbose")
	switch {
	case err != nil:
		return err
	case verbose:
		return c.text("[+]serving: this process answers\nlive\n")
	}
	return c.text("ok\n")
}

func getReady(c *request) error {
	verbose, err := c.queryBool("verbose")
	if err != nil {
		return err
	}
	checks, notes, ready := c.s.checks(time.Now())
	switch {
	case !ready:
		return c.notReady(append(checks, notes...))
	case verbose:
		return c.text(strings.Join(append(checkLines(append(checks, notes...)), "ready\n"), "\n"))
	}
	return c.text(strings.Join(append([]string{"ok"}, append(checkLines(notes), "")...), "\n"))
}

// checks reports whether this node should get requests, with reasons. notes do not make the node unready.
func (s *Server) checks(now time.Time) (checks, notes []apiv1.Check, ready bool) {
	st := s.reads.Status()
	life := s.lifecycle(st)
	ready = true
	add := func(name string, ok bool, good, bad string) {
		detail := good
		if !ok {
			detail = bad
		}
		checks, ready = append(checks, apiv1.Check{Name: name, OK: ok, Detail: detail}), ready && ok
	}
	leaderless := "no leader is known"
	if st.NotFollowed != "" {
		leaderless += "; not followed if they lead: " + st.NotFollowed
	}
	add("leader", st.LeaderID != "", fmt.Sprintf("%s, term %d", st.LeaderID, st.Term), leaderless)
	add("caught_up", st.CaughtUp, fmt.Sprintf("applied index %d", st.AppliedIndex),
		fmt.Sprintf("applied index %d: not all entries that were committed before the start are applied yet", st.AppliedIndex))
	add("not_draining", life != cluster.Draining, "serving", "this node is draining")
	add("not_dead", life != cluster.Dead, string(life), "the cluster refuses this node: "+st.DeadReason)
	refusing := s.deps.SplitBrain.Refusing()
	add("no_split_brain", refusing == "", "no other leader or cluster is known", refusing)
	if !s.reads.View().AutoFailover(now) {
		notes = append(notes, apiv1.Check{
			Name: "auto_failover", OK: true,
			Detail: "paused: a failed leader is not replaced automatically",
		})
	}
	return checks, notes, ready
}

func checkLines(checks []apiv1.Check) []string {
	lines := make([]string, len(checks))
	for i, c := range checks {
		mark := "[+]"
		if !c.OK {
			mark = "[-]"
		}
		lines[i] = mark + c.Name + ": " + c.Detail
	}
	return lines
}

// notReadyProblem is a problem with one line per check, for humans and programs.
type notReadyProblem struct {
	apiv1.Problem
	Checks []string `json:"checks"`
}

func (c *request) notReady(checks []apiv1.Check) error {
	e := cluster.Errorf(cluster.CodeBusy, "node %s is not ready", c.s.deps.Node.ID)
	if why := c.s.deps.SplitBrain.Refusing(); why != "" {
		e = c.s.splitBrainUnready(why)
	} else if !checks[0].OK {
		e = problem.NoLeader("no leader known (node %s)", c.s.deps.Node.ID)
	}
	body, err := json.MarshalIndent(notReadyProblem{c.s.problem(e), checkLines(checks)}, "", " ")
	if err != nil {
		return err
	}
	if e.Retryable() {
		c.Header()["Retry-After"] = []string{"1"}
	}
	return c.respond(http.StatusServiceUnavailable, typeProblem, append(body, '\n'))
}

// splitBrainUnready is the answer of health checks in a split brain: 4004 with the status of a check that fails.
func (s *Server) splitBrainUnready(why string) *cluster.Error {
	e := cluster.Errorf(cluster.CodeSplitBrain, "node %s serves only stale reads and watches: %s", s.deps.Node.ID, why)
	e.Status = http.StatusServiceUnavailable
	return e
}

func (c *request) text(s string) error { return c.respond(http.StatusOK, typeText, []byte(s)) }

// getLeaderHealth serves GET, HEAD and OPTIONS /health/leader: 200 only if a majority has confirmed this leader after
// the request came. Concurrent requests share the rounds of consensus.
func getLeaderHealth(c *request) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), c.s.deps.TimeoutMax)
	defer cancel()
	if c.s.draining() {
		return problem.NoLeader("node %s is draining", c.s.deps.Node.ID)
	}
	if why := c.s.deps.SplitBrain.Refusing(); why != "" {
		return c.s.splitBrainUnready(why)
	}
	if err := c.s.reads.ReadBarrier(ctx); err != nil {
		return problem.NoLeader("node %s cannot prove that it leads: %w", c.s.deps.Node.ID, err)
	}
	return c.text("ok\n")
}

func getFollowerHealth(c *request) error {
	maxLag, err := c.queryInt("max_lag", -1, 0, math.MaxInt64)
	if err != nil {
		return err
	}
	st, id := c.s.reads.Status(), c.s.deps.Node.ID
	notNow := func(format string, args ...any) error {
		return problem.Busy("node %s: %s", id, fmt.Sprintf(format, args...))
	}
	why := c.s.deps.SplitBrain.Refusing()
	switch {
	case why != "":
		return c.s.splitBrainUnready(why)
	case st.LeaderID == "":
		return problem.NoLeader("no leader known (node %s)", id)
	case st.Role != cluster.Follower: // waiting does not make it one
		e := cluster.Errorf(cluster.CodeConditionFailed, "node %s is %s, not follower", id, st.Role)
		e.Status = http.StatusServiceUnavailable
		return e
	case st.LeaderContactAge < 0:
		return problem.NoLeader("node %s has not heard from leader %s yet", id, st.LeaderID)
	case st.LeaderContactAge > 2*c.s.deps.TimeoutMax:
		return problem.NoLeader("node %s has not heard from leader %s for %v", id, st.LeaderID, st.LeaderContactAge)
	case c.s.draining(), st.Lifecycle == cluster.Dead:
		return notNow("is %s", c.s.lifecycle(st))
	}
	if maxLag < 0 {
		return c.text("ok\n")
	}
	lag, err := c.s.calls.Lag(c.r.Context())
	if err != nil {
		return problem.NoLeader("node %s cannot ask leader %s how far it is behind: %w", id, st.LeaderID, err)
	}
	if lag > uint64(maxLag) {
		return notNow("is %d entries behind, %d are allowed", lag, maxLag)
	}
	return c.text("ok\n")
}
