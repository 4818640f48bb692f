package consensus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

func TestBestPlaced(t *testing.T) {
	t.Parallel()
	peer := func(id cluster.NodeID, priority int, eligible bool) cluster.Peer {
		return cluster.Peer{Identity: cluster.Identity{NodeID: id}, Priority: priority, Eligible: eligible}
	}
	for name, tt := range map[string]struct {
		self   cluster.Peer
		others []cluster.Peer
		want   bool
	}{
		"alone":                       {peer("n2", 100, true), nil, true},
		"lowest ID":                   {peer("n1", 100, true), []cluster.Peer{peer("n2", 100, true)}, true},
		"not the lowest ID":           {peer("n2", 100, true), []cluster.Peer{peer("n1", 100, true)}, false},
		"higher priority":             {peer("n2", 101, true), []cluster.Peer{peer("n1", 100, true)}, true},
		"lower priority":              {peer("n1", 99, true), []cluster.Peer{peer("n2", 100, true)}, false},
		"the better one may not lead": {peer("n2", 100, true), []cluster.Peer{peer("n1", 100, false)}, true},
		"it may not lead":             {peer("n1", 100, false), []cluster.Peer{peer("n2", 50, true)}, false},
		"it never leads":              {peer("n1", 0, true), []cluster.Peer{peer("n2", 0, true)}, false},
	} {
		in := startInputs{self: tt.self.NodeID, answers: map[cluster.NodeID]probeAnswer{}}
		for _, p := range tt.others {
			in.answers[p.NodeID] = probeAnswer{listed: p.NodeID, peer: p}
		}
		if got := in.bestPlaced(tt.self); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

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
