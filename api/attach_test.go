package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

func (n *node) sessionOf(ttlMS int) string {
	n.t.Helper()
	return into[apiv1.SessionCreated](n.t,
		n.post("/v1/sessions", fmt.Sprintf("{'name':'s','ttl_ms':%d}", ttlMS))).SessionID
}

// alive reads the next event, which must be a keep-alive.
func (s *eventStream) alive() apiv1.KeepAlive {
	s.t.Helper()
	m, ok := s.next()
	var a apiv1.KeepAlive
	if err := json.Unmarshal([]byte(m.data), &a); !ok || m.event != apiv1.EventKeepAlive || err != nil {
		s.t.Fatalf("%+v, %v, %v", m, ok, err)
	}
	return a
}

func (n *node) lives(id string) bool {
	_, ok := n.fake.View().Session(id)
	return ok
}

// attachedPair is a leader that keeps time, and a follower.
func attachedPair(t *testing.T, change ...func(*Deps)) (leader, follower *node) {
	leader = startServer(t, newFakeCluster("n1", true), change...)
	f := newFakeCluster("n2", false)
	f.state, f.applies = leader.fake.state, leader.fake.applies // as if it was always up to date
	f.addRecord(cluster.Member{ID: "n1", HTTPAddress: leader.addr, RaftAddress: "h1:7700", Lifecycle: cluster.Active})
	f.lead("n1", 2)
	leader.lead()
	return leader, startServer(t, f, change...)
}

// A connection that renews its session ends with the word that a role was taken.
func TestAttach_NotifiesHolderOfRevocation(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			id := n.sessionOf(6000)
			s := n.stream("/v1/sessions/" + id + "/attach")
			s.alive()
			into[apiv1.Role](t, n.campaign("r", id, 0))
			into[apiv1.RoleChange](t, n.do("DELETE", "/admin/roles/r", ""))
			m := s.must(apiv1.EventError, "")
			var p apiv1.Problem
			if err := json.Unmarshal([]byte(m.data), &p); err != nil || p.Code != int(cluster.CodeFenced) {
				t.Fatalf("%v: %s", err, m.data)
			}
			if _, more := s.next(); more || !leader.lives(id) {
				t.Fatal("it goes on, or has ended the session")
			}
			into[apiv1.RoleResult](t, n.do("DELETE", "/v1/roles/r?session_id="+id, ""))
			n.stream("/v1/sessions/" + id + "/attach").alive()
		}
	})
}

func TestAttach(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			id := n.sessionOf(600)
			s := n.stream("/v1/sessions/" + id + "/attach")
			begun, last := time.Now(), int64(-1)
			for range 6 {
				a := s.alive()
				if a.TTLMS != 600 || a.ElapsedMS <= last && last >= 0 ||
					a.ElapsedMS > time.Since(begun).Milliseconds()+1000 {
					t.Fatalf("%+v after %d", a, last)
				}
				last = a.ElapsedMS
			}
			if !leader.lives(id) {
				t.Fatal("ended while it was attached")
			}
			s.resp.Body.Close() // the client is gone
			eventually(t, func() bool { return !leader.lives(id) })
			eventually(t, func() bool { return n.attaching.Load() == 0 })
			n.do("GET", "/v1/sessions/"+id+"/attach", "").is(t, 404, cluster.CodeSessionEnded)
		}
	})
}

// A connection that renews its session ends at an age, before the clocks of the two sides differ by much. The client
// attaches again, and counts from that request. Streams that began together end one after the other.
func TestAttach_OldStreamMoves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			path, ends := "/v1/sessions/"+n.sessionOf(1000)+"/attach", make(chan int64, 5)
			passive, ended := n.stream(path+"?hold=false"), make(chan string, 1)
			go func() {
				m, _ := passive.next() // it renews nothing, and does not age
				ended <- m.event
			}()
			for range cap(ends) {
				s := n.stream(path)
				go func() { ends <- s.moves() }()
			}
			distinct := map[int64]bool{}
			for range cap(ends) {
				last := <-ends
				if last < 50_000 || last > 100_000 {
					t.Errorf("a stream ends after %d ms", last)
				}
				distinct[last] = true
			}
			if len(distinct) == 1 {
				t.Error("all end at the same time")
			}
			again := n.stream(path)
			if a := again.alive(); a.ElapsedMS > 1000 {
				t.Errorf("%+v in a new stream", a)
			}
			again.resp.Body.Close()
			if event := <-ended; event != apiv1.EventError {
				t.Errorf("the other stream ends with %q, not with its session", event)
			}
		}
	})
}

