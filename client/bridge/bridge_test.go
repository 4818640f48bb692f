package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/client"
)

// fleet has the two systems of a move.
type fleet struct{ role, lock *system }

func newFleet() fleet { return fleet{newSystem(), newSystem()} }

func (f fleet) elector(t *testing.T, p Phase, change func(*Config)) client.Elector {
	t.Helper()
	began := time.Now()
	cfg := Config{
		Phase: p, Role: "r", Elector: &elector{s: f.role}, Lock: f.lock,
		Clock: func() time.Duration { return time.Since(began) },
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func campaigned(t *testing.T, e client.Elector) *client.Leadership {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := e.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// free reports whether nothing holds the system.
func (s *system) free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner == nil || !time.Now().Before(s.owner.expires)
}

// A fleet moves from old to new and back, process by process, while both systems fail at random. No two processes act
// at the same time.
func TestMove(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { move(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

const movers = 4

func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}

func move(t *testing.T, random *rand.Rand) {
	f, rec := newFleet(), newRecorder(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	start := func(name string, p Phase) (stop func()) {
		e := f.elector(t, p, nil)
		linger := upTo(random, stopEarly*3/4)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		all.Go(func() {
			defer close(ended)
			_ = client.RunAsLeader(ctx, e, stopEarly, rec.lead(name, linger))
		})
		return func() { cancel(); <-ended }
	}
	stops, phases := make([]func(), movers), make([]Phase, movers)
	for i := range stops {
		stops[i] = start(fmt.Sprintf("p%d/old", i), PhaseOld)
	}
	for _, p := range []Phase{PhaseBoth, PhaseNew, PhaseBoth, PhaseOld} {
		for _, i := range random.Perm(movers) {
			if time.Sleep(upTo(random, 3*time.Second)); random.IntN(3) == 0 {
				fault(f, random)
			}
			stops[i]()
			phases[i] = p
			if !Exclusive(phases...) {
				t.Fatalf("phases %v", phases)
			}
			stops[i] = start(fmt.Sprintf("p%d/%v", i, p), p)
		}
		before := sum(rec)
		fault(f, random)
		time.Sleep(20 * time.Second)
		if sum(rec) == before && len(rec.acting) == 0 {
			t.Errorf("no process acts in phase %v", p)
		}
	}
	cancel()
	all.Wait()
	time.Sleep(2 * ttl)
}

func sum(r *recorder) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, turns := range r.turns {
		n += turns
	}
	return n
}

// fault disturbs the role or the lock.
func fault(f fleet, random *rand.Rand) {
	s := f.role
	if random.IntN(2) == 0 {
		s = f.lock
	}
	if random.IntN(2) == 0 {
		s.revoke()
		return
	}
	s.set(true)
	time.Sleep(upTo(random, 2*ttl))
	s.set(false)
}

// The lock is held as long as the work of a lost tenure may run, and the role as long as that of a lost lock.
func TestLoss_KeepsTheOtherUntilTheWorkHasStopped(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(f fleet) (lost, kept *system, cause error){
		"role": func(f fleet) (*system, *system, error) { return f.role, f.lock, client.ErrRoleLost },
		"lock": func(f fleet) (*system, *system, error) { return f.lock, f.role, ErrLockLost },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				e := f.elector(t, PhaseBoth, nil)
				l := campaigned(t, e)
				lost, kept, cause := lose(f)
				lost.revoke()
				<-l.Done()
				if !errors.Is(l.Cause(), cause) || !errors.Is(l.Cause(), client.ErrNotLeader) {
					t.Errorf("it ended: %v", l.Cause())
				}
				time.Sleep(10 * ttl)
				if kept.free() {
					t.Error("the other was released before the work has stopped")
				}
				next := campaigned(t, e) // the work has stopped
				if next.Token <= l.Token {
					t.Errorf("token %d after %d", next.Token, l.Token)
				}
				if err := next.Resign(t.Context()); err != nil {
					t.Error(err)
				}
				if !f.role.free() || !f.lock.free() {
					t.Error("not released")
				}
			})
		})
	}
}

