package roles

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// fakeReporter is the leader as a node that serves connections sees it.
type fakeReporter struct {
	mu       sync.Mutex
	leader   context.Context
	depose   context.CancelFunc
	down     bool             // it answers nothing
	mute     bool             // it renews, and its answer is lost
	ended    map[string]bool  // sessions that have ended
	leave    bool             // this node is drained
	renewals map[string][]int // for each session: seconds since the start
	detached []string
	graces   []time.Duration // of detached
	batches  [][]string      // credential and sessions
	start    time.Time
}

func newFakeReporter() *fakeReporter {
	f := &fakeReporter{ended: map[string]bool{}, renewals: map[string][]int{}, start: time.Now()}
	f.elect()
	return f
}

// reported returns the sessions whose connections have ended.
func (f *fakeReporter) reported() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.detached)
}

// elect lets another leader begin.
func (f *fakeReporter) elect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.depose != nil {
		f.depose()
	}
	f.leader, f.depose = context.WithCancel(context.Background())
}

func (f *fakeReporter) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeReporter) Leader() context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader
}

func (f *fakeReporter) Renew(_ context.Context, credential string, list []cluster.Attachment) ([]cluster.AttachResult,
	error,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, noLeader("it is down")
	}
	out := make([]cluster.AttachResult, len(list))
	batch := []string{credential}
	for i, a := range list {
		out[i].TTL = 6 * time.Second
		if f.ended[a.Session] {
			out[i] = cluster.AttachResult{Err: cluster.Errorf(cluster.CodeSessionEnded, "ended")}
		}
		f.renewals[a.Session] = append(f.renewals[a.Session], int(time.Since(f.start).Seconds()))
		batch = append(batch, a.Session)
	}
	f.batches = append(f.batches, batch)
	if f.mute {
		return nil, noLeader("it did not answer")
	}
	return out, nil
}

func (f *fakeReporter) Detach(_ context.Context, _ string, list []cluster.Attachment) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return noLeader("it is down")
	}
	for _, a := range list {
		f.detached, f.graces = append(f.detached, a.Session), append(f.graces, a.Grace)
	}
	return nil
}

func (f *fakeReporter) LeaveThisNode() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leave
}

// attached runs a test with Attachments in virtual time.
func attached(t *testing.T,
	test func(f *fakeReporter, attach func(session, credential string) cluster.AttachedSession),
) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeReporter()
		h := NewAttachments(f, 300*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); _ = h.Run(ctx) }()
		test(f, func(session, credential string) cluster.AttachedSession {
			s, err := h.Attach(ctx, cluster.Connection{
				Attachment: cluster.Attachment{Session: session, Stream: "x-" + session}, Credential: credential,
				Unacknowledged: func() bool { return false },
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		})
		cancel()
		<-over
		f.depose()
	})
}

func TestAttachments_RenewInBatchesEveryThirdOfTheTTL(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		s := attach("a", "one")
		attach("b", "one")
		attach("c", "two")
		for i := range 3 {
			if k := <-s.Events; int(k.RenewedAt.Sub(f.start).Seconds()) != 2*i || k.Last() {
				t.Fatalf("event %d: %+v", i, k)
			}
		}
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range []string{"a", "b", "c"} {
			if !slices.Equal(f.renewals[id], []int{0, 2, 4}) {
				t.Errorf("%s was renewed at %v", id, f.renewals[id])
			}
		}
		together := 0
		for _, batch := range f.batches {
			if slices.Contains(batch, "c") != (batch[0] == "two") {
				t.Errorf("a batch mixes credentials: %v", batch)
			}
			if len(batch) > 2 {
				together++
			}
		}
		if together == 0 {
			t.Errorf("no sessions were renewed together: %v", f.batches)
		}
	})
}

