package failover

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
)

// candidacyLog holds this node's newest candidacies.
type candidacyLog struct {
	mu   sync.Mutex
	last []candidacy // in order of their start; at most maxCandidacies
}

const maxCandidacies = 8

// candidacy is one candidacy of this node; it may have got no further than pre-votes.
type candidacy struct {
	term            uint64
	trigger, reason string // "": Raft's own timer
	operator        string // operator who requested it; may be ""
	overLiveLeader  bool   // it replaces a leader that may be alive
	startedAt       time.Time
	leaderlessSince time.Time // when the leader was last heard; zero: unknown
	steps           Timeline
	votes, pre      map[cluster.NodeID]cluster.Vote
}

// Timeline holds the times of one failover's phases. A zero time is unknown, or the phase was skipped.
type Timeline struct {
	Noticed         time.Time // the leader's connection was lost, or it was found silent
	Confirmed       time.Time // the leader's process is dead
	Agreed          time.Time // a majority of voters agrees, and this node's delay is over
	ElectionStarted time.Time // raft.Raft accepted the TimeoutNow
}

// begin records a candidacy that failover starts.
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

// add appends a candidacy. The caller holds the lock.
func (b *candidacyLog) add(c candidacy) {
	if len(b.last) == maxCandidacies {
		b.last = slices.Delete(b.last, 0, 1)
	}
	b.last = append(b.last, c)
}

// find returns the index of the candidacy for a term, -1 if there is none. The caller holds the lock.
func (b *candidacyLog) find(term uint64) int {
	return slices.IndexFunc(b.last, func(c candidacy) bool { return c.term == term })
}

// markStarted records when Raft became a candidate for a term.
func (b *candidacyLog) markStarted(term uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(term); i >= 0 {
		b.last[i].steps.ElectionStarted = now
	}
}

// vote records a voter's response.
func (b *candidacyLog) vote(a cluster.VoteResponse, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(a.Term)
	if i < 0 {
		b.add(candidacy{
			term: a.Term, startedAt: now, votes: map[cluster.NodeID]cluster.Vote{},
			pre: map[cluster.NodeID]cluster.Vote{},
		})
		i = len(b.last) - 1
	}
	answers := b.last[i].votes
	if a.Pre {
		answers = b.last[i].pre
	}
	answers[a.Voter] = cluster.Vote{Voter: a.Voter, Granted: a.Granted, Reason: a.Reason}
}

// unwinnable reports whether too many of the voters refused or could not be asked, so that the candidacy for a
// term cannot be won.
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

// CandidacyRecord describes a candidacy of this node.
type CandidacyRecord struct {
	Term            uint64
	Trigger, Reason string // "": Raft's timer, or unknown
	Operator        string
	Ordered         bool // voters were asked to ignore a leader that they know
	Began           time.Time
	LeaderlessSince time.Time
	Votes           []cluster.Vote // by voter, with this node's own
	Steps           Timeline
}

// facts returns the newest candidacy for a term up to the given one. If that got no further than pre-votes, it
// has the pre-votes.
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
		return CandidacyRecord{
			Term: c.term, Trigger: c.trigger, Reason: c.reason, Operator: c.operator,
			Ordered: c.overLiveLeader, Began: c.startedAt, LeaderlessSince: c.leaderlessSince, Votes: votes,
			Steps: c.steps,
		}, true
	}
	return CandidacyRecord{}, false
}

// OnVoteResponse records a voter's response to this node. It does not block.
func (c *Controller) OnVoteResponse(a cluster.VoteResponse) { c.book.vote(a, c.now()) }

// Facts returns the candidacy of this node that ended with the election of that term. For a lost election the
// candidacy may be of an earlier term.
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
