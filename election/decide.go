package election

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Evidence is why a node thinks that its leader is gone.
type Evidence struct {
	Leader cluster.NodeID
	BootID string // of that leader's process; "" when not known
	// Lost: its connection broke, and a re-dial confirmed that the process is
	// dead. Otherwise it has been silent for TimeoutMin.
	ProcessDead bool
	DiskStalled bool      // silent, and the last that it said was that its disk is stalled
	At          time.Time // when this came up
	Term        uint64    // of this node, then
	// AgreedAt is when this node first found that a majority reports it; zero: not
	// yet. Places wait from then on: agreement may take longer than all of them.
	AgreedAt time.Time
	// TermProgress is that of the last Verdict, and Active when it last grew: whoever
	// has begun to stand is given time from then on. Zero: not yet.
	Progress   uint64
	ProgressAt time.Time
}

// Trigger names the evidence in records.
func (e Evidence) Trigger() string {
	switch {
	case e.ProcessDead:
		return TriggerConnectionLost
	case e.DiskStalled:
		return TriggerDiskStall
	}
	return TriggerTimeout
}

// Input is all that Judge looks at.
type Input struct {
	Now       time.Time
	Servers   []cluster.Server // Raft's latest configuration
	Mine      cluster.Claim    // this node's own, as of Now
	Responses map[cluster.NodeID]cluster.ReceivedClaim
	// LatestClaims are the newest claims of all, also from before that. They only make a
	// place wait for a node that is connected, should stand before this one or has
	// begun to, and has not answered yet.
	LatestClaims map[cluster.NodeID]cluster.ReceivedClaim
	Evidence     Evidence
	Params       Params
}

// Decision says what to do about a leader that may be gone.
type Decision struct {
	StartElection bool          // stand, after After
	After         time.Duration // look again then, with fresh claims; 0 and not Stand: leave it to Raft's timers
	Rank          int           // this node's place, 0 the first; meaningful with Stand
	Trigger       string
	Reason        string
	// TermProgress grows with the newest term that was seen, and when somebody stands
	// in it.
	TermProgress uint64
	Ranking      []Ranked // of those who may stand and have answered, best first
}

// DecideElection decides whether this node stands for election, now or later, because of
// what it and the other voters know of the leader. Seen holds answers to a poll
// made for this evidence, or what bears it out unasked, of those behind this node.
//
// A majority of all voters, this node included, has to report the same, and no
// voter may have heard that leader lately: a higher term deposes a living
// leader too.
func DecideElection(in Input) Decision {
	v := Decision{Trigger: in.Evidence.Trigger()}
	if v.Reason, v.After = in.selfObjection(); v.Reason != "" {
		return v
	}
	others := in.others()
	for _, s := range others {
		reason, again := in.voterObjection(s)
		if reason != "" {
			v.Reason, v.After = reason, again
			return v
		}
	}
	agree := []cluster.Claim{in.Mine}
	for _, s := range others {
		if in.confirms(s.Claim) {
			agree = append(agree, s.Claim)
		}
	}
	voters := cluster.CountVoters(in.Servers)
	switch waited := in.Mine.LeaderSilence; {
	case in.Params.Lease && waited < in.Params.TimeoutMin:
		v.After, v.Reason = max(Recheck, in.Params.TimeoutMin-waited), fmt.Sprintf("the lease of node %s may not have run out", in.Evidence.Leader)
		return v
	case !in.confirms(in.Mine), len(agree) < cluster.Quorum(voters):
		v.After = Recheck
		v.Reason = fmt.Sprintf("%d of %d voters report that node %s is %s, %d are needed", count(agree, in.confirms), voters, in.Evidence.Leader, in.Evidence.adjective(), cluster.Quorum(voters))
		return v
	}
	// Who has not noticed yet is ranked too: it will in a moment. Who stands in a
	// newer term cannot begin anew before its own timer fires.
	candidates := []cluster.Claim{in.Mine}
	for _, s := range others {
		if !in.isNewCandidate(s.Claim) {
			candidates = append(candidates, s.Claim)
		}
	}
	v.Ranking = in.Params.rank(candidates, in.Servers)
	v.Rank = slices.IndexFunc(v.Ranking, func(r Ranked) bool { return r.ID == in.Mine.NodeID })
	v.TermProgress = in.progress(others)
	v.StartElection, v.After = true, in.remainingDelay(v, others)
	v.Reason = fmt.Sprintf("node %s is %s, as %s report; place %d (%s)", in.Evidence.Leader, in.Evidence.adjective(), names(agree), v.Rank+1, v.Ranking[v.Rank].Why)
	return v
}

func (e Evidence) adjective() string {
	if e.ProcessDead {
		return "lost"
	}
	return "silent"
}

