package failover

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// candidacyLog holds this node's newest candidacies.
type candidacyLog struct {
	responded chan struct{} // capacity 1: a voter has responded

	mu   sync.Mutex
	last []CandidacyRecord // in order of their start; at most maxCandidacies; Votes are set by facts
}

func newCandidacyLog() candidacyLog { return candidacyLog{responded: make(chan struct{}, 1)} }

// maxCandidacies is also for how many elections the votes that arrive after the result are known.
const maxCandidacies = 64

// CandidacyRecord describes a candidacy of this node; it may have got no further than pre-votes.
type CandidacyRecord struct {
	Term            uint64
	Trigger, Reason string // "": Raft's timer, or unknown
	Operator        string // operator who requested it; may be ""
	OverLiveLeader  bool   // voters were asked to ignore a leader that they know
	Began           time.Time
	LeaderlessSince time.Time      // when the leader was last heard; zero: unknown
	Votes           []cluster.Vote // by voter, with this node's own; all of pre-votes if it got no further
	Steps           Timeline
	Needless        string // why the election turned out to be needless; "": it did not

	votes, preVotes []cluster.Vote // responses, each voter's last one
	votedAt         time.Time      // of the first of votes
}

// Timeline holds the times of one failover's phases. A zero time is unknown, or the phase was skipped.
type Timeline struct {
	Noticed         time.Time // the leader's connection was lost, or it was found silent
	Confirmed       time.Time // the leader's process is dead
	Agreed          time.Time // a majority of voters agrees, and this node's delay is over
	ElectionStarted time.Time // raft.Raft accepted the TimeoutNow
}

// begin records a candidacy that failover starts. A transfer and a request may be for the same term: whichever of them
// makes Raft a candidate, the voters may have been asked to ignore their leader.
func (b *candidacyLog) begin(c CandidacyRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(c.Term); i >= 0 {
		before := b.last[i]
		c.OverLiveLeader = c.OverLiveLeader || before.OverLiveLeader
		c.votes, c.preVotes, c.votedAt = before.votes, before.preVotes, before.votedAt
		b.last = slices.Delete(b.last, i, i+1)
	}
	b.add(c)
}

// move makes the candidacy that was begun for a term one of the next term.
func (b *candidacyLog) move(term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(term); i >= 0 {
		b.last[i].Term++
	}
}

// add appends a candidacy. The caller holds the lock.
func (b *candidacyLog) add(c CandidacyRecord) {
	if len(b.last) == maxCandidacies {
		b.last = slices.Delete(b.last, 0, 1)
	}
	b.last = append(b.last, c)
}

// find returns the index of the candidacy for a term, -1 if there is none. The caller holds the lock.
func (b *candidacyLog) find(term uint64) int {
	return slices.IndexFunc(b.last, func(c CandidacyRecord) bool { return c.Term == term })
}

// markStarted records when Raft became a candidate for a term.
func (b *candidacyLog) markStarted(term uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(term); i >= 0 {
		b.last[i].Steps.ElectionStarted = now
	}
}

// markNeedless records that the election of a term was needless.
func (b *candidacyLog) markNeedless(term uint64, cause string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := b.find(term); i >= 0 {
		b.last[i].Needless = cause
	}
}

// lost returns how many elections of this node after the term of the last leader had real votes, and when those of
// the last one began. Candidacies that got no further than pre-votes raise no term, and do not count.
func (b *candidacyLog) lost(after uint64) (n int, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.last {
		if c.Term > after && len(c.votes) > 0 && !c.OverLiveLeader {
			n, last = n+1, c.votedAt
		}
	}
	return n, last
}

// needless returns the causes of needless elections by term.
func (b *candidacyLog) needless() map[uint64]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	terms := map[uint64]string{}
	for _, c := range b.last {
		if c.Needless != "" {
			terms[c.Term] = c.Needless
		}
	}
	return terms
}

// vote records a voter's response.
func (b *candidacyLog) vote(a cluster.VoteResponse, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.find(a.Term)
	if i < 0 {
		b.add(CandidacyRecord{Term: a.Term, Began: now})
		i = len(b.last) - 1
	}
	answers := &b.last[i].votes
	if a.Pre {
		answers = &b.last[i].preVotes
	} else if len(*answers) == 0 {
		b.last[i].votedAt = now
	}
	select {
	case b.responded <- struct{}{}:
	default:
	}
	earlier := slices.DeleteFunc(*answers, func(v cluster.Vote) bool { return v.Voter == a.Voter })
	*answers = append(earlier, cluster.Vote{Voter: a.Voter, Granted: a.Granted, Reason: a.Reason, Pre: a.Pre})
}

