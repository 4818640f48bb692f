package clientgo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"northstar/client"
	"northstar/client/bridge"
)

// Durations of client-go's loops: the others wait for the whole seconds of a lease.
const (
	leaseDuration = 2 * time.Second
	leaseDeadline = 1500 * time.Millisecond
)

// apiServer is a fake one that refuses updates of an older version of an object, as a real one does.
type apiServer struct {
	*fake.Clientset
	mu      sync.Mutex
	version int
	down    bool
	refuse  string // renewals by this identity fail; "": none
}

var errServerDown = errors.New("connection refused")

func newAPIServer() *apiServer {
	s := &apiServer{Clientset: fake.NewClientset()}
	s.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.down {
			return true, nil, errServerDown
		}
		o, ok := a.(clienttesting.UpdateAction) // a create action, too
		if !ok {
			return false, nil, nil
		}
		lease := o.GetObject().(*coordinationv1.Lease)
		if s.refuse != "" && identity(lease) == s.refuse {
			return true, nil, errServerDown
		}
		if a.GetVerb() == "update" {
			now, err := s.Tracker().Get(a.GetResource(), a.GetNamespace(), lease.Name)
			if err != nil {
				return true, nil, err
			}
			if now.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), lease.Name, nil)
			}
		}
		s.version++
		lease.ResourceVersion = strconv.Itoa(s.version)
		var err error
		if a.GetVerb() == "update" {
			err = s.Tracker().Update(a.GetResource(), lease, a.GetNamespace())
		} else {
			err = s.Tracker().Create(a.GetResource(), lease, a.GetNamespace())
		}
		return true, lease.DeepCopy(), err
	})
	return s
}

func (s *apiServer) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *apiServer) lock(identity string) *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: role}, Client: s.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
}

