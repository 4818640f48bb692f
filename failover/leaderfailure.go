package failover

import (
	"cmp"
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

// runFailover follows evidence until this node stands, somebody leads, or nothing
// comes of it in time: then Raft's timers do the rest. confirmed is when the
// leader's process was found dead, zero when it was not.
func (c *Controller) runFailover(ctx context.Context, ev election.Evidence, confirmed time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.cfg.TimeoutMax)
	defer cancel()
	recheck := time.Duration(0)
	for asked := ev.ProcessDead; ; asked = true {
		changed := c.deps.Consensus.LeaderChanged()
		known := ev.CountConfirming(c.deps.Peers.Claims()) // some may not answer the poll
		v, mine, seen := c.evaluate(ctx, ev, asked)
		if ctx.Err() != nil {
			return
		}
		now := c.now()
		if v.StartElection && ev.AgreedAt.IsZero() {
			ev.AgreedAt = now
		}
		if v.TermProgress > ev.Progress {
			ev.Progress, ev.ProgressAt = v.TermProgress, now
		}
		c.log.Debug("verdict on the leader", "leader", ev.Leader, "stand", v.StartElection, "after", v.After, "reason", v.Reason)
		switch {
		case v.StartElection && v.After == 0:
			c.startElection(ctx, ev, confirmed, v, mine)
			return
		case v.After == 0:
			return
		case !v.StartElection && v.After <= election.Recheck:
			// Too few agree, for now: not again and again at full speed. A longer wait is for
			// the moment at which one more will, and who sleeps past that loses its place.
			recheck = min(max(2*recheck, election.Recheck), maxRecheck)
			v.After = recheck
		}
		if !c.awaitChange(ctx, v, changed, ev, max(known, ev.CountConfirming(seen)), mine) {
			return
		}
	}
}

// logPollInterval is how often a node that waits for its place looks at its own log.
const logPollInterval = time.Millisecond

// awaitChange ends when it is time to look again, when the leader changes, or when more
// than so many peers report that it is lost; false when ctx has ended. A node that
// waits for its place also looks again when its log has grown: the last that the
// leader has sent may be read only now, and make it the first.
func (c *Controller) awaitChange(ctx context.Context, v election.Decision, changed <-chan struct{}, ev election.Evidence, agreeing int, mine cluster.Claim) bool {
	timer := time.NewTimer(v.After)
	defer timer.Stop()
	var look <-chan time.Time
	if v.StartElection {
		tick := time.NewTicker(logPollInterval)
		defer tick.Stop()
		look = tick.C
	}
	for {
		claims := c.deps.Peers.ClaimsChanged()
		if ev.CountConfirming(c.deps.Peers.Claims()) > agreeing {
			return true
		}
		select {
		case <-timer.C:
			return true
		case <-look:
			if now := c.deps.Claim(); now.LastLogIndex != mine.LastLogIndex || now.LastLogTerm != mine.LastLogTerm {
				return true
			}
		case <-changed:
			return true
		case <-claims:
		case <-ctx.Done():
			return false
		}
	}
}

// evaluate asks the other voters and judges. Raft finishes its append first, here
// as on the others: otherwise the best placed is one entry behind what it has
// received, and is refused. asked says that the leader is not asked, or not again:
// should it answer late, that counts all the same, and nobody waits for it.
func (c *Controller) evaluate(ctx context.Context, ev election.Evidence, asked bool) (v election.Decision, mine cluster.Claim, seen map[cluster.NodeID]cluster.ReceivedClaim) {
	servers := c.deps.Consensus.Status().Servers
	var ask []cluster.NodeID
	for _, sv := range servers {
		// A silent leader is asked too: on a busy machine it may only have been kept
		// from speaking, and its answer ends the silence.
		if sv.ID != c.cfg.Self && (sv.Suffrage == cluster.Voter && sv.ID != ev.Leader || sv.ID == ev.Leader && !asked) {
			ask = append(ask, sv.ID)
		}
	}
	c.barrier(ctx)
	c.pollVoters(ctx, ev, servers, ask, func(answers map[cluster.NodeID]cluster.ReceivedClaim) (enough bool) {
		seen, mine = answers, c.deps.Claim()
		v = election.DecideElection(election.Input{
			Now: c.now(), Servers: servers, Mine: mine, Responses: seen, LatestClaims: c.deps.Peers.Claims(), Evidence: ev, Params: c.cfg.params(),
		})
		return ev.ProcessDead && v.StartElection && v.After == 0
	})
	return v, mine, seen
}

// barrier waits until this node's own Raft has finished its append, for a moment.
func (c *Controller) barrier(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollWait)
	defer cancel()
	if err := c.deps.Raft().WaitMainLoop(ctx); err != nil {
		c.log.Debug("raft is busy: its log position may be out of date", "error", err)
	}
}

