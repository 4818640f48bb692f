package splitbrain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"northstar/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testCluster is what a Watcher of n1 in a cluster of three sees; the test changes it.
type testCluster struct {
	mu          sync.Mutex
	self        cluster.Claim
	servers     []cluster.Server
	claims      map[cluster.NodeID]cluster.Claim // fresh, as long as they are there
	silent      map[cluster.NodeID]time.Time     // last heard then
	http        map[cluster.NodeID]Answer        // none: no answer
	changed     chan struct{}
	probed      []string
	hung        map[string]bool // addresses at which a hello is not answered
	fetched     int
	polls       int
	notified    int
	stepped     []uint64
	events      []string
	detected    int
	onPoll      func()
	onProbe     func(address string)
	proves      bool
	disbelieved cluster.NodeID // when it claims a newer generation
	onLook      func()         // called once, when a check has looked at the claims
	onVerify    func()
}

func newTestCluster() *testCluster {
	w := &testCluster{
		servers: voters("n1", "n2", "n3"), claims: map[cluster.NodeID]cluster.Claim{},
		silent: map[cluster.NodeID]time.Time{},
		http:   map[cluster.NodeID]Answer{}, changed: make(chan struct{}),
	}
	w.self = w.claim("n1", 5, "n1")
	for _, id := range []cluster.NodeID{"n2", "n3"} {
		w.claims[id] = w.claim(id, 5, "n1")
		w.http[id] = Answer{By: id, ClusterID: "C", Generation: cluster.Generation{Number: 1}, Term: 5, LeaderID: "n1"}
	}
	return w
}

func (w *testCluster) claim(id cluster.NodeID, term uint64, leader cluster.NodeID) cluster.Claim {
	c := cluster.Claim{
		NodeID: id, ClusterID: "C", Generation: cluster.Generation{Number: 1}, BootID: "boot-" + string(id),
		Term: term, LeaderID: leader, Role: cluster.Follower,
	}
	if id == leader {
		c.Role = cluster.Leader
	}
	return c
}

// change changes the world, and lets the watcher know of new claims.
func (w *testCluster) change(f func()) {
	w.mu.Lock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
}