func (s *apiServer) lease(t *testing.T, identity string) *Lease {
	t.Helper()
	l, err := NewLease(LeaseConfig{
		Lock: s.lock(identity), LeaseDuration: leaseDuration, RenewDeadline: leaseDeadline, RetryPeriod: retryPeriod,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// holder returns the identity in the lease.
func (s *apiServer) holder(t *testing.T) string {
	t.Helper()
	got, err := s.CoordinationV1().Leases("default").Get(t.Context(), role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return identity(got)
}

func identity(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func acquired(t *testing.T, l *Lease) (*client.Deadline, func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	held, release, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return held, release
}

// TestLease_ExcludesOthers: another candidate waits until the lease is released.
func TestLease_ExcludesOthers(t *testing.T) {
	t.Parallel()
	s := newAPIServer()
	held, release := acquired(t, s.lease(t, "a"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*leaseDuration)
	defer cancel()
	b := s.lease(t, "b")
	if _, _, err := b.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if held.ValidFor() == 0 || held.Err() != nil {
		t.Fatalf("%v left, %v", held.ValidFor(), held.Err())
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
	if h := s.holder(t); h != "" || held.ValidFor() > 0 {
		t.Errorf("%q holds the released lease", h)
	}
	_, release = acquired(t, b)
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The loop of client-go gives up when renewals fail, and would release the lease. It
// keeps the lease until its owner releases it, or it expires, which is after the owner's deadline.
func TestLease_HeldUntilTheWorkHasStopped(t *testing.T) {
	t.Parallel()
	s := newAPIServer()
	held, release := acquired(t, s.lease(t, "a"))
	s.mu.Lock()
	s.refuse = "a"
	s.mu.Unlock()
	b := make(chan time.Duration, 1)
	go func() {
		_, releaseB, err := s.lease(t, "b").Acquire(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		b <- held.ValidFor()
		_ = releaseB(context.Background())
	}()
	select {
	case <-held.Done():
		if h := s.holder(t); h == "" {
			t.Error("the loop has released the lease")
		}
	case <-time.After(limit):
		t.Error("it does not end")
	}
	if left := receive(t, b, "the next candidate"); left > 0 {
		t.Errorf("the next one holds the lease while the first has %v left", left)
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLease_ReleaseAfterTheLoop: the loop has given up because the API server was away. The lease is released when the
// server responds again, and until then it is not reported as free.
func TestLease_ReleaseAfterTheLoop(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"away": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAPIServer()
			l := s.lease(t, "a")
			held, release := acquired(t, l)
			s.set(true)
			receive(t, held.Done(), "the end of the hold")
			l.running <- struct{}{} // the loop has ended
			<-l.running
			s.set(!back)
			err := release(t.Context())
			s.set(false)
			free := s.holder(t) == ""
			if free != back || (err == nil) != back || err != nil && !errors.Is(err, errServerDown) {
				t.Errorf("%v, the lease is free: %v", err, free)
			}
		})
	}
}

// TestLease_Taken: an operator writes another holder into the lease. The hold ends long before RenewDeadline.
func TestLease_Taken(t *testing.T) {
	t.Parallel()
	s := newAPIServer()
	l, err := NewLease(LeaseConfig{
		Lock: s.lock("a"), LeaseDuration: 2 * time.Hour, RenewDeadline: time.Hour, RetryPeriod: retryPeriod,
	})
	if err != nil {
		t.Fatal(err)
	}
	held, release := acquired(t, l)
	for wrote := false; !wrote; {
		got, err := s.CoordinationV1().Leases("default").Get(t.Context(), role, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got = got.DeepCopy()
		other := "other"
		got.Spec.HolderIdentity = &other
		_, err = s.CoordinationV1().Leases("default").Update(t.Context(), got, metav1.UpdateOptions{})
		wrote = err == nil
	}
	receive(t, held.Done(), "the end of the hold")
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLease_ServerDown: a campaign fails when the API server does not respond.
func TestLease_ServerDown(t *testing.T) {
	t.Parallel()
	s := newAPIServer()
	s.set(true)
	if _, _, err := s.lease(t, "a").Acquire(t.Context()); !errors.Is(err, errServerDown) {
		t.Error(err)
	}
}

func TestNewLease(t *testing.T) {
	t.Parallel()
	good := LeaseConfig{
		Lock: newAPIServer().lock("a"), LeaseDuration: leaseDuration, RenewDeadline: leaseDeadline,
		RetryPeriod: retryPeriod,
	}
	if _, err := NewLease(good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*LeaseConfig){
		"no lock": func(c *LeaseConfig) { c.Lock = nil }, "duration": func(c *LeaseConfig) { c.LeaseDuration = 1 },
		"deadline": func(c *LeaseConfig) { c.RenewDeadline = c.LeaseDuration },
	} {
		bad := good
		change(&bad)
		if _, err := NewLease(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// recorder detects two processes that act at the same time.
type recorder struct {
	t      *testing.T
	mu     sync.Mutex
	acting string // "": none
}

func (r *recorder) act(ctx context.Context, name string) {
	r.set("", name)
	<-ctx.Done()
	r.set(name, "")
}

func (r *recorder) set(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acting != from {
		r.t.Errorf("%s acts beside %s", to, r.acting)
	}
	r.acting = to
}

// waitUntilStopped waits until a process does not act.
func (r *recorder) waitUntilStopped(name string) {
	for acting := name; acting == name; <-time.After(time.Millisecond) {
		r.mu.Lock()
		acting = r.acting
		r.mu.Unlock()
	}
}

// actor returns the process that acts, as soon as there is one.
func (r *recorder) actor() (name string) {
	r.t.Helper()
	for began := time.Now(); name == ""; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > limit {
			r.t.Fatal("no process acts")
		}
		r.mu.Lock()
		name = r.acting
		r.mu.Unlock()
	}
	return name
}

// launch starts a process of the fleet, and returns a function that ends it.
func launch(t *testing.T, run func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end
}

// legacy is a process of today, with client-go's own loop and a Lease.
func (s *apiServer) legacy(t *testing.T, rec *recorder, name string) (end func()) {
	return launch(t, func(ctx context.Context) {
		for n := 0; ctx.Err() == nil; n++ {
			one := fmt.Sprintf("%s.%d", name, n) // the process restarts when it has lost the lease
			elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
				Lock: s.lock(one), LeaseDuration: leaseDuration, RenewDeadline: leaseDeadline, RetryPeriod: retryPeriod,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(ctx context.Context) { rec.act(ctx, name) },
					OnStoppedLeading: func() {},
				},
			})
			if err != nil {
				t.Error(err)
				return
			}
			elector.Run(ctx)
			rec.waitUntilStopped(name) // the loop does not wait for the work
		}
	})
}

func (s *apiServer) moved(t *testing.T, endpoints []string, rec *recorder, name string, p bridge.Phase) func() {
	t.Helper()
	cl, err := client.New(client.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	candidate, err := cl.NewCandidate(client.CandidateConfig{
		Role: role, Session: client.SessionConfig{TTL: leaseDuration},
	})
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("%s (%v)", name, p)
	e, err := bridge.New(bridge.Config{Phase: p, Role: role, Elector: candidate, Lock: s.lease(t, name)})
	if err != nil {
		t.Fatal(err)
	}
	return launch(t, func(ctx context.Context) {
		err := client.RunAsLeader(ctx, e, leaseDuration/4, func(ctx context.Context, _ *client.Leadership) error {
			rec.act(ctx, name)
			return ctx.Err()
		})
		if ctx.Err() == nil {
			t.Error(err)
		}
	})
}

// TestLease_Move: a fleet moves from a Lease to a role, and back, one process at a time. Meanwhile the leader of the
// cluster is killed, and the API server is away. No two processes act at the same time.
func TestLease_Move(t *testing.T) {
	t.Parallel()
	c, s, rec := cluster(t), newAPIServer(), &recorder{t: t}
	fleet := make([]func(), 3)
	for i := range fleet {
		fleet[i] = s.legacy(t, rec, fmt.Sprintf("p%d (legacy)", i))
	}
	for _, p := range []bridge.Phase{
		bridge.PhaseOld, bridge.PhaseBoth, bridge.PhaseNew, bridge.PhaseBoth, bridge.PhaseOld,
	} {
		for i := range fleet {
			rec.actor()
			fleet[i]()
			fleet[i] = s.moved(t, endpoints(c), rec, fmt.Sprintf("p%d", i), p)
			if i != 1 {
				continue
			}
			n := leader(t, c)
			n.Kill()
			rec.actor()
			s.set(true)
			<-time.After(leaseDuration) // holders of the lease stop
			s.set(false)
			rec.actor()
			if err := c.StartNode(n); err != nil {
				t.Fatal(err)
			}
			leader(t, c)
		}
		actor := rec.actor()
		t.Logf("%s acts", actor)
		if !strings.HasSuffix(actor, fmt.Sprintf("(%v)", p)) {
			t.Errorf("%s acts after the step to phase %v", actor, p)
		}
	}
}
