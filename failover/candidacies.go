package failover

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
)

// candidacyLog keeps what is known of this node's last candidacies.
type candidacyLog struct {
	mu   sync.Mutex
	last []candidacy // by order of beginning; at most maxCandidacies
}

const maxCandidacies = 8

// candidacy is one time that this node stood, or asked whether it could.
type candidacy struct {
	term            uint64
	trigger, reason string // "": Raft's own timer
	operator        string // who ordered it; "": nobody
	overLiveLeader  bool   // it passes over a leader that may live
	startedAt       time.Time
	leaderlessSince time.Time // when the leader was last heard; zero: not known
	steps           Timeline
	votes, pre      map[cluster.NodeID]cluster.Vote
}

// Timeline are the times at which one failover got on. What is zero is not known, or
// was not gone through.
type Timeline struct {
	Noticed         time.Time // the leader's connection broke, or it was found silent
	Confirmed       time.Time // the leader's process is dead
	Agreed          time.Time // a majority of voters reports the same, and it is this node's turn
	ElectionStarted time.Time // Raft has taken the order to stand
}

// begin notes a candidacy that failover wants.
func (b *candidacyLog) begin(c candidacy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.votes, c.pre = map[cluster.NodeID]cluster.Vote{}, map[cluster.NodeID]cluster.Vote{}
	if i := b.find(c.term); i >= 0 {
		c.votes, c.pre = b.last[i].votes, b.last[i].pre
		b.last = slices.Delete(b.last, i, i+1)
	}
	b.add(c)
}

// add appends. The lock is held.
func (b *candidacyLog) add(c candidacy) {
	if len(b.last) == maxCandidacies {
		b.last = slices.Delete(b.last, 0, 1)
	}
	b.last = append(b.last, c)
}

// find gives the candidacy for a term, -1 when there is none. The lock is held.
func (b *candidacyLog) find(term uint64) int {
	return slices.IndexFunc(b.last, func(c candidacy) bool { return c.term == term })
}

// markStarted notes when Raft began to stand for a term.
func (b *candidacyLog) markStarted(term uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(term); i >= 0 {
		b.last[i].steps.ElectionStarted = now
	}
}

// vote notes a voter's answer.
func (b *candidacyLog) vote(a cluster.VoteResponse, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(a.Term)
	if i < 0 {
		b.add(candidacy{term: a.Term, startedAt: now, votes: map[cluster.NodeID]cluster.Vote{}, pre: map[cluster.NodeID]cluster.Vote{}})
		i = len(b.last) - 1
	}
	answers := b.last[i].votes
	if a.Pre {
		answers = b.last[i].pre
	}
	answers[a.Voter] = cluster.Vote{Voter: a.Voter, Granted: a.Granted, Reason: a.Reason}
}

// unwinnable says whether so many of that many voters have refused, or could not be
// asked, that the candidacy for a term cannot be won.
func (b *candidacyLog) unwinnable(term uint64, voters int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(term)
	if i < 0 {
		return false
	}
	refused := 0
	for _, v := range b.last[i].votes {
		if !v.Granted {
			refused++
		}
	}
	return refused > voters-cluster.Quorum(voters)
}

// CandidacyRecord are what is known of a candidacy of this node.
type CandidacyRecord struct {
	Term            uint64
	Trigger, Reason string // "": it was Raft's timer, or is not known
	Operator        string
	Ordered         bool // voters were asked to pass over the leader that they know
	Began           time.Time
	LeaderlessSince time.Time
	Votes           []cluster.Vote // by voter, its own included
	Steps           Timeline
}

// facts gives the newest candidacy for a term up to that one; of a candidacy
// that got no further than pre-votes, those.
func (b *candidacyLog) facts(self cluster.NodeID, term uint64) (CandidacyRecord, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range slices.Backward(b.last) {
		if c.term > term {
			continue
		}
		answers := c.votes
		if len(answers) == 0 {
			answers = c.pre
		}
		votes := slices.Collect(maps.Values(answers))
		if _, ok := answers[self]; !ok && len(votes) > 0 {
			votes = append(votes, cluster.Vote{Voter: self, Granted: true, Reason: "itself"})
		}
		return CandidacyRecord{Term: c.term, Trigger: c.trigger, Reason: c.reason, Operator: c.operator, Ordered: c.overLiveLeader, Began: c.startedAt, LeaderlessSince: c.leaderlessSince, Votes: votes, Steps: c.steps}, true
	}
	return CandidacyRecord{}, false
}

// OnVoteResponse hears a voter's answer to this node. It does not block.
func (c *Controller) OnVoteResponse(a cluster.VoteResponse) { c.book.vote(a, c.now()) }

// CandidacyRecord are what is known of this node's candidacy that ended with the election
// of that term. For a lost election the candidacy may be of an earlier term.
func (c *Controller) Facts(term uint64) CandidacyRecord {
	f, known := c.book.facts(c.cfg.Self, term)
	if !known || len(f.Votes) == 0 {
		return f
	}
	for _, sv := range c.deps.Consensus.Status().Servers {
		asked := slices.ContainsFunc(f.Votes, func(v cluster.Vote) bool { return v.Voter == sv.ID })
		if sv.Suffrage == cluster.Voter && !asked {
			f.Votes = append(f.Votes, cluster.Vote{Voter: sv.ID, Reason: "no answer yet"})
		}
	}
	slices.SortFunc(f.Votes, func(a, b cluster.Vote) int { return cmp.Compare(a.Voter, b.Voter) })
	return f
}
