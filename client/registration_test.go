package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// fakeRegistry adds application nodes to fakeRoles.
type fakeRegistry struct {
	*fakeRoles
	lock  sync.Mutex
	nodes map[string]apiv1.Node
	puts  int
}

func (fc *fakeCluster) withRegistry() *fakeRegistry {
	f := &fakeRegistry{fakeRoles: fc.withRoles(), nodes: map[string]apiv1.Node{}}
	f.ended = func(session, _ string) {
		f.lock.Lock()
		defer f.lock.Unlock()
		for id, n := range f.nodes {
			if n.SessionID == session {
				n.SessionID, n.Status = "", NodeDead
				f.nodes[id] = n
			}
		}
	}
	for _, n := range fc.nodes {
		roles := n.handle
		n.handle = func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, apiv1.PathNodes) {
				roles(w, r)
			} else if err := n.toLeader(r); err != nil {
				problem(w, err)
			} else {
				f.serveNode(w, r)
			}
		}
	}
	return f
}

func (f *fakeRegistry) serveNode(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, apiv1.PathNodes+"/")
	var in apiv1.NodePut
	_ = json.NewDecoder(r.Body).Decode(&in)
	f.mu.Lock()
	live := f.sessions[in.SessionID] != nil
	f.mu.Unlock()
	f.lock.Lock()
	defer f.lock.Unlock()
	switch n, known := f.nodes[id]; {
	case r.Method == http.MethodPut && !live:
		problem(w, fail(cluster.CodeSessionEnded))
	case r.Method == http.MethodPut:
		f.puts++
		f.nodes[id] = apiv1.Node{ID: id, SessionID: in.SessionID, Status: in.Status, Load: in.Load, Address: in.Address}
		reply(w, f.nodes[id])
	case !known:
		problem(w, notFound())
	case r.Method == http.MethodDelete:
		delete(f.nodes, id)
		reply(w, apiv1.NodeRemoved{ID: id})
	default:
		reply(w, n)
	}
}

func (f *fakeRegistry) node(id string) apiv1.Node {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.nodes[id]
}

// change makes an operator's change of a node.
func (f *fakeRegistry) change(id string, by func(n *apiv1.Node)) {
	f.lock.Lock()
	defer f.lock.Unlock()
	n := f.nodes[id]
	by(&n)
	f.nodes[id] = n
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRegistry()
		c := fc.client("n1", "n2")
		defer c.Close()
		var mu sync.Mutex
		var changes []string
		jobs := int64(0)
		reg, err := c.Register(t.Context(), RegistrationConfig{
			ID: "w1", Node: NodePut{Address: "10.0.0.7"},
			Load: func() Load { jobs++; return Load{Jobs: jobs} },
			StatusChanged: func(status string) {
				mu.Lock()
				defer mu.Unlock()
				changes = append(changes, status)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := f.node("w1"); n.Status != NodeActive || n.Address != "10.0.0.7" || n.SessionID != reg.Session().ID() {
			t.Fatalf("%+v", n)
		}
		time.Sleep(time.Minute)
		if n := f.node("w1"); n.Load == nil || n.Load.Jobs < 11 || n.Load.Jobs > 16 || n.Status != NodeActive {
			t.Errorf("after a minute of reports every 5 s: %+v", n.Load)
		}

		// An operator's change of the status is adopted, and not undone by the next report.
		f.change("w1", func(n *apiv1.Node) { n.Status = NodeDraining })
		time.Sleep(time.Minute)
		if n := f.node("w1"); n.Status != NodeDraining || reg.Status() != NodeDraining {
			t.Errorf("an operator's drain was undone: %+v, %s", n, reg.Status())
		}
		if err := reg.SetStatus(t.Context(), NodeActive); err != nil || f.node("w1").Status != NodeActive {
			t.Errorf("%v, %+v", err, f.node("w1"))
		}
		mu.Lock()
		if !slices.Equal(changes, []string{NodeDraining}) {
			t.Errorf("StatusChanged was called with %v", changes)
		}
		mu.Unlock()

		// A lost session and a removed registration are replaced.
		lost := reg.Session()
		_ = f.end(lost.ID(), "session_ended")
		time.Sleep(time.Minute)
		if n := f.node("w1"); n.Status != NodeActive || n.SessionID == lost.ID() || n.SessionID != reg.Session().ID() {
			t.Errorf("after a lost session: %+v", n)
		}
		f.lock.Lock()
		delete(f.nodes, "w1")
		f.lock.Unlock()
		time.Sleep(time.Minute)
		if f.node("w1").Status != NodeActive {
			t.Error("a removed node does not register again")
		}

		if err := reg.Drain(t.Context()); err != nil || f.node("w1").Status != NodeDraining {
			t.Errorf("%v, %+v", err, f.node("w1"))
		}
		if err := reg.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := f.node("w1"); n.ID != "" {
			t.Errorf("after Close: %+v", n)
		}
		synctest.Wait()
		if len(f.sessions) > 0 {
			t.Errorf("%d sessions are left", len(f.sessions))
		}
	}, "n1", "n2")
}

// Of two processes with one ID, the one that was started later stays registered.
func TestRegistration_Twice(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRegistry()
		c := fc.client("n1")
		defer c.Close()
		var regs []*Registration
		for range 2 {
			r, err := c.Register(t.Context(), RegistrationConfig{ID: "w1"})
			if err != nil {
				t.Fatal(err)
			}
			regs = append(regs, r)
		}
		f.lock.Lock()
		puts := f.puts
		f.lock.Unlock()
		time.Sleep(time.Minute)
		if n := f.node("w1"); n.SessionID != regs[1].Session().ID() {
			t.Errorf("%+v, the second session is %s", n, regs[1].Session().ID())
		}
		f.lock.Lock()
		if n := f.puts - puts; n > 15 {
			t.Errorf("%d registrations in a minute", n)
		}
		f.lock.Unlock()
		if err := regs[0].Drain(t.Context()); err == nil || f.node("w1").Status != NodeActive {
			t.Errorf("the first one drains: %v, %+v", err, f.node("w1"))
		}
		if err := regs[0].Close(t.Context()); err != nil || f.node("w1").SessionID != regs[1].Session().ID() {
			t.Errorf("the first one is closed: %v, %+v", err, f.node("w1"))
		}
	}, "n1")
}

