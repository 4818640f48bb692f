package transport

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

// Claim is what this node claims now: what Config.Claim says, with its identity
// and what its connections know of the leader.
func (t *Transport) Claim() cluster.Claim {
	c := t.cfg.Claim()
	self := t.cfg.Local()
	c.NodeID, c.ClusterID, c.Generation, c.BootID = self.NodeID, self.ClusterID, self.Generation, self.BootID
	c.CrashSocketPort = t.cfg.CrashSocketPort
	if c.LeaderID == self.NodeID {
		c.LeaderBootID, c.LeaderContactAge, c.LeaderSilence = self.BootID, 0, 0
		return c
	}
	c.LeaderSilence = -1
	leader := c.LeaderID
	if leader == "" && c.LeaderBootID != "" {
		leader = t.monitors.process(c.LeaderBootID) // Raft has forgotten it
	}
	if leader == "" {
		return c
	}
	now := time.Now()
	hear := func(age time.Duration) {
		if c.LeaderSilence < 0 || age < c.LeaderSilence {
			c.LeaderSilence = age
		}
	}
	if c.LeaderContactAge >= 0 && c.LeaderID != "" { // Raft's own notes a vote that it gives as contact, too
		hear(c.LeaderContactAge)
	}
	if at := t.Raft().contactFrom(leader); !at.IsZero() {
		hear(now.Sub(at))
	}
	if m := t.monitors.find(leader); m != nil {
		boot, sign := m.leaderSign()
		if c.LeaderBootID == "" {
			c.LeaderBootID = boot
		}
		if !sign.IsZero() {
			hear(now.Sub(sign))
		}
	}
	return c
}

// Claims gives the newest claim of each peer that has ever made one.
func (t *Transport) Claims() map[cluster.NodeID]cluster.ReceivedClaim {
	claims := map[cluster.NodeID]cluster.ReceivedClaim{}
	for _, m := range t.monitors.all() {
		if seen, ok := m.latestClaim(); ok {
			claims[m.id] = seen
		}
	}
	return claims
}

// ClaimsChanged is closed at the next claim of any peer, and when a monitor
// connection ends. First take the channel, then look at Claims, then wait.
func (t *Transport) ClaimsChanged() <-chan struct{} {
	ms := t.monitors
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.changed == nil {
		ms.changed = make(chan struct{})
	}
	return ms.changed
}

// Poll asks the peers for fresh claims, all at once, and gives those that came
// before ctx ended: at once when none is connected. A peer answers after its
// Raft has finished any append that it was inside of, so that its log position
// is its newest.
func (t *Transport) Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim {
	wait := t.cfg.TimeoutMax
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	var mu sync.Mutex
	got := map[cluster.NodeID]cluster.ReceivedClaim{}
	var asking sync.WaitGroup
	for _, id := range peers {
		m := t.monitors.find(id)
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

// requestFresh asks one peer for a fresh claim.
func (m *monitor) requestFresh(ctx context.Context, wait time.Duration) (cluster.ReceivedClaim, bool) {
	c := m.current()
	if c == nil {
		return cluster.ReceivedClaim{}, false
	}
	answer := make(chan cluster.ReceivedClaim, 1)
	seq, err := c.request(frame{Fresh: true, Wait: wait}, answer)
	if err != nil {
		return cluster.ReceivedClaim{}, false
	}
	defer c.forget(seq)
	select {
	case seen := <-answer:
		return seen, true
	case <-c.processDead:
	case <-ctx.Done():
	}
	return cluster.ReceivedClaim{}, false
}

// Announce tells this node's claim to every peer now. It does not wait.
func (t *Transport) Announce() {
	for _, m := range t.monitors.all() {
		if c := m.current(); c != nil {
			t.spawn(func(context.Context) { _ = c.sendFrame(frame{Kind: frameNotify}) })
		}
	}
}

// prewarm makes Raft connections ready with a peer that has just shown itself, in
// that term.
func (t *Transport) warm(peer cluster.Peer, term uint64) {
	target := t.monitors.address(peer.NodeID)
	if target == "" {
		return
	}
	t.spawn(func(context.Context) {
		if p, err := t.Raft().peer(peer.NodeID); err == nil {
			p.prewarm(target, peer.BootID, term)
		}
	})
}
