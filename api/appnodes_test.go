package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

func (n *node) register(id, session, more string) reply {
	n.t.Helper()
	body := fmt.Sprintf(`{"session_id":%q%s}`, session, strings.ReplaceAll(more, "'", `"`))
	return n.do("PUT", "/v1/nodes/"+id, body, asJSON, apiv1.TypeJSON)
}

func TestNodes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.session("a"), n.session("b")
			s := leader.stream("/v1/nodes/watch")
			w1 := into[apiv1.Node](t, n.register("w1", a,
				",'hostname':'h','address':'10.0.0.1','http_port':80,'roles':['worker','gateway'],'capabilities':['gpu'],'load':{'connections':3,'jobs':2,'cpu':0.5,'memory':0.25}"))
			if w1.Status != "active" || !w1.CanAcceptWork || w1.Load == nil || w1.Load.CPU != 0.5 ||
				w1.SessionID != a || len(w1.Roles) != 2 {
				t.Fatalf("%+v", w1)
			}
			if m, _ := s.next(); m.event != "put" || m.id != fmt.Sprint(w1.Revision) || !strings.Contains(m.data, `"id":"w1"`) ||
				!strings.Contains(m.data, `"started_at":null,"last_heartbeat_at":null`) {
				t.Fatalf("%+v", m)
			}
			into[apiv1.Node](t, n.register("w2", b, ",'status':'joining','roles':['worker']"))
			// The load alone writes nothing.
			before := leader.fake.View().Revision()
			again := into[apiv1.Node](t, n.register("w1", a,
				",'hostname':'h','address':'10.0.0.1','http_port':80,'roles':['worker','gateway'],'capabilities':['gpu'],'load':{'connections':4,'jobs':0,'cpu':0,'memory':2048}"))
			if again.Load.Connections != 4 || leader.fake.View().Revision() != before {
				t.Fatalf("%+v", again)
			}
			// A load belongs to the session that has reported it.
			into[apiv1.Node](t, n.register("w2", b, ",'status':'joining','roles':['worker'],'load':{'jobs':9}"))
			kept := into[apiv1.Node](t, n.register("w2", b, ",'status':'joining','roles':['worker']"))
			if kept.Load == nil || kept.Load.Jobs != 9 {
				t.Fatalf("the load is not kept: %+v", kept)
			}
			if other := into[apiv1.Node](t, n.register("w2", a, "")); other.Load != nil {
				t.Fatalf("the load of another session: %+v", other.Load)
			}
			into[apiv1.Node](t, n.register("w2", b, ",'status':'joining','roles':['worker'],'load':{'jobs':8}"))
			into[apiv1.NodeRemoved](t, n.do("DELETE", "/v1/nodes/w2", ""))
			again = into[apiv1.Node](t, n.register("w2", b, ",'status':'joining','roles':['worker']"))
			if again.Load != nil {
				t.Fatalf("the load from before the removal: %+v", again.Load)
			}
			for query, want := range map[string]int{
				"": 2, "?status=active": 1, "?role=worker": 2, "?role=gateway": 1,
				"?capability=gpu": 1, "?capability=none": 0, "?role=worker&status=joining": 1, "?limit=1": 1,
			} {
				list := into[apiv1.Nodes](t, n.do("GET", "/v1/nodes"+query, ""))
				if len(list.Items) != want || (list.Next != "") != (query == "?limit=1") {
					t.Errorf("%s: %+v", query, list)
				}
			}
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+b, ""))
			if counts := into[apiv1.Counts](t, n.do("GET", "/v1/nodes/counts", "")); counts != (apiv1.Counts{
				Active: 1,
				Dead:   1, Total: 2,
			}) {
				t.Fatalf("%+v", counts)
			}
			if w2 := into[apiv1.Node](t, n.do("GET", "/v1/nodes/w2", "")); w2.Status != "dead" || w2.CanAcceptWork ||
				w2.SessionID != "" {
				t.Fatalf("%+v", w2)
			}
			n.register("w2", b, "").is(t, 404, cluster.CodeSessionEnded)
			for _, id := range []string{"w1", "w2"} {
				into[apiv1.NodeRemoved](t, n.do("DELETE", "/v1/nodes/"+id, ""))
				n.do("DELETE", "/v1/nodes/"+id, "").is(t, 404, cluster.CodeNotFound)
				n.do("GET", "/v1/nodes/"+id, "").is(t, 404, cluster.CodeNotFound)
			}
			for more, field := range map[string]string{
				",'status':'dead'": "status", ",'http_port':65536": "http_port", ",'load':{'cpu':-0.5}": "load",
				",'load':{'cpu':'a'}": "load.cpu: must be a number", ",'load':{'cores':2}": "load.cores",
				",'load':{'CPU':1}": "load.CPU", ",'load':{'cpu':1,'cpu':2}": "load.cpu", ",'load':7": "load",
				",'roles':['']": "roles", ",'rolls':[]": "rolls",
			} {
				if p := n.register("w3", a, more).is(t, 400, cluster.CodeBadRequest); !strings.HasPrefix(p.Detail,
					field) {
					t.Errorf("%s: %s", more, p.Detail)
				}
			}
			n.register("counts", a, "").is(t, 405, cluster.CodeBadRequest)
			n.do("GET", "/v1/nodes?status=gone", "").is(t, 400, cluster.CodeBadRequest)
		}
	})
}