// looked calls onLook, if this is the first look at the claims after a check has asked peers for their leader.
func (w *testCluster) looked() {
	w.mu.Lock()
	f := w.onLook
	if w.fetched == 0 {
		f = nil
	}
	if f != nil {
		w.onLook = nil
	}
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

func get[T any](w *testCluster, f func() T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

func (w *testCluster) deps() Deps {
	return Deps{
		Self:    func() cluster.Claim { return get(w, func() cluster.Claim { return w.self }) },
		Servers: func() []cluster.Server { return get(w, func() []cluster.Server { return w.servers }) },
		Changed: func() <-chan struct{} { return get(w, func() <-chan struct{} { return w.changed }) },
		Claims: func() map[cluster.NodeID]cluster.ReceivedClaim {
			defer w.looked()
			return get(w, func() map[cluster.NodeID]cluster.ReceivedClaim {
				seen := map[cluster.NodeID]cluster.ReceivedClaim{}
				for id, c := range w.claims {
					seen[id] = cluster.ReceivedClaim{Claim: c, At: time.Now(), Connected: true}
					if at := w.silent[id]; !at.IsZero() {
						seen[id] = cluster.ReceivedClaim{Claim: c, At: at, Connected: true}
					}
				}
				return seen
			})
		},
		Believes: func(id cluster.NodeID) bool { return get(w, func() bool { return id != w.disbelieved }) },
		Poll: func(context.Context, []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
			w.change(func() {
				w.polls++
				if w.onPoll != nil {
					w.onPoll()
				}
			})
			return nil
		},
		FetchLeader: func(ctx context.Context, id cluster.NodeID) (Answer, string, error) {
			w.mu.Lock()
			a, ok := w.http[id]
			w.fetched++
			w.mu.Unlock()
			if !ok {
				<-ctx.Done() // a node that hangs
				return Answer{}, string(id) + ":7701", errors.New("no answer")
			}
			return a, string(id) + ":7701", nil
		},
		Probe: func(ctx context.Context, address string) bool {
			w.change(func() { w.probed = append(w.probed, address) })
			if f := get(w, func() func(string) { return w.onProbe }); f != nil {
				f(address)
			}
			if get(w, func() bool { return w.hung[address] }) {
				<-ctx.Done()
				return false
			}
			return true
		},
		VerifyLeadership: func(context.Context) error {
			if seen := get(w, func() func() { return w.onVerify }); seen != nil {
				seen()
			}
			if get(w, func() bool { return w.proves }) {
				return nil
			}
			return errors.New("does not lead")
		},
		BroadcastClaim: func() { w.change(func() { w.notified++ }) },
		Detected:       func() { w.change(func() { w.detected++ }) },
		StepDown: func(term uint64, _ string) {
			w.change(func() {
				w.stepped = append(w.stepped, term)
				w.self.Role, w.self.LeaderID = cluster.Follower, ""
			})
		},
		Event: func(e cluster.Event, alarm bool) {
			w.change(func() {
				text := e.Fields["verdict"].(string)
				if !alarm {
					text += " over"
				}
				w.events = append(w.events, text)
			})
		},
	}
}

// watched runs a Watcher in a bubble until f returns.
func watched(t *testing.T, f func(t *testing.T, w *testCluster, watcher *Detector)) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster()
		watcher := New(Config{
			Self: "n1", BootID: "boot-n1", RaftAddress: "n1:7700", Interval: time.Second,
			TimeoutMin: 150 * time.Millisecond, TimeoutMax: 300 * time.Millisecond,
		}, w.deps())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- watcher.Run(ctx) }()
		synctest.Wait()
		time.Sleep(time.Millisecond) // f looks after a check, and not at the moment of one
		f(t, w, watcher)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func verdict(t *testing.T, watcher *Detector) Verdict {
	t.Helper()
	r, err := watcher.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.Verdict
}

func TestWatcherHealthy(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		time.Sleep(10 * time.Second)
		if verdict(t, watcher) != OK || watcher.Refusing() != "" || !watcher.MayVote() {
			t.Errorf("%s, refusing %q", verdict(t, watcher), watcher.Refusing())
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fetched > 2*11 || len(w.events) != 0 || w.polls != 0 || len(w.probed) != 0 {
			t.Errorf("%d questions, %d polls, probes %v, events %v", w.fetched, w.polls, w.probed, w.events)
		}
	})
}

func TestCheckNow(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		first, _ := watcher.Report(t.Context())
		time.Sleep(10 * time.Millisecond)
		var asking sync.WaitGroup
		for range 5 {
			asking.Go(func() {
				r, err := watcher.Check(t.Context())
				if err != nil || !r.CheckedAt.After(first.CheckedAt) {
					t.Errorf("checked at %v: %v", r.CheckedAt, err)
				}
			})
		}
		asking.Wait()
	})
	watcher := New(Config{Interval: time.Second}, newTestCluster().deps())
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := watcher.Report(ctx); err == nil {
		t.Error("a report of a watcher that does not run")
	}
}

