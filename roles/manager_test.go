package roles

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"northstar/cluster"
	"northstar/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a cluster of one real state. It leads, and proves it, as the test
// says.
type fake struct {
	mu      sync.Mutex
	state   *state.State
	index   uint64
	leads   bool
	barrier func(context.Context) error // instead of a quick proof
	propose func(state.Command) error   // before it is applied
	viewed  func()                      // after the next look at the state, which is old by then
	ended   map[string]time.Time        // when the state was told that a session has ended
	events  []cluster.Event
}

func newFake() *fake {
	return &fake{state: state.New(state.Options{}), leads: true, ended: map[string]time.Time{}}
}

func (f *fake) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	time.Sleep(time.Millisecond) // through the log
	f.mu.Lock()
	hook, leads := f.propose, f.leads
	f.mu.Unlock()
	if hook != nil {
		if err := hook(c); err != nil {
			return state.Result{}, err
		}
	}
	if !leads {
		return state.Result{}, cluster.Errorf(cluster.CodeNoLeader, "does not lead")
	}
	return f.apply(c), nil
}

func (f *fake) apply(c state.Command) state.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	c.Now = time.Now().UnixNano()
	r := f.state.Apply(f.index, 1, []state.Command{c})[0]
	if c.Kind == state.KindSessionEnd && r.Err == nil {
		for _, id := range c.SessionEnd.IDs {
			f.ended[id] = time.Now()
		}
	}
	return r
}

func (f *fake) ReadBarrier(ctx context.Context) error {
	f.mu.Lock()
	hook, leads := f.barrier, f.leads
	f.mu.Unlock()
	if hook != nil {
		return hook(ctx)
	}
	time.Sleep(time.Millisecond)
	if !leads {
		return cluster.Errorf(cluster.CodeNoLeader, "does not lead")
	}
	return nil
}

func (f *fake) View() *state.View {
	v := f.state.View()
	f.mu.Lock()
	hook := f.viewed
	f.viewed = nil
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	return v
}

func (f *fake) RoleFeed() *state.Feed { return f.state.RoleFeed() }

func (f *fake) event(e cluster.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// session starts a session and gives its ID.
func (f *fake) session(t *testing.T, name string, ttl time.Duration) string {
	t.Helper()
	r := f.apply(state.Command{Kind: state.KindSessionCreate, SessionCreate: &state.SessionCreate{
		Nonce: "abcdefgh",
		Name:  name, TTL: ttl,
	}})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Session.ID
}

func (f *fake) campaign(t *testing.T, role, session string, delay time.Duration) *state.Role {
	t.Helper()
	r := f.apply(state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
		Role:    role,
		Session: session, Wait: true, TakeoverDelay: delay,
	}})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Role
}

// restore puts a backup in the place of the state.
func (f *fake) restore(t *testing.T, backup *state.Snapshot) {
	t.Helper()
	var raw bytes.Buffer
	if _, err := backup.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	from, err := state.ReadBackup(&raw)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := state.MergeBackup(f.state.Snapshot(), from, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	raw.Reset()
	if _, err := merged.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.state.ReadFrom(&raw); err != nil {
		t.Fatal(err)
	}
}

func (f *fake) lives(id string) bool {
	_, ok := f.View().Session(id)
	return ok
}

func (f *fake) endedAt(id string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

// clocked is a raw clock that a test can move on by itself: a process that was
// stopped finds it there when it wakes.
type clocked struct {
	mu    sync.Mutex
	start time.Time
	extra time.Duration
}

func (c *clocked) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.start) + c.extra
}

func (c *clocked) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.extra += d
}

type bench struct {
	*fake
	*SessionManager
	clock *clocked
	t     *testing.T
	end   func() // ends the leadership
}

const nodeRetention = time.Hour

// withLeader runs a test in virtual time, with a session manager whose node leads.
func withLeader(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{fake: newFake(), clock: &clocked{start: time.Now()}, t: t}
		b.SessionManager = New(Deps{
			Consensus: b.fake, Clock: b.clock.now, Event: b.event,
			LeaseGrace: 500 * time.Millisecond, NodeRetention: nodeRetention, Logger: hclog.NewNullLogger(),
		})
		b.lead()
		defer func() { b.end() }()
		test(b)
	})
}

// lead starts a leadership; end ends it.
func (b *bench) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Lead(ctx, 1)
	}()
	b.end = func() { cancel(); <-done; b.end = func() {} }
	synctest.Wait()
}

func (b *bench) renew(id string) error {
	out, err := b.Renew(b.t.Context(), []string{id})
	switch {
	case err != nil:
		return err
	case len(out.Revoked) == 1:
		return cluster.Errorf(cluster.CodeFenced, "parted")
	case len(out.Alive) == 0:
		return cluster.Errorf(cluster.CodeSessionEnded, "ended")
	}
	return nil
}

