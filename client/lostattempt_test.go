package client

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
)

// The node of a long poll hangs, and the node that is asked beside it refuses once, as one whose disk stalls. The
// client asks again: it does not wait for the hung node.
func TestCampaign_RefusedBesideHungNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		fc.streams = true // so the client knows the next leader before it is refused there
		var stalls atomic.Bool
		f.reject = func(r *http.Request) error {
			if r.Host == "n2:1" && strings.HasSuffix(r.URL.Path, "/campaign") && stalls.CompareAndSwap(true, false) {
				return fail(cluster.CodeReadOnly)
			}
			return nil
		}
		c, other := fc.client("n1", "n2"), fc.client("n2")
		defer c.Close()
		defer other.Close()
		holder, waiter := mustSession(t, other, SessionConfig{}), mustSession(t, c, SessionConfig{})
		time.Sleep(time.Second) // both know the leader
		l, err := holder.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		elected := make(chan error, 1)
		go func() { _, err := waiter.campaign(t.Context(), CandidateConfig{Role: "r"}); elected <- err }()
		time.Sleep(time.Second)
		stalls.Store(true)
		fc.hang("n1")
		fc.elect("n2")
		time.Sleep(15 * time.Second)
		if stalls.Load() {
			t.Fatal("the next leader has refused nothing")
		}
		start := time.Now()
		if err := l.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-elected; err != nil {
			t.Fatal(err)
		}
		within(t, start, 0, time.Second)
	}, "n1", "n2")
}

// The leader of a waiting campaign knows no leader for a moment, and the other node is down. Once the leader knows
// itself, the campaign waits there as before, and the client no longer asks the other node.
func TestCampaign_WaitsAgainAfterLoss(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		var dialled atomic.Int64
		c, err := New(Config{Endpoints: []string{"n1:1", "n2:1"}, Dial: func(ctx context.Context, network, address string) (
			net.Conn, error,
		) {
			if address == "n2:1" {
				dialled.Add(1)
			}
			return fc.net.dial(ctx, network, address)
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		other := fc.client("n1")
		defer other.Close()
		holder, waiter := mustSession(t, other, SessionConfig{}), mustSession(t, c, SessionConfig{})
		l, err := holder.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		elected := make(chan error, 1)
		go func() { _, err := waiter.campaign(t.Context(), CandidateConfig{Role: "r"}); elected <- err }()
		time.Sleep(time.Second)
		fc.kill("n2")
		fc.setCutOff("n1", true)
		time.Sleep(15 * time.Second)
		if dialled.Load() < 5 {
			t.Fatalf("n2 was asked %d times while n1 knew no leader", dialled.Load())
		}
		fc.setCutOff("n1", false)
		time.Sleep(5 * time.Second)
		before := dialled.Load()
		time.Sleep(30 * time.Second)
		if n := dialled.Load() - before; n > 60 { // without the end of the loss: some hundreds
			t.Errorf("n2 was asked %d times in 30 s after n1 knew the leader again", n)
		}
		start := time.Now()
		if err := l.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-elected; err != nil {
			t.Fatal(err)
		}
		within(t, start, 0, time.Second)
	}, "n1", "n2")
}

// If each node has an attempt, one whose attempts are lost is asked again. The oldest lost attempt makes room.
func TestPick_LostAttempts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		warmUp(t, c)
		q := &call{op: "wait", path: "/v1/roles/r", retryClass: idempotentWrite}
		r := &retrier{
			c: c, q: q, ctx: t.Context(), limit: time.Second, tried: map[string]int{},
			results: make(chan *attempt, maxOutstanding),
		}
		var cancelled string
		for _, node := range []string{"http://n1:1", "http://n2:1", "http://n3:1"} {
			r.outstanding = append(r.outstanding, &attempt{node: node, cancel: func() { cancelled += node }})
		}
		if node := r.pick(); node != "" {
			t.Errorf("all are in progress, and it picks %q", node)
		}
		r.outstanding[1].lost = true
		if node := r.pick(); node != "http://n2:1" {
			t.Errorf("the attempt at n2 is lost, and it picks %q", node)
		}
		r.launch("http://n2:1")
		if cancelled != "http://n2:1" {
			t.Errorf("it cancelled %q", cancelled)
		}
		(<-r.results).cancel()
	}, "n1", "n2", "n3")
}
