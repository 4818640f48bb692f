package api

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// survivors are the nodes n1 and n2, which are left of five. n2 has more.
type survivors struct {
	n1, n2   *node
	restarts [2]atomic.Int32
}

func twoOfFive(t *testing.T) *survivors {
	s := new(survivors)
	fakes := []*fakeCluster{newFakeCluster("n1", false), newFakeCluster("n2", false)}
	nodes := make([]*node, 2)
	for i, f := range fakes {
		f.st.Servers = append(f.st.Servers, cluster.Server{ID: "n4", Suffrage: cluster.Voter},
			cluster.Server{ID: "n5", Suffrage: cluster.Voter})
		f.left = []cluster.Survivor{
			{ID: "n1", Voter: true, LastTerm: 3, LastIndex: 90},
			{ID: "n2", Voter: true, LastTerm: 3, LastIndex: 95},
		}
		nodes[i] = startServer(t, f, func(d *Deps) { d.Restart = func() { s.restarts[i].Add(1) } })
	}
	for _, f := range fakes {
		for i, n := range nodes {
			f.addRecord(cluster.Member{
				ID: fakes[i].st.NodeID, HTTPAddress: n.addr, RaftAddress: "h:1",
				Lifecycle: cluster.Active,
			})
		}
	}
	s.n1, s.n2 = nodes[0], nodes[1]
	return s
}

func recover2(n *node, body string) reply {
	return n.do("POST", apiv1.PathRecover, body, "Content-Type", jsonBody)
}

// Asked at one survivor, the freshest is recovered, and has the others set their
// data aside.
func TestRecoverThroughAnySurvivor(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*survivors) *node{
		"the freshest": func(s *survivors) *node { return s.n2 },
		"another":      func(s *survivors) *node { return s.n1 },
	} {
		virtually(t, name, func(t *testing.T) {
			s := twoOfFive(t)
			r := recover2(ask(s), `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"drill"}`)
			var out apiv1.RecoverResult
			if err := json.Unmarshal([]byte(r.body), &out); err != nil || r.status != 200 {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			if out.RecoveredID != "n2" || out.Generation != 2 || out.RecoveryID != "r" ||
				strings.Join(out.LostIDs, " ") != "n3 n4 n5" || len(out.Warnings) != 2 {
				t.Errorf("%+v", out)
			}
			want := []apiv1.Survivor{
				{ID: "n2", Voter: true, LastTerm: 3, LastIndex: 95, Outcome: "recovered"},
				{ID: "n1", Voter: true, LastTerm: 3, LastIndex: 90, Outcome: "set aside"},
			}
			if len(out.Survivors) != 2 || out.Survivors[0] != want[0] || out.Survivors[1] != want[1] {
				t.Errorf("%+v", out.Survivors)
			}
			if calls := s.n2.fake.calls(); len(calls) != 1 || !strings.HasPrefix(calls[0], "recover ") || !strings.Contains(calls[0], `"Reason":"drill"`) {
				t.Errorf("n2: %v", calls)
			}
			if calls := s.n1.fake.calls(); len(calls) != 1 || calls[0] != `aside c1 n2 {"number":2,"recovery_id":"r"}` {
				t.Errorf("n1: %v", calls)
			}
			if s.restarts[0].Load() != 1 || s.restarts[1].Load() != 0 {
				t.Errorf("restarts: n1 %d, n2 %d", s.restarts[0].Load(), s.restarts[1].Load())
			}
		})
	}
}

// A repeated call has the recovered node tell the other survivors again, through any survivor. It recovers nothing.
func TestRecoverAgain(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*survivors) *node{
		"the recovered node": func(s *survivors) *node { return s.n2 },
		"another":            func(s *survivors) *node { return s.n1 },
	} {
		virtually(t, name, func(t *testing.T) {
			s := twoOfFive(t)
			for _, n := range []*node{s.n1, s.n2} {
				n.fake.set(func() { n.fake.resume = "n2" })
			}
			r := recover2(ask(s), `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"drill"}`)
			if r.status != 200 || !strings.Contains(r.body, `"outcome":"set aside"`) {
				t.Errorf("%+v", r)
			}
			if calls := s.n2.fake.calls(); len(calls) != 0 {
				t.Errorf("n2: %v", calls)
			}
			if calls := s.n1.fake.calls(); len(calls) != 1 || calls[0] != `aside c1 n2 {"number":2,"recovery_id":"r"}` {
				t.Errorf("n1: %v", calls)
			}
		})
	}
}