// A node of a newer generation is reported. This node refuses service only if it believes that node.
func TestNewerGeneration_Believed(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		for _, disbelieved := range []cluster.NodeID{"n9", ""} {
			synctest.Wait() // another check follows one that was asked for
			w.change(func() { w.disbelieved = disbelieved })
			watcher.OnHello(cluster.Peer{BootID: "boot-n9", Identity: cluster.Identity{
				NodeID: "n9", ClusterID: "C", Generation: cluster.Generation{Number: 2, RecoveryID: "r"},
			}})
			r, err := watcher.Check(t.Context())
			if err == nil && disbelieved == "" && r.Verdict == SplitBrain { // it steps down by this, and knows no leader
				r, err = watcher.Check(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			want := SplitBrain
			if disbelieved == "" {
				want = OldGeneration
			}
			if refuses := watcher.Refusing() != ""; r.Verdict != want || refuses != (disbelieved == "") {
				t.Errorf("disbelieved %q: %s, refusing %v", disbelieved, r.Verdict, refuses)
			}
		}
		if stepped := get(w, func() []uint64 { return slices.Clone(w.stepped) }); len(stepped) != 1 {
			t.Errorf("stepped down in %v", stepped)
		}
		if all := get(w, func() []string { return slices.Clone(w.events) }); !slices.Contains(all, "split_brain") {
			t.Errorf("events %q", all)
		}
	})
}

// TestHungPeerHoldsUpNoCheck: a peer that does not answer a hello delays no later check. It is still asked,
// and its return is seen.
func TestHungPeerHoldsUpNoCheck(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		w.change(func() {
			delete(w.claims, "n3")
			w.http["n3"] = Answer{By: "n2"} // an immediate answer that does not come from n3
			w.hung = map[string]bool{"n3:7700": true}
		})
		check := func() time.Duration {
			start := time.Now()
			if _, err := watcher.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		if took := check(); took > watcher.probeTimeout() {
			t.Errorf("the first check took %v", took)
		}
		asked := func() int { return len(get(w, func() []string { return slices.Clone(w.probed) })) }
		before := asked()
		for range 10 {
			if took := check(); took > 0 {
				t.Errorf("a check took %v, held up by a hello", took)
			}
			time.Sleep(2 * watcher.probeTimeout())
		}
		if n := asked() - before; n < 10 || n > 40 {
			t.Errorf("said hello %d times more", n)
		}
		w.change(func() { w.hung = nil })
		time.Sleep(3 * time.Second)
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		if g := watcher.hellos["n3:7700"]; g != answered {
			t.Errorf("it answers again, and counts as %d", g)
		}
	})
}

// A claim that arrives while a check runs, after the check has looked at the claims, leads to another one immediately.
func TestStaleSelf_ClaimDuringACheck(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, _ *Detector) {
		w.change(func() { w.claims["n2"] = w.claim("n2", 6, "n2") })
		synctest.Wait()
		looked := make(chan struct{})
		w.mu.Lock()
		w.fetched = 0
		w.onLook = func() {
			w.change(func() { w.claims["n3"] = w.claim("n3", 6, "n2") })
			close(looked)
		}
		w.mu.Unlock()
		<-looked
		time.Sleep(10 * time.Millisecond)
		if s := get(w, func() int { return len(w.stepped) }); s != 1 {
			t.Errorf("deposed %d times within 10 ms", s)
		}
	})
}

// TestStaleSelf: a leader learns immediately from its peers' claims that it no longer leads. One peer alone
// cannot make it believe that.
func TestStaleSelf(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		time.Sleep(300 * time.Millisecond)
		w.change(func() {
			w.proves = true
			w.claims["n2"] = w.claim("n2", 6, "n2")
			w.claims["n3"] = w.claim("n3", 6, "n2")
		})
		synctest.Wait()
		if s := get(w, func() int { return len(w.stepped) }); s != 0 || watcher.Refusing() != "" {
			t.Fatal("deposed although it can prove that it leads")
		}
		w.change(func() {
			w.proves = false
			w.claims["n3"] = w.claim("n3", 5, "n1")
		})
		time.Sleep(time.Second + conflictInterval/2) // until between two checks
		if s := get(w, func() int { return len(w.stepped) }); s != 0 {
			t.Fatal("deposed by one claim")
		}
		start := time.Now()
		w.change(func() { w.claims["n3"] = w.claim("n3", 6, "n2") })
		for get(w, func() int { return len(w.stepped) }) == 0 {
			time.Sleep(time.Millisecond)
			if time.Since(start) > 10*time.Millisecond {
				t.Fatal("not deposed")
			}
		}
		if watcher.Refusing() == "" || get(w, func() uint64 { return w.stepped[0] }) != 5 {
			t.Errorf("refusing %q, deposed of term %v", watcher.Refusing(), w.stepped)
		}
		w.change(func() { w.self = w.claim("n1", 6, "n2") })
		time.Sleep(conflictInterval + time.Millisecond)
		if watcher.Refusing() != "" {
			t.Errorf("goes on refusing: %s", watcher.Refusing())
		}
		time.Sleep(5 * time.Second)
		if got := strings.Join(get(w, func() []string { return slices.Clone(w.events) }),
			","); got != "stale_leader,stale_leader over" || w.detected != 1 {
			t.Errorf("events %s, %d detected", got, w.detected)
		}
	})
}

