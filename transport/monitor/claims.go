package monitor

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

// Claim returns this node's claim: Config.Claim's, with its identity and what its connections know of the leader.
func (ms *Monitors) Claim() cluster.Claim {
	c := ms.cfg.Claims.Claim()
	self := ms.cfg.Members.LocalPeer()
	c.NodeID, c.ClusterID, c.Generation, c.BootID = self.NodeID, self.ClusterID, self.Generation, self.BootID
	c.CrashSocketPort = ms.cfg.CrashSocketPort
	if c.LeaderID == self.NodeID {
		c.LeaderBootID, c.LeaderContactAge, c.LeaderSilence = self.BootID, 0, 0
		return c
	}
	c.LeaderSilence = -1
	leader := c.LeaderID
	if leader == "" && c.LeaderBootID != "" {
		leader = ms.nodeOf(c.LeaderBootID) // Raft has forgotten it
	}
	if leader == "" {
		return c
	}
	now := time.Now()
	heard := func(age time.Duration) {
		if c.LeaderSilence < 0 || age < c.LeaderSilence {
			c.LeaderSilence = age
		}
	}
	if c.LeaderContactAge >= 0 && c.LeaderID != "" { // Raft counts its own grants as contact, too
		heard(c.LeaderContactAge)
	}
	if at := ms.cfg.Host.LastMessage(leader); !at.IsZero() {
		heard(now.Sub(at))
	}
	if m := ms.find(leader); m != nil {
		boot, sign := m.leaderSign()
		if c.LeaderBootID == "" {
			c.LeaderBootID = boot
		}
		if !sign.IsZero() {
			heard(now.Sub(sign))
		}
	}
	return c
}

// Claims returns the newest claim received from each peer.
func (ms *Monitors) Claims() map[cluster.NodeID]cluster.ReceivedClaim {
	claims := map[cluster.NodeID]cluster.ReceivedClaim{}
	for _, m := range ms.all() {
		if seen, ok := m.latestClaim(); ok {
			claims[m.id] = seen
		}
	}
	return claims
}

// Latest returns the newest claim of a peer; false if there is none.
func (ms *Monitors) Latest(id cluster.NodeID) (cluster.ReceivedClaim, bool) {
	m := ms.find(id)
	if m == nil {
		return cluster.ReceivedClaim{}, false
	}
	return m.latestClaim()
}

// Ask requests a claim from a connected peer, and does not wait for it.
func (ms *Monitors) Ask(id cluster.NodeID) {
	if m := ms.find(id); m != nil {
		if c := m.current(); c != nil {
			c.poll()
		}
	}
}

// Changed returns a channel that is closed at any peer's next claim or lost connection. Take it before calling Claims.
func (ms *Monitors) Changed() <-chan struct{} {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.changed == nil {
		ms.changed = make(chan struct{})
	}
	return ms.changed
}

// Poll requests fresh claims from all connected peers in parallel, and returns those that arrive before ctx ends. A
// peer responds after its Raft has finished its current message, so that the log position is its newest.
func (ms *Monitors) Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
	wait := ms.cfg.TimeoutMax
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	var mu sync.Mutex
	got := map[cluster.NodeID]cluster.ReceivedClaim{}
	var asking sync.WaitGroup
	for _, id := range peers {
		m := ms.find(id)
		if m == nil || m.current() == nil {
			continue
		}
		asking.Go(func() {
			if seen, ok := m.requestFresh(ctx, wait); ok {
				mu.Lock()
				defer mu.Unlock()
				got[id] = seen
			}
		})
	}
	asking.Wait()
	return got
}

// Answer asks a peer over the present connection, and returns the boot ID of the process that answers: it ran when the
// request arrived. The answer does not wait for the peer's Raft. It is "" without a connection, and if that or ctx ends
// first.
func (ms *Monitors) Answer(ctx context.Context, id cluster.NodeID) (bootID string) {
	m := ms.find(id)
	if m == nil {
		return ""
	}
	seen, _ := m.exchange(ctx, frame{})
	return seen.Claim.BootID
}

func (m *monitor) requestFresh(ctx context.Context, wait time.Duration) (cluster.ReceivedClaim, bool) {
	return m.exchange(ctx, frame{Fresh: true, Wait: wait})
}

// exchange sends a request and waits for its answer; false if there is none before the connection or ctx ends, or the
// peer is no member.
func (m *monitor) exchange(ctx context.Context, f frame) (cluster.ReceivedClaim, bool) {
	c := m.current()
	if c == nil {
		return cluster.ReceivedClaim{}, false
	}
	response := make(chan cluster.ReceivedClaim, 1)
	seq, err := c.request(f, response)
	if err != nil {
		return cluster.ReceivedClaim{}, false
	}
	defer c.forget(seq)
	select {
	case seen := <-response:
		return seen, !seen.At.IsZero()
	case <-c.gone:
	case <-ctx.Done():
	}
	return cluster.ReceivedClaim{}, false
}

// Announce sends this node's claim to every peer. It does not wait.
func (ms *Monitors) Announce() {
	for _, m := range ms.all() {
		if c := m.current(); c != nil {
			ms.cfg.Host.Spawn(func(context.Context) { _ = c.sendFrame(frame{Kind: frameNotify}) })
		}
	}
}