// unwinnable reports whether so many of the voters refused that the candidacy for a term cannot be won. A voter failed,
// if any, counts as one that refused, unless it has granted its vote.
func (b *candidacyLog) unwinnable(term uint64, voters int, failed cluster.NodeID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	refused := 0
	if failed != "" {
		refused = 1
	}
	if i := b.find(term); i >= 0 {
		for _, v := range b.last[i].votes {
			switch {
			case !v.Granted && v.Voter != failed:
				refused++
			case v.Granted && v.Voter == failed:
				refused--
			}
		}
	}
	return refused > voters-cluster.Quorum(voters)
}

// facts returns the newest candidacy up to a term, with its pre-votes if it got no further.
func (b *candidacyLog) facts(self cluster.NodeID, term uint64) (c CandidacyRecord, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c = range slices.Backward(b.last) {
		if c.Term > term {
			continue
		}
		if c.Votes = slices.Clone(c.votes); len(c.votes) == 0 {
			c.Votes = slices.Clone(c.preVotes)
		}
		if len(c.Votes) > 0 && !answered(c.Votes, self) {
			c.Votes = append(c.Votes, cluster.Vote{
				Voter: self, Granted: true, Reason: "itself", Pre: c.Votes[0].Pre,
			})
		}
		return c, true
	}
	return CandidacyRecord{}, false
}

func answered(votes []cluster.Vote, id cluster.NodeID) bool {
	return slices.ContainsFunc(votes, func(v cluster.Vote) bool { return v.Voter == id })
}

// maxVotesGiven bounds the answers of this node that it knows.
const maxVotesGiven = 128

// votesGiven holds this node's newest answers to candidates.
type votesGiven struct {
	mu   sync.Mutex
	last []cluster.VoteGiven // oldest first
}

func (b *votesGiven) add(v cluster.VoteGiven) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = slices.DeleteFunc(b.last, func(o cluster.VoteGiven) bool {
		return o.Term == v.Term && o.Candidate == v.Candidate
	})
	b.last = append(b.last[max(0, len(b.last)+1-maxVotesGiven):], v)
}

// OnVoteAnswered records this node's answer to a candidate. It does not block.
func (c *Controller) OnVoteAnswered(v cluster.VoteGiven) { c.given.add(v) }

// VotesGiven returns this node's newest answers to candidates, the oldest first. They are those of this process.
func (c *Controller) VotesGiven() []cluster.VoteGiven {
	c.given.mu.Lock()
	defer c.given.mu.Unlock()
	return slices.Clone(c.given.last)
}

// OnVoteResponse records a voter's response to this node. It does not block.
func (c *Controller) OnVoteResponse(a cluster.VoteResponse) { c.candidacies.vote(a, time.Now()) }

// OnTermRaised notes that the election that was to have that term has the next one. It does not block.
func (c *Controller) OnTermRaised(term uint64) { c.candidacies.move(term) }

// NeedlessElections returns the causes of this node's last elections that turned out to be needless, by term.
func (c *Controller) NeedlessElections() map[uint64]string { return c.candidacies.needless() }

// Backoff is the pause of a node between its elections, which it makes after it has lost several in a row.
type Backoff struct {
	Lost  int           // elections lost since the last leader
	Pause time.Duration // after each of them; 0: none
}

// Backoff returns the pause between this node's elections. It does not block.
func (c *Controller) Backoff() Backoff {
	lost, _ := c.candidacies.lost(c.lastLeader().term)
	return Backoff{Lost: lost, Pause: election.CandidacyPause(lost, c.cfg.TimeoutMax)}
}

// BacksOff reports whether this node has lost so many elections in a row that it starts none by itself for a while. It
// does not block.
func (c *Controller) BacksOff(now time.Time) bool {
	lost, last := c.candidacies.lost(c.lastLeader().term)
	pause := election.CandidacyPause(lost, c.cfg.TimeoutMax)
	return pause > 0 && now.Sub(last) < c.cfg.TimeoutMax+pause
}

// Facts returns the candidacy of that term's election, which this node was in. A lost one may be of an earlier term.
func (c *Controller) Facts(term uint64) CandidacyRecord {
	f, known := c.candidacies.facts(c.cfg.Self, term)
	if !known || len(f.Votes) == 0 {
		return f
	}
	for _, sv := range c.deps.Consensus.Status().Servers {
		if sv.Suffrage == cluster.Voter && !answered(f.Votes, sv.ID) {
			f.Votes = append(f.Votes, cluster.Vote{Voter: sv.ID, Reason: cluster.VotePending, Pre: f.Votes[0].Pre})
		}
	}
	slices.SortFunc(f.Votes, func(a, b cluster.Vote) int { return cmp.Compare(a.Voter, b.Voter) })
	return f
}
