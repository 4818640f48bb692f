package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// The request goes to a responsive node, once.
func TestFailover_AvoidsHungLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1", "n2", "n3")
		defer fc.close()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		if _, err := c.Leader(t.Context()); err != nil { // the client knows the leader
			t.Fatal(err)
		}
		fc.hang("n1")
		bodies := make(chan string, 8)
		for _, name := range []string{"n2", "n3"} {
			fc.nodes[name].handle = func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				bodies <- r.URL.Path + " " + string(body)
				reply(w, apiv1.TransferResult{Success: true, NewLeaderID: "n2", Term: 2})
			}
		}
		began := time.Now()
		res, err := c.Failover(t.Context(), apiv1.Failover{TargetLeaderID: "n2", Reason: "n1 hangs"})
		if err != nil || res.NewLeaderID != "n2" || time.Since(began) > 50*time.Millisecond {
			t.Errorf("%+v, %v after %v", res, err, time.Since(began))
		}
		if _, err := c.EmergencyFailover(t.Context(),
			apiv1.Emergency{TargetLeaderID: "n2", Force: true, Reason: "now"}); err != nil {
			t.Error(err)
		}
		want := []string{
			`/admin/failover {"target_leader_id":"n2","reason":"n1 hangs"}`,
			`/admin/failover/emergency {"target_leader_id":"n2","force":true,"reason":"now"}`,
		}
		for _, w := range want {
			if got := <-bodies; got != w {
				t.Errorf("sent %s, want %s", got, w)
			}
		}
		if len(bodies) > 0 {
			t.Error("sent twice")
		}
	})
}

// A busy machine may answer none of the first questions in time.
func TestFailover_SlowNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1", "n2", "n3")
		defer fc.close()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		for _, name := range []string{"n1", "n2", "n3"} {
			fc.hang(name)
		}
		time.AfterFunc(2*probeTimeout, func() { fc.resume("n2") })
		fc.nodes["n2"].handle = func(w http.ResponseWriter, r *http.Request) {
			reply(w, apiv1.TransferResult{Success: true, NewLeaderID: "n2", Term: 2})
		}
		began := time.Now()
		res, err := c.Failover(t.Context(), apiv1.Failover{TargetLeaderID: "n2", Reason: "n1 hangs"})
		if err != nil || res.NewLeaderID != "n2" || time.Since(began) > 4*probeTimeout {
			t.Errorf("%+v, %v after %v", res, err, time.Since(began))
		}
		fc.hang("n2")
		began = time.Now()
		_, err = c.Failover(t.Context(), apiv1.Failover{TargetLeaderID: "n2", Reason: "n1 hangs"})
		took := time.Since(began)
		if !cluster.IsCode(err, cluster.CodeNoLeader) || took > (respondingRounds+1)*probeTimeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestPlansAreDryRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1")
		defer fc.close()
		c := fc.client("n1")
		defer c.Close()
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			var body struct {
				DryRun bool `json:"dry_run"`
			}
			if json.NewDecoder(r.Body).Decode(&body) != nil || !body.DryRun {
				t.Errorf("%s is no dry run", r.URL.Path)
			}
			reply(w, apiv1.Plan{DryRun: true, PlanID: r.URL.Path})
		}
		for path, plan := range map[string]func() (apiv1.Plan, error){
			apiv1.PathTransfer:  func() (apiv1.Plan, error) { return c.PlanTransfer(t.Context(), apiv1.Transfer{}) },
			apiv1.PathFailover:  func() (apiv1.Plan, error) { return c.PlanFailover(t.Context(), apiv1.Failover{}) },
			apiv1.PathEmergency: func() (apiv1.Plan, error) { return c.PlanEmergency(t.Context(), apiv1.Emergency{}) },
		} {
			if p, err := plan(); err != nil || p.PlanID != path {
				t.Errorf("%s: %+v, %v", path, p, err)
			}
		}
	})
}

// The outcome of a request without a response is unknown, an unsent request had no effect, and an error may have
// votes.
func TestFailover_Outcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, "n1", "n2")
		defer fc.close()
		c := fc.client("n1", "n2")
		defer c.Close()
		fc.kill("n2")
		answer := func(h http.HandlerFunc) error {
			fc.nodes["n1"].handle = h
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := c.Failover(ctx, apiv1.Failover{})
			return err
		}
		if err := answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }); !errors.Is(err,
			ErrOutcomeUnknown) {
			t.Errorf("a broken connection: %v", err)
		}
		if n := len(fc.requests("n1")); n != 1 {
			t.Errorf("sent %d times", n)
		}
		err := answer(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", apiv1.TypeProblem)
			w.WriteHeader(409)
			json.NewEncoder(w).Encode(apiv1.Problem{
				Status: 409, Code: 4006, Detail: "n2 gets no majority",
				Votes: []apiv1.Vote{
					{VoterID: "n3", Reason: "log behind: 41 < 44"},
				},
			})
		})
		var e *cluster.Error
		if !errors.As(err, &e) || e.Code != cluster.CodeVoteDenied || len(e.Votes) != 1 || e.Votes[0].Voter != "n3" {
			t.Errorf("refused votes: %v %+v", err, e)
		}
		fc.kill("n1")
		if err := answer(nil); !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), "no node responds") {
			t.Errorf("no node responds: %v", err)
		}
	})
}