// A tenure never outlasts the deadline of either, and its end is final.
func TestDeadline_IsTheEarlierOne(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]func(f fleet) *system{
		"role": func(f fleet) *system { return f.role },
		"lock": func(f fleet) *system { return f.lock },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				e := f.elector(t, PhaseBoth, nil)
				l := campaigned(t, e)
				time.Sleep(10 * ttl) // renewals extend it
				if l.ValidFor() < ttl/2 {
					t.Fatalf("%v left of a renewed tenure: %v", l.ValidFor(), l.Cause())
				}
				s := silent(f)
				s.set(true)
				s.mu.Lock()
				owner := s.owner
				s.mu.Unlock()
				for owner.deadline.ValidFor() > 0 {
					if l.ValidFor() > owner.deadline.ValidFor() {
						t.Fatalf("%v left, %v of the %s", l.ValidFor(), owner.deadline.ValidFor(), name)
					}
					time.Sleep(5 * time.Millisecond)
				}
				if !errors.Is(l.Cause(), client.ErrLeaseLapsed) {
					t.Errorf("it ended: %v", l.Cause())
				}
				s.set(false)
				time.Sleep(ttl)
				if l.ValidFor() > 0 || l.Cause() == nil {
					t.Error("it lasts again")
				}
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// When renewals are late, the work has the time to stop that it asked for, although the deadline was read many times.
func TestDeadline_LeavesTimeToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		began, reads := time.Now(), atomic.Int64{}
		e := f.elector(t, PhaseBoth, func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(began) + time.Duration(reads.Add(1)) }
		})
		l := campaigned(t, e)
		ctx, cancel := l.Context(t.Context(), stopEarly)
		defer cancel()
		time.Sleep(5 * ttl)
		f.role.set(true)
		<-ctx.Done()
		if left := l.ValidFor(); left < stopEarly-10*time.Millisecond {
			t.Errorf("%v left to stop", left)
		}
		f.role.set(false)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// While renewals are late, the work that has stopped early does not start again: another campaign waits for a renewal,
// or for the end of the tenure.
func TestCampaign_RenewalsAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var calls atomic.Int64
		var all sync.WaitGroup
		all.Go(func() {
			_ = client.RunAsLeader(ctx, e, stopEarly, func(leading context.Context, _ *client.Leadership) error {
				if calls.Add(1); leading.Err() != nil {
					t.Error("the work starts with a context that has ended")
					cancel()
				}
				<-leading.Done()
				return leading.Err()
			})
		})
		time.Sleep(5 * ttl)
		f.role.set(true)
		time.Sleep(3 * ttl)
		if n := calls.Load(); n != 1 {
			t.Errorf("the work started %d times", n)
		}
		f.role.set(false)
		time.Sleep(3 * ttl)
		if n := calls.Load(); n != 2 {
			t.Errorf("the work started %d times after the renewals succeed again", n)
		}
		cancel()
		all.Wait()
	})
}

// A new tenure is proven, too: renewals of the role were late when the takeover delay was over.
func TestCampaign_BeginsProven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, func(c *Config) { c.TakeoverDelay = 5 * ttl })
		time.AfterFunc(5*ttl-ttl*11/20, func() { f.role.set(true) })
		time.AfterFunc(5*ttl+ttl/20, func() { f.role.set(false) })
		if l := campaigned(t, e); l.ValidFor() < ttl*4/10 {
			t.Errorf("%v left", l.ValidFor())
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A campaign that ends while renewals are late releases role and lock.
func TestCampaign_EndsWhileRenewalsAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, nil)
		l := campaigned(t, e)
		f.role.set(true)
		time.Sleep(ttl * 6 / 10)
		ctx, cancel := context.WithTimeout(t.Context(), ttl/20)
		defer cancel()
		if _, err := e.Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !errors.Is(l.Cause(), client.ErrResigned) || !f.lock.free() {
			t.Errorf("the tenure ended: %v; the lock is free: %v", l.Cause(), f.lock.free())
		}
	})
}