// TestStaleSelf_NoticesMeanwhile: a busy node notices the next leader while its own leadership is verified. Then it is
// a follower, and refuses nothing.
func TestStaleSelf_NoticesMeanwhile(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		time.Sleep(300 * time.Millisecond)
		verified := false
		w.change(func() {
			w.onVerify = func() { w.change(func() { w.self, verified = w.claim("n1", 6, "n2"), true }) }
			w.claims["n2"] = w.claim("n2", 6, "n2")
			w.claims["n3"] = w.claim("n3", 6, "n2")
		})
		time.Sleep(10 * time.Millisecond)
		stepped, events := get(w, func() int { return len(w.stepped) }), get(w, func() int { return len(w.events) })
		if stepped != 0 || events != 0 || watcher.Refusing() != "" {
			t.Errorf("deposed %d times, %d events, refusing %q", stepped, events, watcher.Refusing())
		}
		if !get(w, func() bool { return verified }) {
			t.Error("its leadership was not verified")
		}
	})
}

// TestLiarIsNotBelieved: endless claims of later terms by one peer depose no leader, and cost at most one
// check per interval.
func TestLiarIsNotBelieved(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, _ *Detector) {
		start := get(w, func() int { return w.fetched })
		for i := range 1000 {
			w.change(func() {
				w.claims["n2"] = w.claim("n2", uint64(6+i), "n2")
				w.http["n2"] = Answer{
					By: "n2", ClusterID: "C", Generation: cluster.Generation{Number: 1},
					Term:     uint64(6 + i),
					LeaderID: "n2",
				}
			})
			time.Sleep(5 * time.Millisecond)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.stepped) != 0 || len(w.events) != 0 {
			t.Errorf("deposed of %v, events %v", w.stepped, w.events)
		}
		if checks := (w.fetched - start) / 2; checks > 7+int(5*time.Second/conflictInterval) {
			t.Errorf("%d checks in 5 s", checks)
		}
	})
}

// TestStaleOther: another leader of an earlier term is told, once it has said
// again that it leads; one that has merely fallen silent is not counted.
func TestStaleOther(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		w.change(func() {
			w.self = w.claim("n1", 6, "n1")
			w.claims["n2"] = w.claim("n2", 6, "n1")
			w.claims["n3"] = w.claim("n3", 5, "n3")
			w.silent["n3"] = time.Now() // it was stopped just after that
			delete(w.http, "n3")
		})
		time.Sleep(2 * time.Second)
		if got := get(w, func() int { return len(w.events) }); got != 0 {
			t.Fatalf("a silent leader counts: %v", w.events)
		}
		w.change(func() { delete(w.silent, "n3") })
		time.Sleep(3 * time.Second)
		if v := verdict(t, watcher); v != StaleLeader || get(w, func() int { return w.notified }) != 1 ||
			watcher.Refusing() != "" {
			t.Errorf("%s, told %d times", v, w.notified)
		}
		// It was on its way out: what it says when asked again is what counts.
		w.change(func() { w.claims["n3"] = w.claim("n3", 6, "n1") })
		time.Sleep(10 * time.Second)
		w.change(func() {
			w.claims["n3"] = w.claim("n3", 5, "n3")
			w.onPoll = func() { w.claims["n3"] = w.claim("n3", 6, "n1") }
		})
		time.Sleep(3 * time.Second)
		if got := strings.Join(get(w, func() []string { return slices.Clone(w.events) }),
			","); got != "stale_leader,stale_leader over" {
			t.Errorf("events %s", got)
		}
	})
}

