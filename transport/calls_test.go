package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
)

// knows makes n dial the other ends as members.
func knows(n *end, others ...*end) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers = nil
	for _, o := range others {
		n.servers = append(n.servers, cluster.Server{ID: o.id, Address: o.addr, Suffrage: cluster.Voter})
	}
}

func TestCall(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.called = func(ctx context.Context, from cluster.NodeID, request []byte) []byte {
			if string(request) == "slow" {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return append([]byte(from+" "), request...)
		}
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	slow := make(chan error, 1)
	go func() {
		got, err := n2.tr.Call(ctx, "n1", []byte("slow"))
		if string(got) != "n2 slow" {
			err = errors.Join(err, fmt.Errorf("got %q", got))
		}
		slow <- err
	}()
	var calls sync.WaitGroup
	for i := range 100 { // they overtake the slow one, all on one connection
		calls.Go(func() {
			request := bytes.Repeat([]byte{byte(i)}, i*1000)
			if got, err := n2.tr.Call(ctx, "n1", request); err != nil || !bytes.Equal(got[3:], request) {
				t.Errorf("call %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	calls.Wait()
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if n := n1.tr.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	n1.stop()
	var notSent *NotSentError
	for {
		_, err := n2.tr.Call(ctx, "n1", []byte("x"))
		if errors.As(err, &notSent) {
			break // no process listens any longer
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("a node that has ended answers: %v", err)
		}
	}
}

// A call fails without having been sent to a node that is no member, is not admitted, or would not read it.
func TestCall_NotSent(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var notSent *NotSentError
	if _, err := n2.tr.Call(ctx, "n1", make([]byte, maxCall+1)); !errors.As(err, &notSent) {
		t.Errorf("too large: %v", err)
	}
	if _, err := n2.tr.Call(ctx, "n3", nil); !errors.As(err, &notSent) {
		t.Errorf("no member: %v", err)
	}
	if _, err := n2.tr.Call(ctx, "n1", nil); err == nil || errors.As(err, &notSent) {
		t.Errorf("no handler: %v", err)
	}
	n1.remember("n2", cluster.Record{Removed: true})
	if _, err := n2.tr.Call(ctx, "n1", nil); !errors.As(err, &notSent) {
		t.Errorf("removed: %v", err)
	}
}

// A member that is removed while its connection is open is not served any longer.
func TestCall_RemovedMeanwhile(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.called = func(context.Context, cluster.NodeID, []byte) []byte { return []byte("served") }
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := n2.tr.Call(ctx, "n1", nil); err != nil {
		t.Fatal(err)
	}
	n1.remember("n2", cluster.Record{Removed: true})
	if got, err := n2.tr.Call(ctx, "n1", nil); err == nil {
		t.Errorf("served: %q", got)
	}
}

// The end of a call's context ends it, also if the other node never answers.
func TestCall_ContextEnds(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.called = func(ctx context.Context, _ cluster.NodeID, _ []byte) []byte {
			<-ctx.Done()
			return nil
		}
	})
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(testMin, func() { cancel(why) })
	if _, err := n2.tr.Call(ctx, "n1", nil); !errors.Is(err, why) {
		t.Error(err)
	}
}

// lossyListener accepts connections that lose what is written to them while losing is set.
type lossyListener struct {
	net.Listener
	losing *atomic.Bool
}

func (l lossyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return lossyConn{c, l.losing}, err
}

type lossyConn struct {
	net.Conn
	losing *atomic.Bool
}

func (c lossyConn) Write(p []byte) (int, error) {
	if c.losing.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// handled is a handler that answers "slow" when release is closed, and other requests immediately.
func handled(begun chan<- struct{}, release <-chan struct{}) option {
	return func(_ *Config, e *end) {
		e.called = func(ctx context.Context, _ cluster.NodeID, request []byte) []byte {
			if string(request) == "slow" {
				select {
				case begun <- struct{}{}:
				case <-release:
				}
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return request
		}
	}
}

// A connection stays while the other node works on a request, however long that takes: a slow leader fails no calls.
func TestCall_SlowHandler(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	n1, n2 := newEnd(t, "n1", handled(make(chan struct{}, 1), release)), newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	time.AfterFunc(2*n2.tr.params.stall+testMin, func() { close(release) })
	if got, err := n2.tr.Call(ctx, "n1", []byte("slow")); err != nil || string(got) != "slow" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Calls in progress on a connection are answered, though a node has another identity meanwhile. A call that the other
// node has not handled for that is not sent, and the next one takes a new connection.
func TestCall_IdentityChanges(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"n1", "n2"} {
		begun, release := make(chan struct{}), make(chan struct{})
		n1, n2 := newEnd(t, "n1", handled(begun, release)), newEnd(t, "n2")
		knows(n2, n1)
		n1.remember("n2", cluster.Record{Incarnation: n2.peer().Incarnation})
		changes := map[string]*end{"n1": n1, "n2": n2}[of]
		changes.mu.Lock()
		changes.self.ClusterID, changes.keepsID = "", true
		changes.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		slow := make(chan error, 1)
		go func() {
			_, err := n2.tr.Call(ctx, "n1", []byte("slow"))
			slow <- err
		}()
		select {
		case <-begun:
		case err := <-slow:
			t.Fatalf("%s changes: %v before the change", of, err)
		}
		before := n2.tr.calls.get("n1")
		changes.mu.Lock()
		changes.self.ClusterID = "c1"
		changes.mu.Unlock()
		var notSent *NotSentError
		_, err := n2.tr.Call(ctx, "n1", []byte("fast"))
		if errors.As(err, &notSent) {
			_, err = n2.tr.Call(ctx, "n1", []byte("fast"))
		}
		if err != nil || n2.tr.calls.get("n1") == before {
			t.Errorf("%s changes: %v on the same connection", of, err)
		}
		close(release)
		if err := <-slow; err != nil {
			t.Errorf("%s changes: %v", of, err)
		}
		select {
		case <-before.gone:
		case <-ctx.Done():
			t.Errorf("%s changes: the old connection stays", of)
		}
	}
}

// A connection on which a response is due, and no byte comes, is closed: also when its callers no longer wait. The next
// call takes a new one. After a partition TCP may be silent for long.
func TestCall_SilentConnection(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	losing := new(atomic.Bool)
	n1 := newEndOn(t, "n1", lossyListener{ln, losing}, handled(make(chan struct{}, 2), release))
	defer close(release)
	n2 := newEnd(t, "n2")
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := n2.tr.Call(ctx, "n1", nil); err != nil {
		t.Fatal(err)
	}
	used := n2.tr.calls.get("n1")
	losing.Store(true)
	short, end := context.WithTimeout(ctx, testMin)
	defer end()
	if _, err := n2.tr.Call(short, "n1", []byte("slow")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that is not answered: %v", err)
	}
	select {
	case <-used.gone:
	case <-ctx.Done():
		t.Fatal("the silent connection stays")
	}
	losing.Store(false)
	if _, err := n2.tr.Call(ctx, "n1", nil); err != nil {
		t.Errorf("after a silent connection: %v", err)
	}
	losing.Store(true)
	var notSent *NotSentError
	if _, err := n2.tr.Call(ctx, "n1", []byte("slow")); err == nil || ctx.Err() != nil || errors.As(err, &notSent) {
		t.Errorf("a caller that waits: %v", err)
	}
	losing.Store(false)
	if _, err := n2.tr.Call(ctx, "n1", nil); err != nil {
		t.Errorf("after a silent connection: %v", err)
	}
}

// An idle connection on which nothing is due stays.
func TestCallConn_Expect(t *testing.T) {
	t.Parallel()
	conn := &deadlines{}
	c := &callConn{conn: conn, waiting: map[uint64]chan callAnswer{}}
	for _, step := range []struct {
		name string
		do   func()
		due  bool
	}{
		{"a request", func() { c.register(); c.expect(0, time.Second) }, true},
		{"another one", func() { c.register() }, true},
		{"its caller gives up", func() { c.forget(2) }, true},
		{"a response", func() { c.expect(1, time.Second) }, true},
		{"the last one", func() { c.expect(1, time.Second) }, false},
		{"one too many", func() { c.expect(1, time.Second) }, false},
		{"a request again", func() { c.register(); c.expect(0, time.Second) }, true},
	} {
		if step.do(); conn.read.IsZero() == step.due {
			t.Errorf("%s: the deadline is %v", step.name, conn.read)
		}
	}
}

// deadlines is a connection that remembers its read deadline.
type deadlines struct {
	net.Conn
	read time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.read = at; return nil }

// The requests of one connection that are in progress have at most 16 MiB together: it is not read any further.
func TestCall_BytesInProgress(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.called = func(ctx context.Context, _ cluster.NodeID, request []byte) []byte {
			if len(request) == maxCall {
				entered <- struct{}{}
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return nil
		}
	})
	n2 := newEnd(t, "n2", func(c *Config, _ *end) { c.TimeoutMax = 10 * time.Second })
	knows(n2, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var calls sync.WaitGroup
	for range maxCallsBytes/maxCall + 1 {
		calls.Go(func() {
			if _, err := n2.tr.Call(ctx, "n1", make([]byte, maxCall)); err != nil {
				t.Error(err)
			}
		})
	}
	for range maxCallsBytes / maxCall {
		<-entered
	}
	short, end := context.WithTimeout(ctx, testMin)
	defer end()
	if _, err := n2.tr.Call(short, "n1", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a connection with %d bytes in progress is read: %v", maxCallsBytes, err)
	}
	close(release)
	calls.Wait()
}