// pollVoters asks peers, and shows what has come to judge: at first, at each answer,
// and at the end, which is when that says that it has seen enough. The leader's
// process is dead then, a majority says so, and this node is the best placed of
// those who answered, with nobody of a higher priority among the others: whatever
// these say, it can win, and one slow voter of five is not waited for. Who has
// found the same, says so, and comes behind this node need not be asked.
func (c *Controller) pollVoters(ctx context.Context, ev election.Evidence, servers []cluster.Server, ask []cluster.NodeID, judge func(map[cluster.NodeID]cluster.ReceivedClaim) (enough bool)) {
	seen := c.unsolicited(ev, servers)
	if judge(seen) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.pollTimeout())
	answers := make(chan map[cluster.NodeID]cluster.ReceivedClaim, len(ask))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, id := range ask {
		asking.Go(func() { answers <- c.deps.Peers.Poll(ctx, []cluster.NodeID{id}) })
	}
	for left := len(ask); left > 0; {
		changed := c.deps.Peers.ClaimsChanged()
		before := ev.CountConfirming(seen)
		maps.Copy(seen, c.unsolicited(ev, servers))
		if ev.CountConfirming(seen) == before {
			select {
			case answer := <-answers:
				left--
				maps.Copy(seen, answer)
			case <-changed:
				continue
			}
		}
		if judge(seen) {
			return
		}
	}
}

// unsolicited gives the claims of connected peers that have found the process of a lost
// leader dead, and that come behind this node in any case: whether they have begun to
// stand since makes no difference to its place. Whoever may come before it has to
// answer.
func (c *Controller) unsolicited(ev election.Evidence, servers []cluster.Server) map[cluster.NodeID]cluster.ReceivedClaim {
	seen := map[cluster.NodeID]cluster.ReceivedClaim{}
	if !ev.ProcessDead || ev.BootID == "" {
		return seen
	}
	mine := c.deps.Claim()
	for id, s := range c.deps.Peers.Claims() {
		reports := s.Connected && s.Claim.LeaderProcessDead && s.Claim.LeaderBootID == ev.BootID && s.Claim.Term >= ev.Term
		if reports && c.cfg.params().RanksBelow(s.Claim, mine, servers) {
			seen[id] = s
		}
	}
	return seen
}

// pollTimeout is how long answers are waited for. What the last exchange took is no
// measure: a peer that was kept from answering just before may be so again, and the
// failover would wait for it three times as long.
func (c *Controller) pollTimeout() time.Duration {
	wait := pollWait
	for _, s := range c.deps.Peers.Claims() {
		if s.Connected {
			wait = max(wait, min(pollRTTs*cmp.Or(s.NetworkRTT, s.LastExchange), c.cfg.TimeoutMin))
		}
	}
	return wait
}

// startElection makes this node stand, unless it has done so too often because of the
// same leader: a higher term deposes a living leader too.
func (c *Controller) startElection(ctx context.Context, ev election.Evidence, confirmed time.Time, v election.Decision, mine cluster.Claim) {
	now := c.now()
	if !c.allowElection(ev, now) {
		c.log.Warn("not standing again because of this leader: left to the timers", "leader", ev.Leader, "boot_id", ev.BootID)
		return
	}
	c.book.begin(candidacy{
		term: mine.Term + 1, trigger: v.Trigger, reason: v.Reason, startedAt: now,
		leaderlessSince: now.Add(-max(0, mine.LeaderSilence)),
		steps:           Timeline{Noticed: ev.At, Confirmed: confirmed, Agreed: now},
	})
	c.deps.Event(cluster.Event{
		Type: "failover", Term: mine.Term, Message: fmt.Sprintf("node %s stands for election: %s", c.cfg.Self, v.Reason),
		Fields: map[string]any{"trigger": v.Trigger, "leader_id": string(ev.Leader), "rank": v.Rank + 1, "ranking": describe(v.Ranking)},
	})
	if err := c.deps.Raft().StartElection(ctx, mine.Term, cluster.CauseLeaderFailed); err != nil {
		c.log.Warn("could not stand for election", "error", err)
		return
	}
	c.book.markStarted(mine.Term+1, c.now())
}

func describe(ranking []election.Ranked) []string {
	lines := make([]string, len(ranking))
	for i, r := range ranking {
		lines[i] = fmt.Sprintf("%s (%s)", r.ID, r.Why)
	}
	return lines
}

// Injections for one process of a leader: so many at once, and one more after
// each electionRefill.
const (
	maxElectionBurst = 4
	electionRefill   = 2 * time.Second
	maxLimits        = 64 // leader processes remembered
)

// tokenBucket is a token bucket.
type tokenBucket struct {
	left float64
	at   time.Time
}

func (l *tokenBucket) allow(now time.Time) bool {
	l.left = min(maxElectionBurst, l.left+float64(now.Sub(l.at))/float64(electionRefill))
	l.at = now
	if l.left < 1 {
		return false
	}
	l.left--
	return true
}

func (c *Controller) allowElection(ev election.Evidence, now time.Time) bool {
	key := string(ev.Leader) + "/" + ev.BootID
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.electionLimits[key]
	if l == nil {
		if len(c.electionLimits) >= maxLimits {
			clear(c.electionLimits) // of processes long dead, as a rule
		}
		l = &tokenBucket{left: maxElectionBurst, at: now}
		c.electionLimits[key] = l
	}
	return l.allow(now)
}