// A repeated call may be planned first, as northstarctl does: through any survivor, by the recovered node.
func TestRecoverAgain_ByPlan(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*survivors) *node{
		"the recovered node": func(s *survivors) *node { return s.n2 },
		"another":            func(s *survivors) *node { return s.n1 },
	} {
		virtually(t, name, func(t *testing.T) {
			s := twoOfFive(t)
			for _, n := range []*node{s.n1, s.n2} {
				n.fake.set(func() { n.fake.resume = "n2" })
			}
			r := recover2(ask(s), `{"survivors":["n1","n2"],"confirm":"c1","dry_run":true}`)
			var p apiv1.Plan
			if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 200 || !p.Possible ||
				p.TargetID != "n2" || !strings.Contains(p.Summary, "recovered already") {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			if calls := append(s.n1.fake.calls(), s.n2.fake.calls()...); len(calls) != 0 {
				t.Errorf("the dry run: %v", calls)
			}
			body := `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"drill","plan_id":"` + p.PlanID + `"}`
			if r := recover2(ask(s), body); r.status != 200 || !strings.Contains(r.body, `"outcome":"set aside"`) {
				t.Errorf("%+v", r)
			}
			if calls := s.n2.fake.calls(); len(calls) != 0 {
				t.Errorf("n2: %v", calls)
			}
			recover2(ask(s), strings.Replace(body, "recover.1.", "recover.0.", 1)).is(t, 409, cluster.CodeTermStale)
		})
	}
}

// What the other survivor could not do is in the answer: the recovery stands.
func TestRecover_ReportsSurvivorsNotArchived(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := twoOfFive(t)
		s.n1.fake.set(func() { s.n1.fake.fail = cluster.Errorf(cluster.CodeReadOnly, "the disk is full") })
		r := recover2(s.n2, `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"drill"}`)
		if r.status != 200 || !strings.Contains(r.body, `"outcome":"its data is not set aside yet: start it, or repeat the call: the disk is full"`) || s.restarts[0].Load() != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A survivor that learns of the recovery from a hello restarts while the request is on its way. Only its return to the
// new generation, with a new data directory, counts as a success.
func TestRecover_SurvivorThatRestarts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		incarnation string
		outcome     string
	}{
		"comes back": {"new", `"outcome":"set aside"`},
		"stays away": {"", `"outcome":"its data is not set aside yet: start it, or repeat the call: restarting"`},
	} {
		virtually(t, name, func(t *testing.T) {
			s := twoOfFive(t)
			s.n1.fake.set(func() { s.n1.fake.fail = cluster.Errorf(cluster.CodeNoLeader, "restarting") })
			s.n2.fake.apply(state.Command{Kind: state.KindClusterInit, Now: 1, ClusterInit: &state.ClusterInit{
				ClusterID: "c1", Generation: cluster.Generation{Number: 1},
			}})
			m, _ := s.n2.fake.View().Member("n1")
			m.Incarnation = "old"
			s.n2.fake.addRecord(m)
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				time.Sleep(2 * time.Second)
				s.n2.fake.apply(state.Command{Kind: state.KindRecovery, Now: 2, Recovery: &state.Recovery{
					Generation: cluster.Generation{Number: 2, RecoveryID: "r"}, Readmit: []cluster.NodeID{"n1"},
				}})
				time.Sleep(2 * time.Second)
				m.Incarnation = tt.incarnation
				s.n2.fake.addRecord(m)
			}()
			r := recover2(s.n2, `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"drill"}`)
			if r.status != 200 || !strings.Contains(r.body, tt.outcome) {
				t.Errorf("%+v", r)
			}
			<-returned
		})
	}
}

