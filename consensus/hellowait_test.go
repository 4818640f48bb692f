package consensus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// A peer that starts later says hello, and is probed then, not at the next interval.
func TestHelloEndsTheWaitForAPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := []FirstMember{{"n1", "h1:1", ""}, {"n2", "h2:1", ""}, {"n3", "h3:1", ""}}
		began := time.Now()
		const starts = probeEvery/2 + probeEvery
		n2 := cluster.Peer{Identity: cluster.Identity{NodeID: "n2", Incarnation: "i2"}}
		n := &Node{peers: newPeerBook(), log: hclog.NewNullLogger()}
		n.deps.Probe = func(_ context.Context, addr string) (cluster.Peer, cluster.Admission, error) {
			if addr == "h2:1" && time.Since(began) >= starts {
				return n2, cluster.Admission{}, nil
			}
			return cluster.Peer{}, cluster.Admission{}, errors.New("connection refused")
		}
		time.AfterFunc(starts, func() { n.OnHello(n2, cluster.Admission{}) })
		in := startInputs{self: "n1", first: first, answers: map[cluster.NodeID]probeAnswer{}}
		action, err := n.probeUntilDecided(t.Context(), &in)
		if action != bootstrap || err != nil || time.Since(began) != starts {
			t.Errorf("got %v, %v after %v", action, err, time.Since(began))
		}
	})
}

// A wrong peer behind an address is probed at intervals, although each probe is a hello.
func TestHelloOfAWrongPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := []FirstMember{{"n1", "h1:1", ""}, {"n2", "h2:1", ""}, {"n3", "h3:1", ""}}
		wrong := cluster.Peer{Identity: cluster.Identity{NodeID: "n9", Incarnation: "i9"}}
		n := &Node{peers: newPeerBook(), log: hclog.NewNullLogger()}
		var probes atomic.Int64
		n.deps.Probe = func(context.Context, string) (cluster.Peer, cluster.Admission, error) {
			probes.Add(1)
			n.OnHello(wrong, cluster.Admission{})
			return wrong, cluster.Admission{}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*probeEvery)
		defer cancel()
		in := startInputs{self: "n1", first: first, answers: map[cluster.NodeID]probeAnswer{}}
		if _, err := n.probeUntilDecided(ctx, &in); err != nil {
			t.Fatal(err)
		}
		if got := probes.Load(); got > 2*(10+2) {
			t.Errorf("%d probes in %v", got, 10*probeEvery)
		}
	})
}