// selfObjection says why this node does not stand whatever the others say, and when to
// look again (0: not at all).
func (in Input) selfObjection() (reason string, again time.Duration) {
	mine, ev := in.Mine, in.Evidence
	switch why := ineligibleReason(mine); {
	case !isVoter(in.Servers, mine.NodeID):
		return "this node is not a voter", 0
	case mine.Role == cluster.Leader:
		return "this node leads", 0
	case in.isNewCandidate(mine):
		return "this node stands already", 0
	case mine.LeaderID != "" && mine.LeaderID != ev.Leader:
		return fmt.Sprintf("this node follows leader %s, not node %s", mine.LeaderID, ev.Leader), 0
	case !ev.ProcessDead && !mine.LeaderProcessDead && mine.LeaderSilence < in.Params.TimeoutMin:
		return fmt.Sprintf("this node heard the leader %s %v ago", ev.Leader, round(mine.LeaderSilence)), 0
	case mine.Paused:
		return "automatic failover is paused", 0
	case why != "":
		return "this node may not lead: " + why, 0
	case mine.LeaderID == "" && mine.Term == ev.Term && mine.Role != cluster.Candidate:
		// Raft forgets the leader before it takes a newer term on. Whoever brought that
		// may have to be turned down, and then it is this node's turn.
		return "this node knows no leader for the moment", Recheck
	}
	return "", 0
}

// isNewCandidate says whether a node has begun an election of its own. One that asks for
// pre-votes, because its timer has fired, has not: voters that know the leader
// turn it down, and it can be made to stand like any other.
func (in Input) isNewCandidate(c cluster.Claim) bool {
	return c.Role == cluster.Candidate && c.Term > in.Evidence.Term
}

// others are the answers of voters, but for the one in question, by ID.
func (in Input) others() []cluster.ReceivedClaim {
	var all []cluster.ReceivedClaim
	for _, sv := range in.Servers {
		s, ok := in.Responses[sv.ID]
		if ok && sv.Suffrage == cluster.Voter && sv.ID != in.Mine.NodeID && sv.ID != in.Evidence.Leader {
			all = append(all, s)
		}
	}
	return all
}

// voterObjection says what in a voter's answer speaks against an election, and
// when to ask again (0: not at all).
func (in Input) voterObjection(s cluster.ReceivedClaim) (reason string, again time.Duration) {
	c, ev := s.Claim, in.Evidence
	switch {
	case c.Role == cluster.Leader && c.Term >= in.Mine.Term:
		return fmt.Sprintf("node %s leads in term %d", c.NodeID, c.Term), 0
	case c.LeaderID != "" && c.LeaderID != ev.Leader && c.Term > ev.Term:
		return fmt.Sprintf("node %s knows leader %s in term %d", c.NodeID, c.LeaderID, c.Term), 0
	case c.LeaderID != ev.Leader || in.Evidence.confirmed(c):
		return "", 0
	case !ev.ProcessDead && c.LeaderSilence < in.Params.TimeoutMin:
		return fmt.Sprintf("node %s heard the leader %s %v ago", c.NodeID, ev.Leader, round(c.LeaderSilence)), in.Params.TimeoutMin - c.LeaderSilence
	case ev.ProcessDead && s.At.Add(-c.LeaderSilence).After(ev.At.Add(s.LastExchange)):
		return fmt.Sprintf("node %s has heard the leader %s since its connection to this node broke", c.NodeID, ev.Leader), Recheck
	}
	return "", 0
}

// CountConfirming counts the peers that claim that this leader's process is dead.
func (e Evidence) CountConfirming(claims map[cluster.NodeID]cluster.ReceivedClaim) (n int) {
	for _, s := range claims {
		if e.confirmed(s.Claim) {
			n++
		}
	}
	return n
}

// confirmed says whether the claim is that the leader's process is dead.
func (e Evidence) confirmed(c cluster.Claim) bool { return c.LeaderProcessDead && e.sameLeader(c) }

// sameLeader says whether a claim is about the leader in question. The boot ID
// tells best; a candidate has forgotten the name.
func (e Evidence) sameLeader(c cluster.Claim) bool {
	if c.LeaderBootID != "" && e.BootID != "" {
		return c.LeaderBootID == e.BootID
	}
	return c.LeaderID == e.Leader
}

// confirms says whether a claim bears the evidence out.
func (in Input) confirms(c cluster.Claim) bool {
	silent := c.LeaderSilence >= in.Params.TimeoutMin
	switch {
	case !in.Evidence.sameLeader(c), in.Params.Lease && !silent:
		return false
	case in.Evidence.ProcessDead:
		return c.LeaderProcessDead
	}
	return silent || c.LeaderProcessDead
}

