package leadercall

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// A node subscribes to the leader's commit index while a client waits for changes there, or has just read its state;
// at a new leader immediately.
func TestSubscription(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		during := func(d time.Duration) (at, here int64) {
			at, here = leader.subscribed.Load(), other.subscribed.Load()
			time.Sleep(d)
			synctest.Wait()
			return leader.subscribed.Load() - at, other.subscribed.Load() - here
		}
		if n, _ := during(time.Minute); n != 0 {
			t.Errorf("%d subscriptions, and nobody waits", n)
		}
		cursor, err := other.feeds.Feed().Cursor("", 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		var waiting sync.WaitGroup
		waiting.Go(func() { _, _ = cursor.Next(ctx, 1) })
		if n, _ := during(10 * time.Millisecond); n != 1 {
			t.Errorf("%d subscriptions immediately", n)
		}
		if n, _ := during(10 * subscribeInterval); n < 9 || n > 11 {
			t.Errorf("%d subscriptions in %v", n, 10*subscribeInterval)
		}
		w.lead("")
		if n, _ := during(time.Minute); n != 0 {
			t.Errorf("%d subscriptions without a leader", n)
		}
		w.lead("n1")
		if n, _ := during(10 * time.Millisecond); n != 1 {
			t.Errorf("%d subscriptions at the new leader", n)
		}
		w.lead("n2")
		if n, here := during(time.Minute); n != 0 || here != 0 {
			t.Errorf("%d and %d subscriptions of the leader", n, here)
		}
		w.lead("n1")
		stop()
		waiting.Wait()
		during(2 * subscribeInterval)
		if n, _ := during(time.Minute); n != 0 {
			t.Errorf("%d subscriptions after the last client has gone", n)
		}
		other.NoteLocalRead()
		if n, _ := during(time.Minute); n != 1 {
			t.Errorf("%d subscriptions after a read", n)
		}
	})
}

// Commands and questions of single callers leave room at the leader for a renewal.
func TestRenewalsHaveTheirPlaces(t *testing.T) {
	withCluster(t, func(w *fakeCluster, leader, other *node) {
		granted := w.apply(state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: 10}})
		release := make(chan struct{})
		var held sync.Mutex
		inProgress := 0
		w.calls = func(ctx context.Context, _ cluster.NodeID) error {
			held.Lock()
			full := inProgress >= 1024 // the leader reads no more
			inProgress++
			held.Unlock()
			defer func() { held.Lock(); inProgress--; held.Unlock() }()
			if !full && ctx.Value(renewing{}) != nil {
				return nil
			}
			<-release
			return nil
		}
		var proposing sync.WaitGroup
		for range 3000 {
			proposing.Go(func() { _, _ = other.Calls.Propose(context.Background(), putOf("a")) })
		}
		synctest.Wait()
		held.Lock()
		if inProgress != maxUnsharedBytes/leastCallBytes {
			t.Errorf("%d commands are in progress", inProgress)
		}
		held.Unlock()
		ctx := context.WithValue(context.Background(), renewing{}, true)
		request := message{IDs: []string{granted.Session.ID}}
		if got, err := other.ask(ctx, "n1", renew, request); err != nil || len(got.IDs) != 1 {
			t.Errorf("a renewal beside them: %v, %v", got, err)
		}
		close(release)
		proposing.Wait()
	})
}

// renewing is the key of a mark in the context of a call.
type renewing struct{}
