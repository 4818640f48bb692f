package failover

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/election"
)

const (
	pollWait   = 10 * time.Millisecond // for claims, on a fast network
	pollRTTs   = 3                     // on a slow network, in round trips
	maxRecheck = 50 * time.Millisecond
)

// runFailover evaluates evidence until this node starts an election, a new leader is known, or the time is over. It
// returns false if the time is over and the facts may still change: a majority may be out of reach for a while.
// confirmed is when the leader's process was found dead; it may be zero.
func (c *Controller) runFailover(ctx context.Context, ev election.Evidence, confirmed time.Time) (decided bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*c.cfg.TimeoutMax)
	defer cancel()
	recheck := time.Duration(0)
	heard := map[cluster.NodeID]time.Time{} // when each voter that was heard again last ended a wait
	asked := ev.ProcessDead || c.watch.askedFor(c.deps.Claim().LeaderSilence) >= c.pollTimeout(ev.Leader)
	for ; ; asked = true {
		changed := c.deps.Consensus.LeaderChanged()
		known := ev.CountConfirming(c.deps.Peers.Claims()) // some voters may not answer the poll
		began := time.Now()
		v, mine, seen := c.evaluate(ctx, ev, asked)
		if ctx.Err() != nil {
			return false
		}
		now := time.Now()
		if v.StartElection && ev.AgreedAt.IsZero() {
			ev.AgreedAt = now
		}
		if v.TermProgress > ev.Progress {
			ev.Progress, ev.ProgressAt = v.TermProgress, now
		}
		c.log.Debug("election decision", "leader", ev.Leader, "start", v.StartElection, "after", v.After, "reason",
			v.Reason)
		switch {
		case v.StartElection && v.After == 0:
			term, started := c.startElection(ctx, ev, confirmed, v, mine)
			if !started || !c.losesElection(ctx, term, ev.Leader) {
				return true
			}
			ev.UnwinnableTerm = term // the votes were split, perhaps: Raft's timer would be late
			continue
		case v.After == 0:
			return true
		case !v.StartElection && v.After <= election.Recheck:
			// Poll less and less often. A node that waits for its rank's delay must not: it would sleep past the delay.
			recheck = min(max(2*recheck, election.Recheck), maxRecheck)
			v.After = recheck
		}
		agreeing := max(known, ev.CountConfirming(seen))
		if !c.awaitChange(ctx, v, changed, mine, func(claims map[cluster.NodeID]cluster.ReceivedClaim) bool {
			return ev.CountConfirming(claims) > agreeing || c.hearsMore(claims, seen, ev.Leader, began, heard)
		}) {
			return false
		}
	}
}

// spareIfAlive asks a leader whose connection broke, over another one that it may still have. A process that answers
// lives, although dials of it are refused: by a firewall, or because another program had the port of its crash socket.
// Then the failover ends. It does not wait for that: nothing answers for a dead process.
func (c *Controller) spareIfAlive(ctx context.Context, end func(), loss cluster.ConnectionLoss) {
	if boot := c.deps.Peers.Answer(ctx, loss.Peer); boot == "" || boot != loss.BootID {
		return
	}
	end()
	c.mu.Lock()
	said := c.deadLeader.id == loss.Peer && c.deadLeader.boot == loss.BootID
	if said {
		c.deadLeader = leaderInstance{}
	}
	c.mu.Unlock()
	c.log.Info("a connection to the leader broke, and its process answers on another one", "leader", loss.Peer,
		"said_dead", said, "cause", loss.Cause)
	if said {
		c.deps.Announce()
	}
}

// logPollInterval is how often a node that waits for its delay checks its own log.
const logPollInterval = time.Millisecond

// hearsMore reports whether a voter other than the failed leader, which did not respond to a poll, was heard after the
// poll began. It does so once in maxRecheck for each voter, and keeps in heard when: two survivors that do not respond
// would poll each other without a pause.
func (c *Controller) hearsMore(claims, responses map[cluster.NodeID]cluster.ReceivedClaim, failed cluster.NodeID,
	began time.Time, heard map[cluster.NodeID]time.Time,
) (more bool) {
	for _, sv := range c.deps.Consensus.Status().Servers {
		_, responded := responses[sv.ID]
		if sv.ID == failed || responded || sv.Suffrage != cluster.Voter {
			continue
		}
		s := claims[sv.ID]
		if s.Connected && s.At.After(began) && s.At.After(heard[sv.ID].Add(maxRecheck)) {
			heard[sv.ID] = time.Now()
			more = true
		}
	}
	return more
}

