package client

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
)

// alias serves a node at a second address, as a name does whose node advertises an IP address.
func (fc *fakeCluster) alias(node, name string) (stop func()) {
	srv := &http.Server{Handler: http.HandlerFunc(fc.nodes[node].serve)}
	go func() { _ = srv.Serve(fc.net.listen(name + ":1")) }()
	return func() { _ = srv.Close() }
}

// The leader has two addresses. A slow answer is waited for at one of them, and a new leader is still found.
func TestFinder_LeaderWithTwoAddresses(t *testing.T) {
	t.Parallel()
	for range 5 { // the order of reports is random
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			defer fc.alias("n1", "name1")()
			c := fc.client("name1", "n2", "n3")
			defer c.Close()
			for range 3 {
				warmUp(t, c)
				time.Sleep(time.Second)
			}
			var calls atomic.Int64
			slow := func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				select {
				case <-time.After(1900 * time.Millisecond):
					w.Header().Set(apiv1.HeaderRevision, "5")
					reply(w, apiv1.PutResult{Revision: 5})
				case <-r.Context().Done():
				}
			}
			fc.mu.Lock()
			for _, x := range fc.nodes {
				x.handle = slow
			}
			fc.mu.Unlock()
			if _, err := c.Get(t.Context(), "k", Linearizable); err != nil || calls.Load() != 1 {
				t.Errorf("%d requests, %v, want one", calls.Load(), err)
			}
			fc.mu.Lock()
			fc.nodes["n2"].handle = func(w http.ResponseWriter, _ *http.Request) {
				reply(w, apiv1.PutResult{Revision: 6})
			}
			fc.mu.Unlock()
			began := time.Now()
			time.AfterFunc(time.Second, func() { fc.elect("n2") })
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Error(err)
			}
			within(t, began, time.Second, 1200*time.Millisecond)
		}, "n1", "n2", "n3")
	}
}

// A holder whose renewals are answered slowly keeps its role, also if the leader has two addresses.
func TestFinder_SlowRenewalsAtTwoAddresses(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		defer fc.alias("n1", "name1")()
		var slow atomic.Bool
		for _, x := range fc.nodes {
			inner := x.handle
			x.handle = func(w http.ResponseWriter, r *http.Request) {
				if slow.Load() && strings.Contains(r.URL.Path, "renew") {
					select {
					case <-time.After(600 * time.Millisecond):
					case <-r.Context().Done():
						return
					}
				}
				inner(w, r)
			}
		}
		c := fc.client("name1", "n2", "n3")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		l, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * refreshInterval) // the client learns of the other address
		slow.Store(true)
		select {
		case <-l.Done():
			t.Error(l.Cause())
		case <-time.After(2 * time.Minute):
		}
		slow.Store(false)
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1", "n2", "n3")
}