// endsNow waits for the end of a session whose client has just gone: it must not come from the TTL.
func (n *node) endsNow(id string) {
	n.t.Helper()
	gone := time.Now()
	eventually(n.t, func() bool { return !n.lives(id) })
	if took := time.Since(gone); took > 500*time.Millisecond {
		n.t.Errorf("ended %v after its last connection", took)
	}
}

// A client attaches again after the age of its connection, and dies. The leader does not count the old connection.
func TestAttach_EndAfterMoving(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			id := n.sessionOf(1000)
			path := "/v1/sessions/" + id + "/attach"
			n.stream(path).moves()
			again := n.stream(path)
			again.alive()
			again.resp.Body.Close()
			leader.endsNow(id)
		}
	})
}

// moves reads events alive up to the event moving, or one that is too old, and returns the age of the last renewal in
// milliseconds.
func (s *eventStream) moves() (elapsed int64) {
	for m, ok := s.next(); m.event != apiv1.EventDraining && elapsed <= 100_000; m, ok = s.next() {
		var a apiv1.KeepAlive
		if err := json.Unmarshal([]byte(m.data), &a); !ok || m.event != apiv1.EventKeepAlive || err != nil {
			s.t.Errorf("%+v, %v, %v", m, ok, err)
			return -1
		}
		elapsed = a.ElapsedMS
	}
	return elapsed
}

// When the holder's client disconnects, the next candidate is elected immediately.
func TestAttach_HolderIsReplacedOnDisconnect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			a, b := n.sessionOf(60_000), n.sessionOf(60_000)
			s := n.stream("/v1/sessions/" + a + "/attach")
			s.alive()
			into[apiv1.Role](t, n.campaign("r", a, 0))
			answer := make(chan reply, 1)
			go func() { answer <- n.campaign("r", b, 60_000) }()
			eventually(t, leader.waitsFor(b))
			s.resp.Body.Close()
			if won := into[apiv1.Role](t, <-answer); won.SessionID != b {
				t.Fatalf("%+v", won)
			}
			r, _ := leader.fake.View().Role("r")
			if last := r.History[len(r.History)-1]; last.Cause != state.CauseDisconnected {
				t.Fatalf("%+v", last)
			}
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+b, ""))
		}
	})
}

// A client that disconnects before its first event was attached. Its session ends with the connection, not only
// after its TTL.
func TestAttach_ClientDisconnectsImmediately(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			id := n.sessionOf(60_000)
			asked, proven := make(chan struct{}, 1), make(chan struct{})
			leader.fake.set(func() {
				leader.fake.barrier = func(ctx context.Context) error {
					asked <- struct{}{}
					<-proven
					return ctx.Err()
				}
			})
			ctx, hangUp := context.WithCancel(t.Context())
			r := httptest.NewRequest("GET", "http://127.0.0.1/v1/sessions/"+id+"/attach", nil).WithContext(ctx)
			r.RemoteAddr = "127.0.0.1:1"
			w, over := httptest.NewRecorder(), make(chan struct{})
			go func() {
				defer close(over)
				n.ServeHTTP(w, r)
			}()
			select {
			case <-asked:
			case <-over:
				t.Fatalf("answered %d %s", w.Code, w.Body)
			}
			hangUp()
			leader.fake.set(func() { leader.fake.barrier = nil })
			close(proven)
			<-over
			eventually(t, func() bool { return !leader.lives(id) })
		}
	})
}

func TestAttachWithGrace(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, _ := attachedPair(t)
		id := leader.sessionOf(60_000)
		s := leader.stream("/v1/sessions/" + id + "/attach?grace_ms=1000")
		s.alive()
		s.resp.Body.Close()
		eventually(t, func() bool { return leader.attaching.Load() == 0 })
		again := leader.stream("/v1/sessions/" + id + "/attach?grace_ms=200")
		again.alive()
		again.resp.Body.Close()
		eventually(t, func() bool { return !leader.lives(id) })
	})
}