// awaitChange returns when the next evaluation is due, the leader changes, or news reports that the claims have
// changed. It returns false if ctx has ended. It also returns when this node's log has grown while it waits for its
// delay: the leader's last entries may improve its rank.
func (c *Controller) awaitChange(ctx context.Context, v election.Decision, changed <-chan struct{}, mine cluster.Claim,
	news func(claims map[cluster.NodeID]cluster.ReceivedClaim) bool,
) bool {
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
		if news(c.deps.Peers.Claims()) {
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

// evaluate polls the other voters and decides. All nodes wait for Raft to finish its append first, or the best
// candidate may claim one entry too few. asked: the leader needs no poll any more.
func (c *Controller) evaluate(ctx context.Context, ev election.Evidence, asked bool) (v election.Decision,
	mine cluster.Claim, seen map[cluster.NodeID]cluster.ReceivedClaim,
) {
	servers := c.deps.Consensus.Status().Servers
	var ask []cluster.NodeID
	for _, sv := range servers {
		// A silent leader is polled too: a response of one that was only delayed ends the silence.
		if sv.ID != c.cfg.Self && (sv.Suffrage == cluster.Voter && sv.ID != ev.Leader || sv.ID == ev.Leader && !asked) {
			ask = append(ask, sv.ID)
		}
	}
	c.barrier(ctx, pollWait)
	c.pollVoters(ctx, ev, servers, ask, func(answers map[cluster.NodeID]cluster.ReceivedClaim) (enough bool) {
		seen, mine = answers, c.deps.Claim()
		v = election.DecideElection(election.Input{
			Now: time.Now(), Servers: servers, Mine: mine, Responses: seen, LatestClaims: c.deps.Peers.Claims(),
			Evidence: ev, Params: c.params(),
		})
		return ev.ProcessDead && v.StartElection && v.After == 0
	})
	return v, mine, seen
}

// barrier waits, at most for wait, until this node's Raft has finished its append.
func (c *Controller) barrier(ctx context.Context, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := c.deps.Raft().WaitMainLoop(ctx); err != nil {
		c.log.Debug("raft is busy: its log position may be out of date", "error", err)
	}
}

// pollVoters polls peers and calls decide at the start, after each response and at the end, until its result is final:
// the leader's process is dead, a majority confirms it, this node ranks first among the responses, and no other voter
// has a higher priority. So one slow voter of five does not delay it. A peer that already confirmed the leader's death
// and ranks below this node is not polled.
func (c *Controller) pollVoters(ctx context.Context, ev election.Evidence, servers []cluster.Server,
	ask []cluster.NodeID, decide func(map[cluster.NodeID]cluster.ReceivedClaim) (enough bool),
) {
	seen := c.unsolicited(ev, servers)
	if decide(seen) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.pollTimeout(ask...))
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
		if decide(seen) {
			return
		}
	}
}

// unsolicited returns claims of connected peers that confirm the leader's death and rank below this node. Their
// later actions cannot change this node's rank. Peers that may rank above it must respond.
func (c *Controller) unsolicited(ev election.Evidence,
	servers []cluster.Server,
) map[cluster.NodeID]cluster.ReceivedClaim {
	seen := map[cluster.NodeID]cluster.ReceivedClaim{}
	if !ev.ProcessDead || ev.BootID == "" {
		return seen
	}
	mine := c.deps.Claim()
	for id, s := range c.deps.Peers.Claims() {
		reports := s.Connected && s.Claim.LeaderProcessDead && s.Claim.LeaderBootID == ev.BootID &&
			s.Claim.Term >= ev.Term
		if reports && c.params().RanksBelow(s.Claim, mine, servers) {
			seen[id] = s
		}
	}
	return seen
}

// pollTimeout returns how long to wait for responses of these peers: some round trips of the network, without delays of
// the peer.
func (c *Controller) pollTimeout(peers ...cluster.NodeID) time.Duration {
	wait, claims := pollWait, c.deps.Peers.Claims()
	for _, id := range peers {
		if s := claims[id]; s.Connected {
			wait = max(wait, min(pollRTTs*cmp.Or(s.NetworkRTT, s.LastExchange), c.cfg.TimeoutMin))
		}
	}
	return wait
}