func (b *bench) mustRenew(id string) {
	b.t.Helper()
	if err := b.renew(id); err != nil {
		b.t.Fatalf("renewal: %v", err)
	}
}

// late is how much later than its TTL a session may end.
const late = 600 * time.Millisecond

func TestSessionsExpire(t *testing.T) {
	withLeader(t, func(b *bench) {
		short, long := b.session(t, "short", time.Second), b.session(t, "long", 10*time.Second)
		began := time.Now()
		for range 20 {
			time.Sleep(400 * time.Millisecond)
			b.mustRenew(short)
		}
		if !b.lives(short) || !b.lives(long) {
			t.Fatal("a session ended in its time")
		}
		last := time.Now()
		time.Sleep(5 * time.Second)
		if took := b.endedAt(short).Sub(last); took < time.Second-5*time.Millisecond || took > time.Second+late {
			t.Fatalf("ended %v after its last renewal", took)
		}
		if took := b.endedAt(long).Sub(began); took < 10*time.Second || took > 10*time.Second+late {
			t.Fatalf("ended %v after it began", took)
		}
		if err := b.renew(short); !cluster.IsCode(err, cluster.CodeSessionEnded) {
			t.Fatal(err)
		}
	})
}

// A lease lives longer than its TTL, which clients of etcd count from the answer to a renewal. They are told the TTL.
func TestLeaseGrace(t *testing.T) {
	withLeader(t, func(b *bench) {
		for ttl, grace := range map[int64]time.Duration{1: 500 * time.Millisecond, 20: 2 * time.Second} {
			r := b.apply(state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: ttl, TTL: ttl}})
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			id, least := r.Session.ID, r.Session.TTL+grace
			time.Sleep(500 * time.Millisecond)
			b.mustRenew(id)
			last := time.Now()
			if left := b.Remaining(r.Session); left > r.Session.TTL || left < r.Session.TTL-10*time.Millisecond {
				t.Errorf("%v left of %v", left, r.Session.TTL)
			}
			time.Sleep(least + time.Second)
			if took := b.endedAt(id).Sub(last); took < least-5*time.Millisecond || took > least+late {
				t.Errorf("a lease of %v ended %v after its last renewal", r.Session.TTL, took)
			}
		}
	})
}

// Who was proven to lead only after the time of a session had passed must not
// have ended it in the meantime.
func TestRenew_PendingRenewalDefersExpiry(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		time.Sleep(900 * time.Millisecond)
		b.set(func() {
			b.barrier = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
		})
		b.mustRenew(id)
		if !b.lives(id) {
			t.Fatal("ended while its renewal was on the way")
		}
		b.set(func() {
			b.barrier = func(context.Context) error {
				time.Sleep(3 * time.Second)
				return cluster.Errorf(cluster.CodeNoLeader, "cut off")
			}
		})
		if err := b.renew(id); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Fatal(err)
		}
		time.Sleep(late)
		if b.lives(id) {
			t.Fatal("a renewal that failed must not hold a session for ever")
		}
	})
}

// A renewal that comes while the end of its session is on its way through the
// log is not answered before that is known.
func TestRenew_WaitsForPendingExpiry(t *testing.T) {
	for name, c := range map[string]struct {
		err   error // of the proposal, once
		alive bool
	}{
		"it ended":            {nil, false},
		"not proposed":        {cluster.Errorf(cluster.CodeBusy, "busy"), true},
		"unknown immediately": {cluster.Errorf(cluster.CodeOutcomeUnknown, "lost"), false},
	} {
		t.Run(name, func(t *testing.T) {
			withLeader(t, func(b *bench) {
				id := b.session(t, "s", time.Second)
				begun, tries := make(chan struct{}), 0
				b.set(func() {
					b.propose = func(state.Command) error {
						if tries++; tries == 1 {
							close(begun)
							time.Sleep(2 * time.Second)
							return c.err
						}
						return nil
					}
				})
				<-begun
				start := time.Now()
				err := b.renew(id)
				if took := time.Since(start); took < 1900*time.Millisecond {
					t.Fatalf("answered after %v: %v", took, err)
				}
				if c.alive != (err == nil) || c.alive != b.lives(id) || !c.alive &&
					!cluster.IsCode(err, cluster.CodeSessionEnded) {
					t.Fatalf("%v; it lives: %v", err, b.lives(id))
				}
			})
		})
	}
}