// TestStrangers: processes of another cluster at the members' addresses are
// seen by their hellos.
func TestStrangers(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		w.change(func() {
			clear(w.claims)
			clear(w.http)
		})
		stranger := func(id cluster.NodeID) cluster.Peer {
			return cluster.Peer{Identity: cluster.Identity{
				NodeID: id, ClusterID: "D",
				Generation: cluster.Generation{Number: 1},
			}, BootID: "other-" + string(id), RaftAddress: string(id) +
				":7700"}
		}
		time.Sleep(10 * time.Second)
		if v := verdict(t, watcher); v != Unreachable || watcher.Refusing() != "" {
			t.Errorf("alone: %s", v)
		}
		probed := get(w, func() []string { return slices.Compact(slices.Sorted(slices.Values(w.probed))) })
		if strings.Join(probed, ",") != "n2:7700,n3:7700" {
			t.Errorf("said hello at %v", probed)
		}
		for range 5 {
			watcher.OnHello(stranger("n2"))
			watcher.OnHello(stranger("n3"))
			time.Sleep(time.Second)
		}
		if v := verdict(t, watcher); v != ForeignCluster || watcher.Refusing() == "" || !watcher.MayVote() {
			t.Errorf("%s, refusing %q", v, watcher.Refusing())
		}
		time.Sleep(10 * time.Second)
		if v := verdict(t, watcher); v != Unreachable || watcher.Refusing() != "" {
			t.Errorf("after they have gone: %s", v)
		}
	})
}

// TestOlderGeneration: a process of an older generation is no conflict, and is not reported when it has stopped. Only
// one that leads is a conflict, as its HTTP address says: it has no monitor connection.
func TestOlderGeneration(t *testing.T) {
	watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
		left := cluster.Peer{Identity: cluster.Identity{
			NodeID: "n2", ClusterID: "C", Generation: cluster.Generation{Number: 1},
		}, BootID: "boot-n2", RaftAddress: "n2:7700"}
		w.change(func() {
			w.self.Generation, w.servers = cluster.Generation{Number: 2, RecoveryID: "r"}, voters("n1")
			clear(w.claims)
			clear(w.http)
		})
		time.Sleep(5 * time.Second)
		reports := func(want Verdict) { // the next check
			t.Helper()
			time.Sleep(time.Second + time.Millisecond)
			if v := verdict(t, watcher); v != want || watcher.Refusing() != "" {
				t.Errorf("%s, refusing %q, want %s", v, watcher.Refusing(), want)
			}
		}
		watcher.OnHello(left) // its last one
		reports(OK)
		w.change(func() { w.onProbe = func(string) { watcher.OnHello(left) } })
		watcher.OnHello(left)
		reports(OldGeneration)
		time.Sleep(3 * time.Second)
		if n := get(w, func() int { return w.detected + len(w.events) }); n != 0 {
			t.Errorf("an alarm of a process that knows no leader: %d, %v", n, w.events)
		}
		w.change(func() {
			w.http["n2"] = Answer{By: "n2", ClusterID: "C", Generation: left.Generation, Term: 4, LeaderID: "n3"}
		})
		reports(OldGeneration) // n3 may be dead
		w.change(func() {
			w.http["n2"] = Answer{By: "n2", ClusterID: "C", Generation: left.Generation, Term: 4, LeaderID: "n2"}
		})
		reports(SplitBrain)
		if n := get(w, func() int { return w.detected }); n != 1 {
			t.Errorf("detected %d conflicts", n)
		}
	})
}

