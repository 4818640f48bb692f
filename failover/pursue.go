package failover

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/election"
)

const (
	pollWait   = 10 * time.Millisecond // for claims, on a near network
	pollRTTs   = 3                     // and on a far one, in round trips
	maxRecheck = 50 * time.Millisecond
)

// pursue follows evidence until this node stands, somebody leads, or nothing
// comes of it in time: then Raft's timers do the rest. confirmed is when the
// leader's process was found dead, zero when it was not.
func (c *Controller) pursue(ctx context.Context, ev election.Evidence, confirmed time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.cfg.TimeoutMax)
	defer cancel()
	recheck := time.Duration(0)
	for asked := ev.Lost; ; asked = true {
		changed := c.deps.Consensus.LeaderChanged()
		known := ev.Reporters(c.deps.Peers.Claims()) // some may not answer the poll
		v, mine, seen := c.look(ctx, ev, asked)
		if ctx.Err() != nil {
			return
		}
		now := c.now()
		if v.Stand && ev.Agreed.IsZero() {
			ev.Agreed = now
		}
		if v.Progress > ev.Progress {
			ev.Progress, ev.Active = v.Progress, now
		}
		c.log.Debug("verdict on the leader", "leader", ev.Leader, "stand", v.Stand, "after", v.After, "reason", v.Reason)
		switch {
		case v.Stand && v.After == 0:
			c.stand(ctx, ev, confirmed, v, mine)
			return
		case v.After == 0:
			return
		case !v.Stand && v.After <= election.Recheck:
			// Too few agree, for now: not again and again at full speed. A longer wait is for
			// the moment at which one more will, and who sleeps past that loses its place.
			recheck = min(max(2*recheck, election.Recheck), maxRecheck)
			v.After = recheck
		}
		if !c.wait(ctx, v.After, changed, ev, max(known, ev.Reporters(seen))) {
			return
		}
	}
}

// wait ends after d, when the leader changes, or when more than so many peers
// report that it is lost; false when ctx has ended.
func (c *Controller) wait(ctx context.Context, d time.Duration, changed <-chan struct{}, ev election.Evidence, agreeing int) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		claims := c.deps.Peers.ClaimsChanged()
		if ev.Reporters(c.deps.Peers.Claims()) > agreeing {
			return true
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
			return true
		case <-claims:
		case <-ctx.Done():
			return false
		}
	}
}

// look asks the other voters and judges. Raft finishes its append first, here
// as on the others: otherwise the best placed is one entry behind what it has
// received, and is refused. asked says that the leader is not asked, or not again:
// should it answer late, that counts all the same, and nobody waits for it.
func (c *Controller) look(ctx context.Context, ev election.Evidence, asked bool) (v election.Verdict, mine cluster.Claim, seen map[cluster.NodeID]cluster.Seen) {
	servers := c.deps.Consensus.Status().Servers
	var ask []cluster.NodeID
	for _, sv := range servers {
		// A silent leader is asked too: on a busy machine it may only have been kept
		// from speaking, and its answer ends the silence.
		if sv.ID != c.cfg.Self && (sv.Suffrage == cluster.Voter && sv.ID != ev.Leader || sv.ID == ev.Leader && !asked) {
			ask = append(ask, sv.ID)
		}
	}
	c.gather(ctx, ask, func(answers map[cluster.NodeID]cluster.Seen) (enough bool) {
		seen, mine = answers, c.deps.Claim()
		v = election.Judge(election.Input{
			Now: c.now(), Servers: servers, Mine: mine, Seen: seen, Before: c.deps.Peers.Claims(), Evidence: ev, Params: c.cfg.params(),
		})
		return ev.Lost && v.Stand && v.After == 0
	})
	return v, mine, seen
}