func TestRecoverRefuses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := twoOfFive(t)
		for _, tt := range []struct {
			name, body string
			status     int
			code       cluster.Code
			says       string
		}{
			{"no reason", `{"survivors":["n1","n2"],"confirm":"c1","force":true}`, 400, cluster.CodeBadRequest, "reason: required"},
			{"no force", `{"survivors":["n1","n2"],"confirm":"c1","reason":"r"}`, 400, cluster.CodeBadRequest, "force: must be true"},
			{"another cluster", `{"survivors":["n1","n2"],"confirm":"c2","force":true,"reason":"r"}`, 400, cluster.CodeBadRequest, "confirm: must be the cluster's ID c1"},
			{"nobody", `{"confirm":"c1","force":true,"reason":"r"}`, 400, cluster.CodeBadRequest, "survivors"},
			{"no ID", `{"survivors":["N 1"],"confirm":"c1","force":true,"reason":"r"}`, 400, cluster.CodeBadRequest, "survivors"},
			{"one is not named", `{"survivors":["n1"],"confirm":"c1","force":true,"reason":"r"}`, 400, cluster.CodeBadRequest, "n2 answers and is not named"},
			{"a foreign plan", `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"r","plan_id":"transfer.1.n2.0"}`, 400, cluster.CodeBadRequest, "plan_id"},
			{"a stale plan", `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"r","plan_id":"recover.9.n2.0"}`, 409, cluster.CodeTermStale, "plan_id"},
			{"a dry run of what follows", `{"confirm":"c1","reason":"r","dry_run":true,"follow":{"leader_id":"n2","generation":2,"recovery_id":"r"}}`, 400, cluster.CodeBadRequest, "follow"},
			{"follows nobody", `{"confirm":"c1","reason":"r","force":true,"follow":{"leader_id":"","generation":2,"recovery_id":"r"}}`, 400, cluster.CodeBadRequest, "leader_id"},
		} {
			p := recover2(s.n1, tt.body).is(t, tt.status, tt.code)
			if !strings.Contains(p.Detail, tt.says) {
				t.Errorf("%s: %s", tt.name, p.Detail)
			}
		}
		s.n1.fake.set(func() {
			s.n1.fake.left = append(s.n1.fake.left, cluster.Survivor{ID: "n3", Voter: true})
		})
		recover2(s.n1, `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"r"}`).is(t, 409, cluster.CodeQuorumExists)
		r := recover2(s.n1, `{"survivors":["n1","n2"],"confirm":"c1","reason":"r","dry_run":true}`)
		if r.status != 200 || !strings.Contains(r.body, `"possible":false`) || !strings.Contains(r.body, `"code":4019`) {
			t.Errorf("dry run while a quorum answers: %+v", r)
		}
		if len(s.n1.fake.calls())+len(s.n2.fake.calls()) != 0 {
			t.Errorf("something was done: %v %v", s.n1.fake.calls(), s.n2.fake.calls())
		}
	})
}

// A dry run lists every survivor's log, what can be lost, and what no recovery
// can prevent; its plan can be run.
func TestRecoverDryRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := twoOfFive(t)
		r := recover2(s.n1, `{"survivors":["n1","n2"],"confirm":"c1","reason":"r","dry_run":true}`)
		var p apiv1.Plan
		if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 200 {
			t.Fatalf("%d %s: %v", r.status, r.body, err)
		}
		if !p.Possible || p.TargetID != "n2" || p.Risk != "high" || len(p.Survivors) != 2 ||
			p.Survivors[0].LastIndex != 95 || len(p.Candidates) != 2 || p.Candidates[1].LagEntries != 5 {
			t.Errorf("%s", r.body)
		}
		all := strings.Join(p.Warnings, "\n")
		for _, want := range []string{"after entry 95 of term 3", "n3, n4, n5", "can still form a quorum"} {
			if !strings.Contains(all, want) {
				t.Errorf("no %q in %s", want, all)
			}
		}
		if len(s.n2.fake.calls()) != 0 {
			t.Error("a dry run did something")
		}
		if r := recover2(s.n1, `{"survivors":["n2","n1"],"confirm":"c1","force":true,"reason":"r","plan_id":"`+p.PlanID+`"}`); r.status != 200 {
			t.Errorf("the plan: %+v", r)
		}
	})
}

// The node that is taken for the freshest sees it otherwise: nothing is done.
func TestRecoverDisagreement(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := twoOfFive(t)
		s.n2.fake.set(func() { s.n2.fake.left[0].LastIndex = 99 })
		p := recover2(s.n1, `{"survivors":["n1","n2"],"confirm":"c1","force":true,"reason":"r"}`).is(t, 409, cluster.CodeTermStale)
		if !strings.Contains(p.Detail, "n1") || len(s.n1.fake.calls())+len(s.n2.fake.calls()) != 0 {
			t.Errorf("%+v", p)
		}
	})
}