// losesElection waits for the result of this node's election of a term, at most for TimeoutMin: Raft's timer fires
// then, or later. It reports whether too many voters have refused, and no other leader is known. The failed leader
// counts as one that refuses, unless it has granted its vote.
func (c *Controller) losesElection(ctx context.Context, term uint64, failed cluster.NodeID) bool {
	timer := time.NewTimer(c.cfg.TimeoutMin)
	defer timer.Stop()
	if s, _ := cluster.FindServer(c.deps.Consensus.Status().Servers, failed); s.Suffrage != cluster.Voter {
		failed = ""
	}
	for {
		changed := c.deps.Consensus.LeaderChanged()
		st, mine := c.deps.Consensus.Status(), c.deps.Claim()
		switch {
		case mine.Term >= term && mine.LeaderID != "":
			return false
		case mine.Term > term, c.candidacies.unwinnable(term, cluster.CountVoters(st.Servers), failed):
			return true
		}
		select {
		case <-changed:
		case <-c.candidacies.responded:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// startElection starts an election, within a rate limit: its higher term would also depose a living leader. It returns
// the term of the election, and whether it was started.
func (c *Controller) startElection(ctx context.Context, ev election.Evidence, confirmed time.Time, v election.Decision,
	mine cluster.Claim,
) (term uint64, started bool) {
	now := time.Now()
	if !ev.ProcessDead {
		threshold, _ := c.Silence()
		v.Reason += fmt.Sprintf("; silent for %v, tolerated for %v", mine.LeaderSilence.Round(time.Millisecond), threshold)
		if why := c.deps.Peers.Claims()[ev.Leader].Claim.Yields; why != "" {
			v.Reason += fmt.Sprintf("; the leader lets the others elect: %v", why)
		}
	}
	if !c.allowElection(ev, now) {
		c.log.Warn("election rate limit reached: waiting for Raft timeouts", "leader", ev.Leader, "boot_id", ev.BootID)
		return 0, false
	}
	c.candidacies.begin(CandidacyRecord{
		Term: mine.Term + 1, Trigger: v.Trigger, Reason: v.Reason, Began: now,
		LeaderlessSince: now.Add(-max(0, mine.LeaderSilence)),
		Steps:           Timeline{Noticed: ev.At, Confirmed: confirmed, Agreed: now},
	})
	c.deps.Event(cluster.Event{
		Type: "failover", Term: mine.Term, Message: fmt.Sprintf("node %s starts an election: %s", c.cfg.Self, v.Reason),
		Fields: map[string]any{
			"trigger": v.Trigger, "leader_id": string(ev.Leader), "rank": v.Rank + 1,
			"ranking": describe(v.Ranking),
		},
	})
	term, err := c.deps.Raft().StartElection(ctx, mine.Term, cluster.CauseLeaderFailed)
	if err != nil {
		c.log.Warn("cannot start election", "error", err)
		return 0, false
	}
	c.candidacies.markStarted(term, time.Now())
	if !ev.ProcessDead && !ev.DiskStalled {
		c.watchSuspect(ev, term-1, mine.LeaderSilence)
	}
	return term, true
}

func describe(ranking []election.Ranked) []string {
	lines := make([]string, len(ranking))
	for i, r := range ranking {
		lines[i] = fmt.Sprintf("%s (%s)", r.ID, r.Why)
	}
	return lines
}

// Limits of elections against one leader process: a burst, then one more per electionRefill.
const (
	maxElectionBurst = 4
	electionRefill   = 2 * time.Second
	maxLimits        = 64 // number of remembered leader processes
)

func (c *Controller) allowElection(ev election.Evidence, now time.Time) bool {
	key := string(ev.Leader) + "/" + ev.BootID
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.electionLimits[key]
	if l == nil {
		if len(c.electionLimits) >= maxLimits {
			clear(c.electionLimits) // most of these processes ended long ago
		}
		l = rate.NewLimiter(rate.Every(electionRefill), maxElectionBurst)
		c.electionLimits[key] = l
	}
	return l.AllowN(now, 1)
}