// What a node told an earlier leader of its load is not shown as if it were new.
func TestAppNodeLoad_IsPerLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		a := n.session("a")
		into[apiv1.Node](t, n.register("w1", a, ",'load':{'connections':4}"))
		f.lead("n1", 9)
		n.waitForLeaderView()
		if w := into[apiv1.Node](t, n.do("GET", "/v1/nodes/w1", "")); w.Load != nil {
			t.Fatalf("%+v", w)
		}
	})
}

// A new leader has not applied the newest change of a node when it gets a registration.
func TestNodes_RegisteredAtANewLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		a := n.session("a")
		into[apiv1.Node](t, n.register("w1", a, ""))
		drain := sync.OnceFunc(func() {
			f.apply(state.Command{Kind: state.KindAppNodePut, Now: 1, AppNodePut: &state.AppNodePut{
				Node: state.AppNode{ID: "w1", Session: a, Status: state.AppDraining},
			}})
		})
		f.set(func() { f.barrier = func(context.Context) error { drain(); return nil } })
		if w := into[apiv1.Node](t, n.register("w1", a, "")); w.Status != "active" {
			t.Errorf("registered as active, and it is %+v", w)
		}
	})
}

// The start of a node and its last heartbeat are those of its session. Only the leader knows the heartbeat.
func TestNodes_Times(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		a := leader.session("a")
		began := time.Now()
		leader.lead()
		time.Sleep(4 * time.Second)
		registered := time.Now()
		into[apiv1.Node](t, leader.register("w1", a, ""))
		read := func(query string) apiv1.Node {
			return into[apiv1.Node](t, follower.do("GET", "/v1/nodes/w1"+query, ""))
		}
		near := func(at *time.Time, want time.Time) bool {
			return at != nil && at.Sub(want).Abs() < 200*time.Millisecond
		}
		if n := read(""); !near(n.StartedAt, began) || !near(n.LastHeartbeatAt, began) ||
			!near(&n.RegisteredAt, registered) {
			t.Errorf("%+v, began %v", n, began)
		}
		leader.do("POST", "/v1/sessions/"+a+"/renew", "")
		renewed := time.Now()
		time.Sleep(3 * time.Second)
		if n := read(""); !near(n.StartedAt, began) || !near(n.LastHeartbeatAt, renewed) {
			t.Errorf("%+v, renewed %v", n, renewed)
		}
		n := into[apiv1.Node](t, leader.do("GET", "/v1/nodes/w1?consistency=stale", ""))
		if !near(n.StartedAt, began) || n.LastHeartbeatAt != nil {
			t.Errorf("stale: %+v", n)
		}
		time.Sleep(2 * time.Minute)
		if n := read(""); n.Status != "dead" || n.StartedAt != nil || n.LastHeartbeatAt != nil {
			t.Errorf("dead: %+v", n)
		}
	})
}

// Two sessions register the same ID concurrently. The one that was replaced meanwhile still lives: it is not told
// otherwise.
func TestNodes_ReplacedMeanwhile(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		a, b := n.session("a"), n.session("b")
		n.fake.set(func() {
			n.fake.propose = func(_ context.Context, c state.Command) (state.Result, error) {
				result := n.fake.apply(c)
				other := *c.AppNodePut
				other.Node.Session = b
				n.fake.apply(state.Command{Kind: state.KindAppNodePut, Now: c.Now, AppNodePut: &other})
				return result, nil
			}
		})
		got := into[apiv1.Node](t, n.register("w1", a, ",'load':{'jobs':3}"))
		if got.SessionID != b || got.Load != nil {
			t.Errorf("session %s is registered, want %s; load %v of the other one", got.SessionID, b, got.Load)
		}
	})
}

// An operator removes a node while it registers, and its session lives on: the answer is that it is not registered.
func TestNodes_RemovedMeanwhile(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true))
		session := n.session("a")
		n.fake.set(func() {
			n.fake.propose = func(_ context.Context, c state.Command) (state.Result, error) {
				result := n.fake.apply(c)
				remove := &state.AppNodeRemove{IDs: []string{"w1"}}
				n.fake.apply(state.Command{Kind: state.KindAppNodeRemove, Now: c.Now, AppNodeRemove: remove})
				return result, nil
			}
		})
		n.register("w1", session, ",'load':{'jobs':3}").is(t, http.StatusNotFound, cluster.CodeNotFound)
		n.fake.set(func() { n.fake.propose = nil })
		if got := into[apiv1.Node](t, n.register("w1", session, "")); got.SessionID != session || got.Load != nil {
			t.Errorf("session %s is registered, want %s; load %v", got.SessionID, session, got.Load)
		}
	})
}