// gather asks peers, and shows what has come to judge: once this node's own Raft
// has finished its append, at each answer after that, and at the end, which is
// when that says that it has seen enough. The leader's process is dead then, a
// majority says so, and this node is the best placed of those who answered, with
// nobody of a higher priority among the others: whatever these say, it can win,
// and one slow voter of five is not waited for.
func (c *Controller) gather(ctx context.Context, ask []cluster.NodeID, judge func(map[cluster.NodeID]cluster.Seen) (enough bool)) {
	ctx, cancel := context.WithTimeout(ctx, c.pollTime())
	answers := make(chan map[cluster.NodeID]cluster.Seen, len(ask))
	finished := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() {
		defer close(finished)
		if err := c.deps.Raft().Barrier(ctx); err != nil {
			c.log.Debug("raft is busy: its log position may be out of date", "error", err)
		}
	})
	for _, id := range ask {
		asking.Go(func() { answers <- c.deps.Peers.Poll(ctx, []cluster.NodeID{id}) })
	}
	seen, current := map[cluster.NodeID]cluster.Seen{}, false
	for left := len(ask); left > 0 || !current; {
		select {
		case answer := <-answers:
			left--
			maps.Copy(seen, answer)
		case <-finished:
			current, finished = true, nil
		}
		if current && (judge(seen) || left == 0) {
			return
		}
	}
}

func (c *Controller) pollTime() time.Duration {
	wait := pollWait
	for _, s := range c.deps.Peers.Claims() {
		wait = max(wait, min(pollRTTs*s.RTT, c.cfg.TimeoutMin))
	}
	return wait
}

// stand makes this node stand, unless it has done so too often because of the
// same leader: a higher term deposes a living leader too.
func (c *Controller) stand(ctx context.Context, ev election.Evidence, confirmed time.Time, v election.Verdict, mine cluster.Claim) {
	now := c.now()
	if !c.mayInject(ev, now) {
		c.log.Warn("not standing again because of this leader: left to the timers", "leader", ev.Leader, "boot_id", ev.BootID)
		return
	}
	c.book.begin(candidacy{
		term: mine.Term + 1, trigger: v.Trigger, reason: v.Reason, began: now,
		leaderlessSince: now.Add(-max(0, mine.LeaderSilence)),
		steps:           Steps{Noticed: ev.At, Confirmed: confirmed, Agreed: now},
	})
	c.deps.Event(cluster.Event{
		Type: "failover", Term: mine.Term, Message: fmt.Sprintf("node %s stands for election: %s", c.cfg.Self, v.Reason),
		Fields: map[string]any{"trigger": v.Trigger, "leader_id": string(ev.Leader), "rank": v.Rank + 1, "ranking": describe(v.Ranking)},
	})
	if err := c.deps.Raft().Stand(ctx, mine.Term, cluster.MandateEvidence); err != nil {
		c.log.Warn("could not stand for election", "error", err)
		return
	}
	c.book.stood(mine.Term+1, c.now())
}

func describe(ranking []election.Ranked) []string {
	lines := make([]string, len(ranking))
	for i, r := range ranking {
		lines[i] = fmt.Sprintf("%s (%s)", r.ID, r.Why)
	}
	return lines
}

// Injections for one process of a leader: so many at once, and one more after
// each injectionEvery.
const (
	injections     = 4
	injectionEvery = 2 * time.Second
	maxLimits      = 64 // leader processes remembered
)

// limit is a token bucket.
type limit struct {
	left float64
	at   time.Time
}

func (l *limit) take(now time.Time) bool {
	l.left = min(injections, l.left+float64(now.Sub(l.at))/float64(injectionEvery))
	l.at = now
	if l.left < 1 {
		return false
	}
	l.left--
	return true
}

func (c *Controller) mayInject(ev election.Evidence, now time.Time) bool {
	key := string(ev.Leader) + "/" + ev.BootID
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.limits[key]
	if l == nil {
		if len(c.limits) >= maxLimits {
			clear(c.limits) // of processes long dead, as a rule
		}
		l = &limit{left: injections, at: now}
		c.limits[key] = l
	}
	return l.take(now)
}
