package api

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"northstar/api/token"
)

// turnsTest counts who has a place, in virtual time.
type turnsTest struct {
	t      *testing.T
	mu     sync.Mutex // guards what follows
	leave  map[string][]func()
	failed map[string]error
}

// try awaits n places with a context, for a caller by name.
func (q *turnsTest) try(ctx context.Context, who string, n int, await func(context.Context) (func(), error)) {
	for range n {
		go func() {
			leave, err := await(ctx)
			q.mu.Lock()
			defer q.mu.Unlock()
			if err != nil {
				q.failed[who] = err
				return
			}
			q.leave[who] = append(q.leave[who], leave)
		}()
		synctest.Wait() // one after the other, so that the order is known
	}
}

func (q *turnsTest) want(who string, places int) {
	q.t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if got := len(q.leave[who]); got != places {
		q.t.Errorf("%s has %d places, want %d", who, got, places)
	}
}

// give has a caller leave n places.
func (q *turnsTest) give(who string, n int) {
	for range n {
		q.mu.Lock()
		leave := q.leave[who][0]
		q.leave[who] = q.leave[who][1:]
		q.mu.Unlock()
		leave()
	}
	synctest.Wait()
}

func newTurnsTest(t *testing.T) *turnsTest {
	return &turnsTest{t: t, leave: map[string][]func(){}, failed: map[string]error{}}
}

// A caller that waits beyond its share holds up neither others nor operators. Those who wait get places in the order of
// their arrival.
func TestTurns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		q, places := newTurnsTest(t), newTurns(8, 4)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		try := func(who string, n int, by shareholder) {
			q.try(ctx, who, n, func(ctx context.Context) (func(), error) { return places.await(ctx, by) })
		}
		alice, bob := shareholder{identity: at(1), address: at(1)}, shareholder{identity: at(2), address: at(2)}
		try("alice", 5, alice)
		try("alice from elsewhere", 1, shareholder{identity: at(1), address: at(3)})
		try("another of her address", 1, shareholder{identity: at(4), address: at(1)})
		q.want("alice", 4)
		q.want("alice from elsewhere", 0)
		q.want("another of her address", 0)
		try("dave of her address", 4, shareholder{identity: at(6), address: at(1)})
		try("dave from elsewhere", 1, shareholder{identity: at(6), address: at(6)})
		q.want("dave of her address", 0)
		q.want("dave from elsewhere", 1)
		try("bob", 2, bob)
		try("another of the other address", 1, shareholder{identity: at(4), address: at(3)})
		q.want("bob", 2)
		q.want("another of the other address", 1) // who waits for an identity has one place of it
		try("carol", 1, shareholder{identity: at(5), address: at(5)})
		try("bob", 1, bob)
		q.want("carol", 0) // the node has no place but those of operators
		try("operator", 2, shareholder{unshared: true, reserve: true})
		q.want("operator", 2)
		q.give("alice", 1)
		q.want("carol", 1)
		q.want("alice", 3) // her fifth waits behind bob's third
		q.give("alice", 1)
		q.want("bob", 3)
		try("operator", 1, shareholder{unshared: true, reserve: true})
		q.give("operator", 1)
		q.want("operator", 2)
		ended := errors.New("ended")
		cancel(ended)
		synctest.Wait()
		for who, n := range map[string]int{
			"alice": 2, "bob": 3, "carol": 1, "operator": 2,
			"another of the other address": 1, "dave from elsewhere": 1,
		} {
			q.give(who, n)
		}
		for _, who := range []string{"alice", "alice from elsewhere", "another of her address", "dave of her address"} {
			q.want(who, 0)
			if !errors.Is(q.failed[who], ended) {
				t.Errorf("%s: %v", who, q.failed[who])
			}
		}
		if n := len(places.addresses) + len(places.identities); n != 0 {
			t.Errorf("%d shares of nobody", n)
		}
		ctx = t.Context()
		try("alice", 4, alice)
		try("bob", 4, bob)
		try("operator", 2, shareholder{unshared: true, reserve: true})
		q.want("alice", 4)
		q.want("bob", 4)
		q.want("operator", 2)
	})
}

// One caller's writes that return values wait for a half of the places. Those of another caller and of an operator find
// room.
func TestReturningWritesHaveShares(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		n := startServer(t, newFakeCluster("n1", true), withTokens(file))
		q := newTurnsTest(t)
		ctx, cancel := context.WithCancel(t.Context())
		try := func(who, address string, times int) {
			t.Helper()
			r := httptest.NewRequestWithContext(context.Background(), "POST", "http://127.0.0.1/x", nil)
			r.RemoteAddr = address
			r.Header.Set("Authorization", tokens[who])
			call, err := n.Begin(r.Context(), r, nil, CallSpec{Name: "x", Role: token.Client})
			if err != nil {
				t.Fatal(err)
			}
			call.Leave(nil)
			q.try(ctx, who, times, call.AwaitPlace)
		}
		try("alice", "10.0.0.1:1", maxReturning)
		q.want("alice", maxReturning/2)
		try("bob", "10.0.0.2:1", maxReturning)
		q.want("bob", maxReturning/2)
		try("root", "10.0.0.1:1", maxReturning)
		q.want("root", maxReturning/4)
		cancel()
		synctest.Wait()
	})
}