// When the process that was started later has died, the earlier one registers again.
func TestRegistration_TwiceThenOne(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRegistry()
		c := fc.client("n1")
		defer c.Close()
		var regs []*Registration
		for range 2 {
			r, err := c.Register(t.Context(), RegistrationConfig{ID: "w1"})
			if err != nil {
				t.Fatal(err)
			}
			regs = append(regs, r)
		}
		if err := regs[1].Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := f.node("w1"); n.Status != NodeActive || n.SessionID != regs[0].Session().ID() {
			t.Errorf("%+v", n)
		}
	}, "n1")
}

func TestClusterInfo(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		for _, n := range fc.nodes {
			n.handle = func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/counts"):
					reply(w, apiv1.Counts{Active: 2, Total: 2})
				case r.URL.Query().Get("after") == "":
					reply(w, apiv1.Roles{Items: []apiv1.Role{{Role: "a", Holder: "x", Token: 3}}, Next: "a"})
				default:
					reply(w, apiv1.Roles{Items: []apiv1.Role{{Role: "b", Holder: "y", Token: 4}}})
				}
			}
		}
		c := fc.client("n1")
		defer c.Close()
		info, err := c.ClusterInfo(t.Context())
		if err != nil || info.Cluster.LeaderID != "n1" || info.Nodes.Active != 2 || len(info.Holders) != 2 ||
			info.Holders["b"].Name != "y" {
			t.Errorf("%+v, %v", info, err)
		}
	}, "n1")
}

// StatusChanged may close the registration. Close ends with its context while a report hangs.
func TestRegistration_Close(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRegistry()
		c := fc.client("n1")
		defer c.Close()
		var r *Registration
		closed := make(chan error, 1)
		r, err := c.Register(t.Context(), RegistrationConfig{
			ID: "a", StatusChanged: func(string) { closed <- r.Close(t.Context()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		f.lock.Lock()
		n := f.nodes["a"]
		n.Status = NodeDraining
		f.nodes["a"] = n
		f.lock.Unlock()
		if err := <-closed; err != nil || f.node("a").ID != "" || f.sessionCount() != 0 {
			t.Errorf("%v, node %+v, %d sessions", err, f.node("a"), f.sessionCount())
		}
		if err := r.SetStatus(t.Context(), NodeActive); err == nil || f.node("a").ID != "" {
			t.Errorf("SetStatus after Close: %v", err)
		}

		hung, reports := make(chan struct{}), 0
		r, err = c.Register(t.Context(), RegistrationConfig{ID: "b", Load: func() Load {
			if reports++; reports > 1 {
				<-hung
			}
			return Load{}
		}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultReportInterval)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close beside a report that hangs: %v", err)
		}
		close(hung)
		synctest.Wait()
		if f.sessionCount() != 0 {
			t.Errorf("%d sessions", f.sessionCount())
		}
	}, "n1")
}

// A report that is refused until an operator changes the cause is repeated neither immediately nor too late.
func TestRegistration_Refused(t *testing.T) {
	t.Parallel()
	for _, code := range []cluster.Code{
		cluster.CodeQuotaExceeded, cluster.CodeForbidden, cluster.CodeUnauthenticated, cluster.CodeBadRequest,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				f := fc.withRegistry()
				var refusing atomic.Bool
				var refused atomic.Int64
				inner := fc.nodes["n1"].handle
				fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
					writes := r.Method == http.MethodPut || r.URL.Path == apiv1.PathSessions
					if refusing.Load() && writes {
						refused.Add(1)
						problem(w, fail(code))
						return
					}
					inner(w, r)
				}
				c := fc.client("n1")
				defer c.Close()
				r, err := c.Register(t.Context(), RegistrationConfig{ID: "a", Interval: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				refusing.Store(true)
				time.Sleep(time.Minute)
				if n := refused.Load(); n < 10 || n > 15 {
					t.Errorf("%d reports were refused in a minute", n)
				}
				refused.Store(0)
				_ = f.end(r.Session().ID(), "expired") // it gets no other session
				time.Sleep(time.Minute)
				if n := refused.Load(); n < 10 || n > 15 {
					t.Errorf("%d sessions were refused in a minute", n)
				}
				refusing.Store(false)
				time.Sleep(DefaultReportInterval)
				if n := f.node("a"); n.Status != NodeActive || n.SessionID != r.Session().ID() {
					t.Errorf("afterwards %+v", n)
				}
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}, "n1")
		})
	}
}