// Both are lost at the same moment. Nothing is free before the work has stopped.
func TestLoss_Both(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, nil)
		l := campaigned(t, e)
		f.role.revoke()
		f.lock.revoke()
		<-l.Done()
		if f.role.free() || f.lock.free() {
			t.Error("released before the work has stopped")
		}
		if next := campaigned(t, e); next.Token <= l.Token {
			t.Errorf("token %d after %d", next.Token, l.Token)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// While a process in phase old holds the lock, the holder of the role waits. If the lock cannot be asked for, it gives
// the role to processes in phase new.
func TestLockDown_GivesTheRoleToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		old := campaigned(t, f.elector(t, PhaseOld, nil))
		if old.Token != 0 {
			t.Errorf("token %d in phase old", old.Token)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		e := f.elector(t, PhaseBoth, nil)
		both.Go(func() {
			if l, err := e.Campaign(ctx); err == nil {
				t.Errorf("elected with token %d", l.Token)
			}
		})
		time.Sleep(10 * ttl)
		if f.role.free() {
			t.Error("the candidate does not hold the role")
		}
		f.lock.set(true)
		l := campaigned(t, f.elector(t, PhaseNew, nil))
		time.Sleep(10 * ttl)
		if l.Cause() != nil {
			t.Error(l.Cause())
		}
		cancel()
		both.Wait()
		f.lock.set(false)
		if err := errors.Join(old.Resign(t.Context()), l.Resign(t.Context())); err != nil && !errors.Is(err, errDown) {
			t.Error(err)
		}
		time.Sleep(2 * ttl)
		if !f.role.free() || !f.lock.free() {
			t.Error("not released")
		}
	})
}

// A campaign that ends releases what it has.
func TestCampaign_EndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		old := campaigned(t, f.elector(t, PhaseOld, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
		defer cancel()
		if _, err := f.elector(t, PhaseBoth, nil).Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !f.role.free() {
			t.Error("the role was not released")
		}
		if err := old.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A campaign that ended while it waited for the role, or that could not ask for it, does not keep the next one from
// winning.
func TestCampaign_AfterOneThatFailed(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"its context": context.DeadlineExceeded, "its elector": errRefused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				holder := campaigned(t, f.elector(t, PhaseNew, nil))
				refuses := &refusingElector{Elector: &elector{s: f.role}, refuse: want == errRefused}
				e := f.elector(t, PhaseBoth, func(c *Config) { c.Elector = refuses })
				ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
				defer cancel()
				if _, err := e.Campaign(ctx); !errors.Is(err, want) {
					t.Error(err)
				}
				refuses.refuse = false
				if err := holder.Resign(t.Context()); err != nil {
					t.Error(err)
				}
				campaigned(t, e)
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

var errRefused = errors.New("permission denied")

// refusingElector cannot campaign while refuse is set, or for the reason in closed.
type refusingElector struct {
	client.Elector
	refuse bool
	closed error
}

func (e *refusingElector) Campaign(ctx context.Context) (*client.Leadership, error) {
	if e.refuse || e.closed != nil {
		return nil, cmp.Or(e.closed, errRefused)
	}
	return e.Elector.Campaign(ctx)
}

// The owner of the role's elector has closed it: the campaign ends, since no further attempt can succeed.
func TestCampaign_ElectorClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newFleet().elector(t, PhaseBoth, func(c *Config) {
			c.Elector = &refusingElector{Elector: c.Elector, closed: client.ErrResigned}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := e.Campaign(ctx); !errors.Is(err, client.ErrResigned) || ctx.Err() != nil {
			t.Errorf("%v, and the context %v", err, ctx.Err())
		}
	})
}

// A process waits for the takeover delay with role and lock.
func TestTakeoverDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, func(c *Config) { c.TakeoverDelay = 7 * time.Second })
		began := time.Now()
		time.AfterFunc(5*time.Second, f.lock.revoke)
		l := campaigned(t, e)
		if took := time.Since(began); took < 12*time.Second {
			t.Errorf("elected after %v", took)
		}
		if again := campaigned(t, e); again != l {
			t.Error("the holder gets another tenure")
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !errors.Is(l.Cause(), client.ErrResigned) || !f.role.free() || !f.lock.free() {
			t.Errorf("not released: %v", l.Cause())
		}
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	f := newFleet()
	good := Config{Phase: PhaseBoth, Role: "r", Elector: &elector{s: f.role}, Lock: f.lock}
	for want, change := range map[string]func(*Config){
		"Phase":         func(c *Config) { c.Phase = 3 },
		"role":          func(c *Config) { c.Role = "" },
		"Elector":       func(c *Config) { c.Elector = nil },
		"Lock":          func(c *Config) { c.Lock = nil },
		"TakeoverDelay": func(c *Config) { c.TakeoverDelay = -1 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), want+":") {
			t.Errorf("%s: %v", want, err)
		}
	}
	if e, err := New(Config{Phase: PhaseNew, Role: "r", Elector: good.Elector}); err != nil || e != good.Elector {
		t.Errorf("phase new: %v, %v", e, err)
	}
	e, err := New(Config{Phase: PhaseOld, Role: "r", Lock: f.lock})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range e.Observe(t.Context()) {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
	}
	for h, err := range f.elector(t, PhaseBoth, nil).Observe(t.Context()) {
		if err != nil || h.Role != "r" {
			t.Error(h, err)
		}
	}
}