// remainingDelay is how much longer a place has to wait. Should the term have moved on,
// another has stood: it needs time to be heard of as leader, counted from when
// that was seen, for its disk may be slow. A candidate ahead of this node that has
// not raised its term may be about to, or, after a silence, may only have been
// turned down for its pre-vote. Of those who have not answered, the ones that would
// be ahead with a log as new as this node's have their places, too.
func (in Input) remainingDelay(v Decision, others []cluster.ReceivedClaim) time.Duration {
	ahead := v.Ranking[:v.Rank]
	lost := in.unwinnableTerms(others)
	moves := func(c cluster.Claim) bool { return c.Term > in.Evidence.Term && !slices.Contains(lost, c.Term) }
	moved, standing, late := moves(in.Mine), false, 0
	for _, s := range others {
		moved = moved || moves(s.Claim) || in.isNewCandidate(s.Claim) && !in.cannotWin(s.Claim, others)
		standing = standing || s.Claim.Role == cluster.Candidate && slices.ContainsFunc(ahead, func(r Ranked) bool { return r.ID == s.Claim.NodeID })
	}
	for _, s := range in.unresponsive() {
		moved = moved || moves(s.Claim) || in.isNewCandidate(s.Claim) && !in.cannotWin(s.Claim, others)
		if !in.isNewCandidate(s.Claim) && ineligibleReason(s.Claim) == "" && in.Params.ranksAbove(s.Claim, in.Mine, in.Servers) {
			standing = standing || s.Claim.Role == cluster.Candidate
			late++
		}
	}
	wait, since := time.Duration(v.Rank+late)*Stagger, in.Evidence.AgreedAt
	if moved || standing {
		switch {
		case moved:
			wait += 2 * Stagger
		case in.Evidence.ProcessDead:
			wait += Stagger // beside its place
		}
		since = in.Evidence.ProgressAt
		if v.TermProgress > in.Evidence.Progress {
			since = in.Now
		}
	}
	if since.IsZero() {
		since = in.Now
	}
	return max(0, wait-in.Now.Sub(since))
}

// unwinnableTerms are those that a candidate stands in without any chance.
func (in Input) unwinnableTerms(others []cluster.ReceivedClaim) (terms []uint64) {
	for _, s := range others {
		if in.isNewCandidate(s.Claim) && in.cannotWin(s.Claim, others) {
			terms = append(terms, s.Claim.Term)
		}
	}
	return terms
}

// cannotWin says that a candidate cannot win: with the dead leader, and all that have
// more in their logs than it, too few are left. That happens when the last that the
// leader had sent reached a survivor only after the best placed had asked.
func (in Input) cannotWin(candidate cluster.Claim, others []cluster.ReceivedClaim) bool {
	if !in.Evidence.ProcessDead || candidate.Term > in.Mine.Term {
		return false // a silent leader may vote; and this node would stand in the same term
	}
	behind := func(c cluster.Claim) bool { return LogReason(candidate.LastLogTerm, candidate.LastLogIndex, c) != "" }
	left := cluster.CountVoters(in.Servers)
	if isVoter(in.Servers, in.Evidence.Leader) {
		left--
	}
	if behind(in.Mine) {
		left--
	}
	for _, s := range others {
		if behind(s.Claim) {
			left--
		}
	}
	return left < cluster.Quorum(cluster.CountVoters(in.Servers))
}

// unresponsive are the newest claims of the voters that are connected and have not
// answered. A disk may be slow; and who has begun to stand may be late to say so:
// whoever then stands beside it splits the votes.
func (in Input) unresponsive() (all []cluster.ReceivedClaim) {
	for _, sv := range in.Servers {
		s, known := in.LatestClaims[sv.ID]
		_, answered := in.Responses[sv.ID]
		if known && !answered && s.Connected && sv.Suffrage == cluster.Voter && sv.ID != in.Mine.NodeID && sv.ID != in.Evidence.Leader {
			all = append(all, s)
		}
	}
	return all
}

func (in Input) progress(others []cluster.ReceivedClaim) uint64 {
	term, standing := in.Mine.Term, uint64(0)
	for _, s := range slices.Concat(others, in.unresponsive()) {
		if s.Claim.Term > term {
			term, standing = s.Claim.Term, 0
		}
		if s.Claim.Term == term && s.Claim.Role == cluster.Candidate {
			standing = 1
		}
	}
	return 2*term + standing
}

func count(claims []cluster.Claim, is func(cluster.Claim) bool) int {
	n := 0
	for _, c := range claims {
		if is(c) {
			n++
		}
	}
	return n
}

func names(claims []cluster.Claim) string {
	ids := make([]string, len(claims))
	for i, c := range claims {
		ids[i] = string(c.NodeID)
	}
	slices.Sort(ids)
	return strings.Join(ids, ", ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