// A leader that learns late of the end of a connection gives the whole grace from
// then on: its client may have renewed the session since, and counts on it.
func TestAttach_GraceStartsAtLeaderReport(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const grace = 400 * time.Millisecond
		leader, follower := attachedPair(t)
		id := follower.sessionOf(60_000)
		s := follower.stream("/v1/sessions/" + id + "/attach?hold=false&grace_ms=400")
		eventually(t, func() bool { return follower.attaching.Load() == 1 })
		follower.fake.lead("", 3)
		follower.waitForLeaderView()
		s.resp.Body.Close()
		eventually(t, func() bool { return follower.attaching.Load() == 0 })
		time.Sleep(grace) // of the time after which it would be over
		if r := leader.do("POST", "/v1/sessions/"+id+"/renew", ""); r.status != 200 {
			t.Fatalf("%+v", r)
		}
		renewed := time.Now()
		follower.fake.lead("n1", 3)
		eventually(t, func() bool { return !leader.lives(id) })
		if took := time.Since(renewed); took < grace {
			t.Fatalf("ended %v after a renewal", took)
		}
	})
}

// A session that ends otherwise ends the stream with a problem.
func TestAttachedSessionEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		for _, n := range []*node{leader, follower} {
			id := n.sessionOf(500)
			s := n.stream("/v1/sessions/" + id + "/attach")
			s.alive()
			into[apiv1.SessionEnded](t, n.do("DELETE", "/v1/sessions/"+id, ""))
			for {
				m, ok := s.next()
				if !ok {
					t.Fatal("the stream ended without a word")
				}
				if m.event == apiv1.EventError {
					if !strings.Contains(m.data, "4012") {
						t.Fatalf("%+v", m)
					}
					break
				}
			}
			if _, more := s.next(); more {
				t.Fatal("something follows the end")
			}
		}
	})
}

// A node that stops, or is drained, sends its clients elsewhere, and their
// sessions live on.
func TestAttach_DrainSendsMoving(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(n *node){
		"stops":      func(n *node) { n.Drain() },
		"is drained": func(n *node) { n.fake.addRecord(cluster.Member{ID: "n2", Lifecycle: cluster.Draining}) },
	} {
		virtually(t, name, func(t *testing.T) {
			leader, follower := attachedPair(t, func(d *Deps) { d.Node.BootID = "boot-" + string(d.Node.ID) })
			id := follower.sessionOf(60_000)
			s := follower.stream("/v1/sessions/" + id + "/attach")
			s.alive()
			leave(follower)
			if m, ok := s.next(); !ok || m.event != apiv1.EventDraining {
				t.Fatalf("%+v, %v", m, ok)
			}
			s.resp.Body.Close()
			eventually(t, func() bool { return follower.attaching.Load() == 0 })
			follower.do("GET", "/v1/sessions/"+id+"/attach", "").is(t, 503, cluster.CodeBusy)
			moved := leader.stream("/v1/sessions/" + id + "/attach")
			moved.alive()
			time.Sleep(100 * time.Millisecond)
			if !leader.lives(id) {
				t.Fatal("moving has ended the session")
			}
			moved.resp.Body.Close()
			leader.endsNow(id)
		})
	}
}

// Nodes report their open connections to a new leader immediately.
func TestAttach_ReportedToNewLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		id := follower.sessionOf(60_000)
		s := follower.stream("/v1/sessions/" + id + "/attach")
		s.alive()

		f3 := newFakeCluster("n3", true)
		f3.state = leader.fake.state
		n3 := startServer(t, f3)
		n3.lead()
		follower.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: n3.addr, Lifecycle: cluster.Active})
		leader.fake.lead("n3", 3)
		follower.fake.lead("n3", 3)
		s.alive() // long before the next one is due
		s.resp.Body.Close()
		eventually(t, func() bool { return !n3.lives(id) })
	})
}