// The end that is on its way when a renewal comes takes effect just after the
// renewal has looked whether its session lives.
func TestRenew_SessionExpiresDuringBarrier(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		begun, release := make(chan struct{}), make(chan struct{})
		b.set(func() {
			b.propose = func(state.Command) error {
				close(begun)
				<-release
				return nil
			}
			b.barrier = func(context.Context) error {
				b.set(func() {
					b.barrier = nil
					b.viewed = func() {
						close(release)
						for lives := true; lives; runtime.Gosched() {
							_, lives = b.state.View().Session(id)
						}
					}
				})
				return nil
			}
		})
		<-begun
		if err := b.renew(id); !cluster.IsCode(err, cluster.CodeSessionEnded) || b.lives(id) {
			t.Fatalf("%v; it lives: %v", err, b.lives(id))
		}
	})
}

// An outcome that is unknown when the leadership ends is not reported: neither an ended session nor a renewal.
func TestLeadershipLost_WhileExpiryPending(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		begun, once := make(chan struct{}), sync.Once{}
		b.set(func() {
			b.propose = func(state.Command) error {
				once.Do(func() { close(begun) })
				return cluster.Errorf(cluster.CodeOutcomeUnknown, "lost")
			}
		})
		<-begun
		answer := make(chan error, 1)
		go func() { answer <- b.renew(id) }()
		time.Sleep(time.Second)
		b.end()
		if err := <-answer; !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Fatal(err)
		}
	})
}

func TestRenew_DeposedLeaderFails(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.set(func() { b.leads = false })
		if err := b.renew(id); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Fatal(err)
		}
		b.end()
		if err := b.renew(id); !cluster.IsCode(err, cluster.CodeNoLeader) {
			t.Fatal(err)
		}
	})
}

// A leader that was stopped gives every session its time again before it ends
// any: renewals that came meanwhile have not been read.
func TestPausedLeader(t *testing.T) {
	withLeader(t, func(b *bench) {
		const ttl = 2 * time.Second
		ids := []string{}
		for i := range 10 {
			ids = append(ids, b.session(t, fmt.Sprint(i), ttl))
		}
		for _, id := range ids { // so that they are of all ages
			b.mustRenew(id)
			time.Sleep(150 * time.Millisecond)
		}
		b.clock.jump(time.Minute)
		time.Sleep(maxTick) // it wakes, and looks at what is due before it reads a renewal
		for _, id := range ids {
			b.mustRenew(id)
		}
		time.Sleep(ttl - 50*time.Millisecond)
		for _, id := range ids {
			if !b.lives(id) {
				t.Fatal("a pause of the leader has ended a session")
			}
		}
		time.Sleep(late)
		for _, id := range ids {
			if b.lives(id) {
				t.Fatal("a session outlives its TTL")
			}
		}
	})
}

// A leader change never shortens a session.
func TestNewLeader_ResetsSessionTTLs(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		for range 3 {
			time.Sleep(950 * time.Millisecond)
			b.end()
			time.Sleep(10 * time.Second) // without a leader
			b.lead()
		}
		began := time.Now()
		time.Sleep(3 * time.Second)
		if took := b.endedAt(id).Sub(began); took < time.Second || took > time.Second+late {
			t.Fatalf("ended %v after the leadership began", took)
		}
	})
}

// A renewal may arrive in one leadership and be confirmed in the next.
func TestRenew_AcrossLeaderChange(t *testing.T) {
	withLeader(t, func(b *bench) {
		id := b.session(t, "s", time.Second)
		b.set(func() {
			b.barrier = func(context.Context) error { time.Sleep(1500 * time.Millisecond); return nil }
		})
		answer := make(chan error, 1)
		var at time.Time
		go func() {
			err := b.renew(id)
			at = time.Now()
			answer <- err
		}()
		time.Sleep(100 * time.Millisecond)
		b.end()
		time.Sleep(500 * time.Millisecond)
		b.lead()
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if took := b.endedAt(id).Sub(at); took < time.Second {
			t.Fatalf("ended %v after its renewal was answered", took)
		}
	})
}

func TestManySessionsEndTogether(t *testing.T) {
	withLeader(t, func(b *bench) {
		const n = 3*maxExpireBatch + 7
		commands := 0
		b.set(func() {
			b.propose = func(c state.Command) error {
				if c.Kind == state.KindSessionEnd {
					commands++
				}
				return nil
			}
		})
		for range n {
			b.session(t, "s", time.Second)
		}
		time.Sleep(2*time.Second + late)
		if left := b.View().Sessions(); left != 0 {
			t.Fatalf("%d sessions are left", left)
		}
		synctest.Wait()
		if commands > 10 {
			t.Fatalf("%d commands for %d sessions", commands, n)
		}
		b.SessionManager.mu.Lock()
		defer b.SessionManager.mu.Unlock()
		if r := b.leaderState; len(r.sessions) != 0 || len(r.due) != 0 || len(r.expiring) != 0 {
			t.Fatalf("%d entries, %d due, %d ending", len(r.sessions), len(r.due), len(r.expiring))
		}
	})
}
