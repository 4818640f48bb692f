package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// attachedTo returns the node that a session is attached to, and the other one.
func (fc *fakeCluster) attachedTo(t *testing.T) (node, other string) {
	t.Helper()
	for _, name := range []string{"n1", "n2"} {
		for _, r := range fc.requests(name) {
			if strings.HasSuffix(r.URL.Path, "/attach") {
				return name, []string{"n2", "n1"}[slices.Index([]string{"n1", "n2"}, name)]
			}
		}
	}
	t.Fatal("not attached")
	return "", ""
}

// brokenBody is a response that breaks when it is closed.
type brokenBody chan struct{}

func (b brokenBody) Read([]byte) (int, error) { <-b; return 0, io.ErrUnexpectedEOF }
func (b brokenBody) Close() error             { return nil }

// A session is attached again in the moment in which its old connection, which was silent, breaks. Nothing would open a
// gate that is shut after that.
func TestAttach_LateDoubt(t *testing.T) { // not parallel: it looks at all goroutines
	c, err := New(Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := &Session{c: c, id: "s", ttl: time.Minute, deadline: NewDeadline(nil)}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	body, replaced, over := make(brokenBody), new(atomic.Bool), make(chan struct{})
	st := &stream{res: &http.Response{Body: body}, node: "http://127.0.0.1:1", ctx: ctx, cancel: cancel}
	go func() { defer close(over); s.waitDisconnect(ctx, st, replaced) }()
	s.deadline.mu.Lock()
	close(body)
	for stacks := make([]byte, 1<<20); !bytes.Contains(stacks, []byte("client.(*Deadline).doubt")); {
		stacks = stacks[:runtime.Stack(stacks[:cap(stacks)], true)]
	}
	replaced.Store(true)
	s.deadline.mu.Unlock()
	<-over
	s.deadline.mu.Lock()
	defer s.deadline.mu.Unlock()
	if s.deadline.unproven != nil {
		t.Error("the gate stays shut")
	}
}

// The node dies that an attached session without grace is connected to. The client cannot tell that from a connection
// that was cut on its way, after which the role has another holder. So the gate is shut until the session is
// attached again. The tenure goes on.
func TestGate_ShutWhileAttachingAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1", "n2")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: time.Minute, Attach: true})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		var g Gate
		g.Bind(l)
		work, stop := l.Context(t.Context(), 0)
		defer stop()
		during, inside := make(chan error, 1), make(chan struct{})
		finish := make(chan struct{})
		go func() {
			during <- g.Do(t.Context(), func(context.Context, uint64) error {
				close(inside)
				<-finish
				return nil
			})
		}()
		<-inside

		node, other := fc.attachedTo(t)
		fc.hang(other)
		fc.kill(node)
		synctest.Wait()
		if err := g.Require(); !errors.Is(err, ErrUnproven) || !errors.Is(err, ErrNotLeader) {
			t.Errorf("the gate is open without an attached session: %v", err)
		}
		if err := g.Check(l.Token); !errors.Is(err, ErrUnproven) {
			t.Errorf("Check: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := g.Do(short, func(context.Context, uint64) error {
			t.Error("work was done")
			return nil
		}); !errors.Is(err, ErrUnproven) {
			t.Errorf("Do, until its context ended: %v", err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- g.Do(t.Context(), func(context.Context, uint64) error { return nil }) }()
		close(finish)
		synctest.Wait()
		select {
		case err := <-during:
			t.Fatalf("unproven work has succeeded: %v", err)
		case err := <-waiting:
			t.Fatalf("Do did not wait: %v", err)
		default:
		}

		fc.elect(other)
		fc.resume(other)
		if err := <-during; err != nil {
			t.Error(err)
		}
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if g.Require() != nil || l.Cause() != nil || work.Err() != nil {
			t.Errorf("attached again: %v, %v, %v", g.Require(), l.Cause(), work.Err())
		}
	}, "n1", "n2")
}

// The connection is cut on its way, the node sees that and the cluster ends the session: what was in flight fails.
func TestGate_ConnectionCutOnItsWay(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]time.Duration{"without grace": 0, "with grace": 10 * time.Second} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			f := fc.withRoles()
			if grace > 0 {
				f.ended = func(_, cause string) { t.Logf("%s: ended: %s", name, cause) }
			}
			c := fc.client("n1", "n2")
			defer c.Close()
			s := mustSession(t, c, SessionConfig{TTL: time.Minute, Attach: true, Grace: grace})
			l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
			if err != nil {
				t.Fatal(err)
			}
			var g Gate
			g.Bind(l)
			node, other := fc.attachedTo(t)
			fc.hang(other)
			fc.elect(other)
			if grace > 0 {
				fc.kill(node) // the session outlives the connection
				synctest.Wait()
				if err := g.Require(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				fc.resume(other)
				return
			}
			during := make(chan error, 1)
			inside, finish := make(chan struct{}), make(chan struct{})
			go func() {
				during <- g.Do(t.Context(), func(context.Context, uint64) error {
					close(inside)
					<-finish
					return nil
				})
			}()
			<-inside
			fc.nodes[node].server.Close() // as if cut: the fake ends the session
			synctest.Wait()
			if err := g.Require(); !errors.Is(err, ErrUnproven) {
				t.Errorf("%s: %v", name, err)
			}
			close(finish)
			fc.resume(other)
			if err := <-during; !errors.Is(err, ErrNotLeader) {
				t.Errorf("%s: work after the session's end: %v", name, err)
			}
		}, "n1", "n2")
	}
}

// The node is silent for so long that the client looks for another one, and then the connection breaks.
func TestGate_ConnectionCutAfterSilence(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1", "n2")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: time.Minute, Attach: true})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		var g Gate
		g.Bind(l)
		node, other := fc.attachedTo(t)
		fc.hang(other)
		fc.hang(node)
		time.Sleep(16 * time.Second) // more than one and a half times KeepEvery
		fc.kill(node)
		synctest.Wait()
		if err := g.Require(); !errors.Is(err, ErrUnproven) {
			t.Errorf("the gate is open: %v", err)
		}
		fc.elect(other)
		fc.resume(other)
	}, "n1", "n2")
}

// The node dies that a session is attached to, and the other one has no place for it at first. The session lives on,
// and is attached when there is a place.
func TestAttach_NoPlaceAtFirst(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var full atomic.Bool
		f.reject = func(r *http.Request) error {
			if full.Load() && strings.HasSuffix(r.URL.Path, "/attach") {
				return cluster.Errorf(cluster.CodeBusy, "full")
			}
			return nil
		}
		c := fc.client("n1", "n2")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 3 * time.Second, Attach: true})
		node, other := fc.attachedTo(t)
		full.Store(true)
		fc.kill(node)
		fc.elect(other)
		time.Sleep(time.Minute)
		if s.Err() != nil || s.ValidFor() == 0 {
			t.Errorf("valid for %v: %v", s.ValidFor(), s.Err())
		}
		full.Store(false)
		time.Sleep(2 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if got := f.sessions[s.ID()]; got == nil || got.streams != 1 {
			t.Errorf("the session has %+v, want one connection", got)
		}
	}, "n1", "n2")
}
