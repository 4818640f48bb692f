package api

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/forward"
	"northstar/cluster"
)

// A peer that failed so often is not asked for so long (package forward).
const (
	breakerThreshold    = 2
	breakerOpenDuration = time.Second
)

// hungPeer takes connections and requests and answers none until it is released,
// as a stopped process does.
func hungPeer(t *testing.T) (addr string, asked *atomic.Int64, release func()) {
	t.Helper()
	l := listen(t)
	asked = new(atomic.Int64)
	released := make(chan struct{})
	release = func() { close(released) }
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-released:
			fmt.Fprint(w, `{"items":[],"next":"n3=b-1","prev":"n3=b-1"}`)
		case <-r.Context().Done():
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return l.Addr().String(), asked, release
}

// TestPeerClient_SkipsHungPeer: what takes all nodes to answer does not wait for
// one that hangs, once that is known, and hears it again when it answers.
func TestPeerClient_SkipsHungPeer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, asked, release := hungPeer(t)
		f := newFakeCluster("n1", true)
		f.addRecord(cluster.Member{ID: "n1"})
		f.addRecord(cluster.Member{ID: "n3", HTTPAddress: addr})
		n := startServer(t, f, func(d *Deps) { d.TimeoutMax = 20 * time.Millisecond })
		for range breakerThreshold {
			if e := n.events(""); fmt.Sprint(e.Missing) != "[n3]" {
				t.Fatalf("missing %v", e.Missing)
			}
		}
		before := asked.Load()
		start := time.Now()
		for range 50 {
			n.events("")
		}
		// One question may have been put meanwhile to see whether it answers again.
		if n := asked.Load() - before; n > 1+int64(time.Since(start)/breakerOpenDuration) {
			t.Errorf("it was asked %d times more", n)
		}
		release()
		eventually(t, func() bool { return len(n.events("").Missing) == 0 })
	})
}

// TestClusterView_LocalWhenLeaderHangs: a follower's view of the cluster stands in for
// that of a leader that hangs, and is not held up by it.
func TestClusterView_LocalWhenLeaderHangs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, asked, _ := hungPeer(t)
		n := followerOf(t, addr, func(d *Deps) { d.TimeoutMax = 20 * time.Millisecond })
		for range 20 {
			if r := n.do("GET", "/v1/cluster", ""); r.status != 200 {
				t.Fatalf("%+v", r)
			}
		}
		if n := asked.Load(); n > breakerThreshold+1 {
			t.Errorf("the leader was asked %d times", n)
		}
	})
}

// TestPeerClient_CancelledCallerDoesNotTripBreaker: a caller that hangs up says nothing about
// the node that was asked for it.
func TestPeerClient_CancelledCallerDoesNotTripBreaker(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, asked, _ := hungPeer(t)
		n := startServer(t, newFakeCluster("n1", true))
		for range 2 * breakerThreshold {
			ctx, cancel := context.WithCancel(t.Context())
			before := asked.Load()
			done := make(chan error, 1)
			go func() {
				_, err := n.forward.Get(ctx, forward.Caller{}, addr, "/livez", 10)
				done <- err
			}()
			eventually(t, func() bool { return asked.Load() > before })
			cancel()
			<-done
		}
	})
}
