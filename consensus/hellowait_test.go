package consensus

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// starting returns a node before its first start, whose probes are answered by probe.
func starting(t *testing.T,
	probe func(context.Context, string) (cluster.Peer, cluster.Admission, error),
) (*Node, startInputs) {
	t.Helper()
	ident, err := openIdentity(&memoryFiles{}, "n1", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{peers: newPeerRegistry(), log: hclog.NewNullLogger(), ident: ident}
	n.deps.Probe = probe
	first := []FirstMember{{"n1", "h1:1", ""}, {"n2", "h2:1", ""}, {"n3", "h3:1", ""}}
	return n, startInputs{self: "n1", first: first, answers: map[cluster.NodeID]probeAnswer{}}
}

// A peer that starts later says hello, and is probed then, not at the next interval.
func TestHelloEndsTheWaitForAPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const starts = probeEvery/2 + probeEvery
		n2 := cluster.Peer{Identity: cluster.Identity{NodeID: "n2", Incarnation: "i2"}}
		n, in := starting(t, func(_ context.Context, addr string) (cluster.Peer, cluster.Admission, error) {
			if addr == "h2:1" && time.Since(began) >= starts {
				return n2, cluster.Admission{}, nil
			}
			return cluster.Peer{}, cluster.Admission{}, errors.New("connection refused")
		})
		time.AfterFunc(starts, func() { n.OnHello(n2, cluster.Admission{}) })
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
		wrong := cluster.Peer{Identity: cluster.Identity{NodeID: "n9", Incarnation: "i9"}}
		n, in := starting(t, nil)
		var probes atomic.Int64
		n.deps.Probe = func(context.Context, string) (cluster.Peer, cluster.Admission, error) {
			probes.Add(1)
			n.OnHello(wrong, cluster.Admission{})
			return wrong, cluster.Admission{}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*probeEvery)
		defer cancel()
		if _, err := n.probeUntilDecided(ctx, &in); err != nil {
			t.Fatal(err)
		}
		if got := probes.Load(); got > 2*(10+2) {
			t.Errorf("%d probes in %v", got, 10*probeEvery)
		}
	})
}

// A member lets a node adopt the cluster's ID while all its probes fail. The node joins then.
func TestAdoptionEndsAFirstStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, in := starting(t, func(context.Context, string) (cluster.Peer, cluster.Admission, error) {
			return cluster.Peer{}, cluster.Admission{}, errors.New("it takes too long")
		})
		time.AfterFunc(time.Hour, func() {
			if err := n.Adopt(cluster.Peer{Identity: cluster.Identity{NodeID: "n2", ClusterID: "c1"}}); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		action, err := n.probeUntilDecided(ctx, &in)
		if took := time.Since(began); action != joinOnly || err != nil || took != time.Hour {
			t.Errorf("got %v, %v after %v", action, err, took)
		}
	})
}