// A node follows the leader that it names while it hears it: that leader may have died.
func TestClaims_FollowHeardLeaders(t *testing.T) {
	t.Parallel()
	d := New(Config{Self: "n1", TimeoutMax: 300 * time.Millisecond}, Deps{})
	for _, tt := range []struct {
		name  string
		claim cluster.Claim
		want  bool
	}{
		{"it hears it", cluster.Claim{LeaderID: "n3", LeaderContactAge: 299 * time.Millisecond}, true},
		{"not any more", cluster.Claim{LeaderID: "n3", LeaderContactAge: 300 * time.Millisecond}, false},
		{"it never did", cluster.Claim{LeaderID: "n3", LeaderContactAge: -1}, false},
		{"it is dead", cluster.Claim{LeaderID: "n3", LeaderProcessDead: true}, false},
		{"itself", cluster.Claim{LeaderID: "n2", Role: cluster.Leader}, false},
		{"none", cluster.Claim{}, false},
	} {
		tt.claim.NodeID = "n2"
		if got := d.fromPeerClaim(tt.claim, "n2:7700", now); got.Follows != tt.want {
			t.Errorf("%s: follows %v, want %v", tt.name, got.Follows, tt.want)
		}
	}
}

// TestDuplicateIDs: the two processes of an ID are told by a peer, or find each other
// where the configuration says that they are. They do not vote meanwhile.
func TestDuplicateIDs(t *testing.T) {
	double := cluster.Peer{Identity: cluster.Identity{
		NodeID: "n1", ClusterID: "C",
		Generation: cluster.Generation{Number: 1},
	}, BootID: "second", RaftAddress: "elsewhere:7700"}
	t.Run("told", func(t *testing.T) {
		watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
			w.change(func() {
				c := w.claims["n3"]
				c.DuplicateIDs = "n9 n1"
				w.claims["n3"] = c
			})
			time.Sleep(2 * time.Second)
			if watcher.Refusing() != "" || !slices.Contains(get(w, func() []string { return w.probed }), "n1:7700") {
				t.Errorf("refusing %q, said hello at %v", watcher.Refusing(), w.probed)
			}
		})
	})
	t.Run("met", func(t *testing.T) {
		watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
			w.change(func() { w.servers = slices.Clone(w.servers); w.servers[0].Address = "elsewhere:7700" })
			time.Sleep(2 * time.Second)
			if !slices.Contains(get(w, func() []string { return w.probed }), "elsewhere:7700") {
				t.Error("did not look where the configuration has it")
			}
			watcher.OnHello(double)
			time.Sleep(time.Second)
			if watcher.Refusing() == "" || watcher.MayVote() || watcher.DuplicateIDs() != "n1" {
				t.Errorf("refusing %q, may vote %v, tells %q", watcher.Refusing(), watcher.MayVote(),
					watcher.DuplicateIDs())
			}
		})
	})
	t.Run("of another node", func(t *testing.T) {
		watched(t, func(t *testing.T, w *testCluster, watcher *Detector) {
			first, second := double, double
			first.NodeID, first.BootID, first.RaftAddress = "n3", "boot-n3", "n3:7700"
			second.NodeID = "n3"
			for range 6 {
				watcher.OnHello(first)
				watcher.OnHello(second)
				time.Sleep(time.Second)
			}
			if v := verdict(t, watcher); v != SplitBrain || watcher.Refusing() != "" || watcher.DuplicateIDs() != "n3" {
				t.Errorf("%s, refusing %q, tells %q", v, watcher.Refusing(), watcher.DuplicateIDs())
			}
			probed := maps.Collect(func(yield func(string, bool) bool) {
				for _, a := range get(w, func() []string { return w.probed }) {
					yield(a, true)
				}
			})
			if !probed["n3:7700"] || !probed["elsewhere:7700"] {
				t.Errorf("said hello at %v", probed)
			}
		})
	})
}