// slowLock takes a minute to be released.
type slowLock struct {
	t         *testing.T
	releasing atomic.Bool
}

func (s *slowLock) Acquire(context.Context) (*client.Deadline, func(context.Context) error, error) {
	if s.releasing.Load() {
		s.t.Error("Acquire while the last hold is being released")
	}
	d := client.NewDeadline(nil)
	d.Extend(d.Now(), time.Hour)
	return d, func(context.Context) error {
		d.End(context.Canceled)
		s.releasing.Store(true)
		defer s.releasing.Store(false)
		time.Sleep(time.Minute)
		return nil
	}, nil
}

// The lock is lost, and its release takes long: the next attempt waits for that, because it would free the new hold.
func TestCampaign_WaitsForTheRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newFleet().elector(t, PhaseBoth, func(c *Config) { c.Lock = &slowLock{t: t}; c.Clock = nil })
		l := campaigned(t, e)
		e.(*Elector).latest.lock.End(context.Canceled)
		<-l.Done()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if _, err := e.Campaign(ctx); err != nil {
			t.Error(err)
		}
		_ = e.Close(t.Context())
		time.Sleep(3 * time.Minute)
	})
}

// stuckLock takes as long to be released as the caller waits.
type stuckLock struct{ *system }

func (l stuckLock) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	held, _, err := l.system.Acquire(ctx)
	return held, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, err
}

// The system of the lock does not respond to the release. The role is resigned although the time is over.
func TestRelease_LockDoesNotRespond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		e := f.elector(t, PhaseBoth, func(c *Config) { c.Lock = stuckLock{f.lock} })
		l := campaigned(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), releaseTimeout)
		defer cancel()
		if err := l.Resign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if !f.role.free() {
			t.Error("the role is still held")
		}
		f.lock.mu.Lock()
		defer f.lock.mu.Unlock()
		f.lock.owner.stop()
	})
}

// Close ends a campaign that waits for the lock or for the role, and nothing is held after it.
func TestClose_EndsACampaign(t *testing.T) {
	t.Parallel()
	for _, phase := range []Phase{PhaseOld, PhaseNew} {
		t.Run("beside "+phase.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet()
				holder := campaigned(t, f.elector(t, phase, nil))
				e, ended := f.elector(t, PhaseBoth, nil), make(chan error, 1)
				go func() {
					ended <- client.RunAsLeader(t.Context(), e, 0, func(context.Context, *client.Leadership) error {
						return errRefused
					})
				}()
				time.Sleep(5 * ttl)
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if err := holder.Resign(t.Context()); err != nil || !f.role.free() || !f.lock.free() {
					t.Errorf("%v; free: role %v, lock %v", err, f.role.free(), f.lock.free())
				}
				if _, err := e.Campaign(t.Context()); !errors.Is(err, client.ErrResigned) {
					t.Errorf("a later campaign: %v", err)
				}
			})
		})
	}
}