// A leader that hangs, or breaks off, is told again of the end of a connection, or
// the next one is.
func TestAttach_RetriesDisconnectReport(t *testing.T) {
	t.Parallel()
	for _, hang := range []bool{false, true} {
		for _, next := range []bool{false, true} {
			virtually(t, fmt.Sprintf("hangs %v, another leads %v", hang, next), func(t *testing.T) {
				leader, follower := attachedPair(t)
				id := follower.sessionOf(60_000)
				s := follower.stream("/v1/sessions/" + id + "/attach")
				s.alive()
				addr, requests := brokenLeader(t, hang)
				n1 := cluster.Member{ID: "n1", HTTPAddress: addr, Lifecycle: cluster.Active}
				follower.fake.addRecord(n1)
				s.resp.Body.Close()
				if next {
					eventually(t, func() bool { return requests.Load() > 0 })
					f3 := newFakeCluster("n3", true)
					f3.state = leader.fake.state
					n3 := startServer(t, f3)
					n3.lead()
					follower.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: n3.addr, Lifecycle: cluster.Active})
					follower.fake.lead("n3", 3)
				} else {
					eventually(t, func() bool { return requests.Load() > 1 })
					n1.HTTPAddress = leader.addr
					follower.fake.addRecord(n1)
				}
				eventually(t, func() bool { return !leader.lives(id) })
			})
		}
	}
}

// Without a leader a new connection waits as other requests do, and one that
// stands is told nothing.
func TestAttachWithoutALeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := attachedPair(t)
		id := follower.sessionOf(600)
		s := follower.stream("/v1/sessions/" + id + "/attach")
		s.alive()
		follower.fake.lead("", 3)
		follower.waitForLeaderView()
		start := time.Now()
		follower.do("GET", "/v1/sessions/"+id+"/attach", "").is(t, 503, cluster.CodeNoLeader)
		if took := time.Since(start); took < 500*time.Millisecond {
			t.Fatalf("answered after %v", took)
		}
		eventually(t, func() bool { return !leader.lives(id) }) // it was not renewed
	})
}

// With hold=false the client renews its session itself.
func TestAttach_NoRenew(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, _ := attachedPair(t)
		id := leader.sessionOf(500)
		leader.stream("/v1/sessions/" + id + "/attach?hold=false")
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			if r := leader.do("POST", "/v1/sessions/"+id+"/renew", ""); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
		eventually(t, func() bool { return !leader.lives(id) })
		other := leader.sessionOf(60_000)
		s := leader.stream("/v1/sessions/" + other + "/attach?hold=0")
		s.resp.Body.Close()
		eventually(t, func() bool { return !leader.lives(other) })
	})
}

func TestAttachIsChecked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.Attached = 1 })
		n.lead()
		id := n.sessionOf(60_000)
		path := "/v1/sessions/" + id + "/attach"
		n.do("GET", path+"?grace_ms=-1", "").is(t, 400, cluster.CodeBadRequest)
		n.do("GET", path+"?hold=maybe", "").is(t, 400, cluster.CodeBadRequest)
		n.do("GET", "/v1/sessions/none/attach", "").is(t, 404, cluster.CodeSessionEnded)
		for _, report := range []string{
			`{"keep":[{"session_id":"` + id + `"}]}`, `{"drop":[{"session_id":"","stream_id":"x"}]}`,
		} {
			n.do("POST", apiv1.PathAttached, report, append(forwardedBy("n2"), asJSON, apiv1.TypeJSON)...).is(t, 400,
				cluster.CodeBadRequest)
		}
		n.stream(path).alive()
		n.do("GET", path, "").is(t, 503, cluster.CodeBusy)
	})
}

// Where only tokens are believed, the client's own goes to the leader.
func TestAttach_ForwardsToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		leader, follower := attachedPair(t, withTokens(data))
		auth := []string{"Authorization", "Bearer " + tokens["client"]}
		made := into[apiv1.SessionCreated](t, follower.do("POST", "/v1/sessions", `{"ttl_ms":600}`, append(auth, asJSON, apiv1.TypeJSON)...))
		s := follower.stream("/v1/sessions/"+made.SessionID+"/attach", auth...)
		for range 5 {
			s.alive()
		}
		follower.do("GET", "/v1/sessions/"+made.SessionID+"/attach", "", "Authorization", "Bearer "+
			tokens["observer"]).is(t, 403, cluster.CodeForbidden)
		s.resp.Body.Close()
		eventually(t, func() bool { return !leader.lives(made.SessionID) })
	})
}