func TestAttachments_NewLeaderLearnsOfAllImmediately(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		s := attach("a", "")
		<-s.Events
		time.Sleep(500 * time.Millisecond)
		f.elect()
		if k := <-s.Events; k.RenewedAt.Sub(f.start) != 500*time.Millisecond {
			t.Errorf("renewed after %v", k.RenewedAt.Sub(f.start))
		}
	})
}

func TestAttachments_SilenceIsNoRenewal(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		s := attach("a", "")
		<-s.Events
		f.set(func() { f.down = true })
		if k := <-s.Events; !k.CommentOnly || time.Since(f.start) < maxKeepAliveInterval {
			t.Errorf("%+v after %v", k, time.Since(f.start))
		}
		f.set(func() { f.down, f.ended["a"] = false, true })
		if k := <-s.Events; !k.Last() || !cluster.IsCode(k.Err, cluster.CodeSessionEnded) {
			t.Errorf("%+v", k)
		}
		s.Detach(false)
		time.Sleep(time.Minute)
		if len(f.reported()) > 0 {
			t.Error("the end of a session that has ended was reported")
		}
	})
}

func TestAttachments_EndIsReportedUntilItIsHeard(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		a, b := attach("a", ""), attach("b", "")
		f.set(func() { f.down = true })
		a.Detach(true)
		time.Sleep(5 * time.Second)
		b.Detach(true)
		time.Sleep(2 * time.Second) // now the session of a has expired
		f.set(func() { f.down = false })
		time.Sleep(time.Second)
		if got := f.reported(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("reported: %v", got)
		}
	})
}

// The leader is told of the connection of a client that was sent away, and shortens no TTL for it.
func TestAttachments_EndOfAClientThatWasSentAway(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		away, gone := attach("away", ""), attach("gone", "")
		away.Detach(false)
		gone.Detach(true)
		synctest.Wait()
		if got := f.reported(); !slices.Equal(got, []string{"away", "gone"}) {
			t.Fatalf("reported: %v", got)
		}
		if f.graces[0] < away.TTL || f.graces[1] != 0 {
			t.Errorf("with the graces %v", f.graces)
		}
	})
}

func TestAttachments_DrainedNodeSendsClientsAway(t *testing.T) {
	attached(t, func(f *fakeReporter, attach func(string, string) cluster.AttachedSession) {
		s := attach("a", "")
		<-s.Events
		f.set(func() { f.leave = true })
		if k := <-s.Events; !k.Draining || !k.Last() || time.Since(f.start) > drainPollInterval {
			t.Errorf("%+v after %v", k, time.Since(f.start))
		}
	})
}

// The leader may have recorded a connection although its answer was lost. It learns of the end, also late, and shortens
// no TTL for it: the client was never told that its session depends on the connection.
func TestAttachments_GiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeReporter()
		defer func() { f.depose() }()
		h := NewAttachments(f, 300*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); _ = h.Run(ctx) }()
		defer func() { cancel(); <-over }()
		c := cluster.Connection{
			Attachment:     cluster.Attachment{Session: "a", Stream: "x-a"},
			Unacknowledged: func() bool { return false },
		}
		f.set(func() { f.mute = true })
		if _, err := h.Attach(ctx, c); err == nil || len(f.renewals["a"]) != 1 {
			t.Fatalf("renewed at %v, %v", f.renewals["a"], err)
		}
		f.set(func() { f.down = true })
		h.GiveUp(c)
		time.Sleep(5 * time.Second)
		if got := f.reported(); len(got) > 0 {
			t.Errorf("reported: %v", got)
		}
		f.set(func() { f.down = false })
		time.Sleep(time.Second)
		if got := f.reported(); !slices.Equal(got, []string{"a"}) || f.graces[0] != state.MaxSessionTTL {
			t.Errorf("reported: %v with %v", got, f.graces)
		}
		time.Sleep(time.Hour)
		if len(f.renewals["a"]) != 1 || len(f.reported()) != 1 {
			t.Errorf("renewed at %v, and ended: %v", f.renewals["a"], f.reported())
		}
	})
}
