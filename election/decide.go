package election

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Evidence is the reason for which a node believes that its leader failed.
type Evidence struct {
	Leader cluster.NodeID
	BootID string // boot ID of the leader's process; "" if unknown
	// ProcessDead: the connection was lost and a new dial confirmed that the process is dead. Otherwise the
	// leader has been silent for too long (Params.SilenceLimit).
	ProcessDead bool
	DiskStalled bool      // silent, and its last claim reported a stalled disk
	At          time.Time // when the evidence was found
	Term        uint64    // of this node at that time
	// AgreedAt is when this node first found a majority that confirms it; zero: not yet. The delays of all
	// ranks start then, because agreement may take longer than all of them.
	AgreedAt time.Time
	// Progress is Decision.TermProgress of the previous evaluation, and ProgressAt the time of its last
	// increase. A new candidate gets time from then on. Zero: none yet.
	Progress   uint64
	ProgressAt time.Time
	// UnwinnableTerm is the term in which this node was a candidate because of this evidence, and too many refused; 0:
	// none.
	UnwinnableTerm uint64
}

// Trigger returns the evidence's name in records.
func (e Evidence) Trigger() string {
	switch {
	case e.ProcessDead:
		return TriggerConnectionLost
	case e.DiskStalled:
		return TriggerDiskStall
	}
	return TriggerTimeout
}

// Input is the complete input of DecideElection.
type Input struct {
	Now       time.Time
	Servers   []cluster.Server // Raft's latest configuration
	Mine      cluster.Claim    // of this node, at Now
	Responses map[cluster.NodeID]cluster.ReceivedClaim
	// LatestClaims are the newest claims of all peers, older ones too. They only delay this node, in favour of
	// a connected node that ranks above it or is a candidate, and has not responded yet.
	LatestClaims map[cluster.NodeID]cluster.ReceivedClaim
	Evidence     Evidence
	Params       Params
}

// Decision is what to do about a leader that may have failed.
type Decision struct {
	StartElection bool          // start an election, after After
	After         time.Duration // evaluate again then, with fresh claims; 0 without StartElection: Raft's timers decide
	Rank          int           // this node's rank, 0 is the first; valid with StartElection
	Trigger       string
	Reason        string
	// TermProgress grows with the newest known term, and when that term has a candidate.
	TermProgress uint64
	Ranking      []Ranked // eligible voters that responded, best first
}

// DecideElection decides whether and when this node starts an election, from what it and the other voters know
// about the leader. Responses holds poll responses for this evidence, plus unsolicited confirming claims of
// lower-ranked peers.
//
// A majority of all voters, this node included, must confirm the evidence, and no voter may have heard the
// leader recently, because a higher term also deposes a living leader.
func DecideElection(in Input) Decision {
	v := Decision{Trigger: in.Evidence.Trigger()}
	if v.Reason, v.After = in.selfObjection(); v.Reason != "" {
		return v
	}
	others, claims := in.others(), []cluster.Claim{in.Mine}
	for _, s := range others {
		if v.Reason, v.After = in.voterObjection(s); v.Reason != "" {
			return v
		}
		claims = append(claims, s.Claim)
	}
	var agree []string
	for _, c := range claims {
		if in.confirms(c) {
			agree = append(agree, string(c.NodeID))
		}
	}
	slices.Sort(agree)
	voters := cluster.CountVoters(in.Servers)
	switch waited := in.Mine.LeaderSilence; {
	case in.Params.Lease && waited < in.Params.TimeoutMin:
		v.After = max(Recheck, in.Params.TimeoutMin-waited)
		v.Reason = fmt.Sprintf("the lease of node %s may not have expired", in.Evidence.Leader)
		return v
	case !in.confirms(in.Mine), len(agree) < cluster.Quorum(voters):
		v.After = Recheck
		v.Reason = fmt.Sprintf("%d of %d voters report that leader %s is %s; %d are needed", len(agree), voters,
			in.Evidence.Leader, in.Evidence.adjective(), cluster.Quorum(voters))
		return v
	}
	v.Ranking = in.ranking(claims)
	v.Rank = slices.IndexFunc(v.Ranking, func(r Ranked) bool { return r.ID == in.Mine.NodeID })
	v.TermProgress = in.progress(others)
	v.StartElection, v.After = true, in.remainingDelay(v, others)
	v.Reason = fmt.Sprintf("leader %s is %s (reported by %s); rank %d (%s)", in.Evidence.Leader,
		in.Evidence.adjective(), strings.Join(agree, ", "), v.Rank+1, v.Ranking[v.Rank].Why)
	return v
}

// ranking returns who may start an election, the best first. Voters that have not noticed the failure are ranked too:
// they soon will. Other nodes do not rank candidates of a newer term. A node that has lost an election ranks the losers
// of the same term last, so that all agree on the first place.
func (in Input) ranking(claims []cluster.Claim) []Ranked {
	var first, losers []cluster.Claim
	for _, c := range claims {
		switch {
		case !in.isNewCandidate(c):
			first = append(first, c)
		case c.Term == in.Evidence.UnwinnableTerm:
			losers = append(losers, c)
		}
	}
	return append(in.Params.rank(first, in.Servers), in.Params.rank(losers, in.Servers)...)
}

func (e Evidence) adjective() string {
	if e.ProcessDead {
		return "dead"
	}
	return "silent"
}

// selfObjection returns why this node itself does not start an election, and when to evaluate again (0: never).
func (in Input) selfObjection() (reason string, again time.Duration) {
	mine, ev := in.Mine, in.Evidence
	switch why := ineligibleReason(mine); {
	case !isVoter(in.Servers, mine.NodeID):
		return "this node is not a voter", 0
	case mine.Role == cluster.Leader:
		return "this node leads", 0
	case in.isNewCandidate(mine) && mine.Term != ev.UnwinnableTerm:
		return "this node is a candidate already", 0
	case mine.LeaderID != "" && mine.LeaderID != ev.Leader:
		return fmt.Sprintf("this node follows leader %s, not node %s", mine.LeaderID, ev.Leader), 0
	case mine.LeaderID == ev.Leader && mine.Term > ev.Term:
		return fmt.Sprintf("leader %s was elected again, in term %d", ev.Leader, mine.Term), 0
	case !ev.ProcessDead && !mine.LeaderProcessDead && !in.Params.silent(mine):
		return fmt.Sprintf("this node heard the leader %s %v ago", ev.Leader, round(mine.LeaderSilence)), 0
	case !ev.ProcessDead && mine.Disk.Hangs:
		// Its vote would wait for the disk, and then depose a leader whose disk hung with this one's and works again.
		return "this node's disk hangs, too", Recheck
	case mine.Paused:
		return "automatic failover is paused", 0
	case why != "":
		return "this node is not eligible to lead: " + why, 0
	case mine.LeaderID == "" && mine.Term == ev.Term && mine.Role != cluster.Candidate:
		// Raft forgets the old leader before it adopts a newer term. The candidate of that term may be
		// rejected, and then this node may start an election.
		return "no leader known for the moment", Recheck
	}
	return "", 0
}

// isNewCandidate reports whether a node has started an election. One that only sends pre-vote requests has not: voters
// that know the leader reject it, and a TimeoutNow can still make it a candidate.
func (in Input) isNewCandidate(c cluster.Claim) bool {
	return c.Role == cluster.Candidate && c.Term > in.Evidence.Term
}

// others returns the responses of voters by ID, without the leader in question.
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

// voterObjection returns what in a voter's response forbids an election, and when to ask again (0: never).
func (in Input) voterObjection(s cluster.ReceivedClaim) (reason string, again time.Duration) {
	c, ev := s.Claim, in.Evidence
	switch {
	case c.Role == cluster.Leader && c.Term >= in.Mine.Term:
		return fmt.Sprintf("node %s leads in term %d", c.NodeID, c.Term), 0
	case c.LeaderID != "" && c.LeaderID != ev.Leader && c.Term > ev.Term:
		return fmt.Sprintf("node %s knows leader %s in term %d", c.NodeID, c.LeaderID, c.Term), 0
	case c.LeaderID != ev.Leader || in.Evidence.confirmed(c):
		return "", 0
	case !ev.ProcessDead && !in.Params.silent(c):
		return fmt.Sprintf("node %s heard the leader %s %v ago", c.NodeID, ev.Leader,
			round(c.LeaderSilence)), in.Params.SilenceLimit(c) - c.LeaderSilence
	case ev.ProcessDead && s.At.Add(-c.LeaderSilence).After(ev.At.Add(s.LastExchange)):
		return fmt.Sprintf("node %s has heard the leader %s since its connection to this node broke", c.NodeID,
			ev.Leader), Recheck
	}
	return "", 0
}

// CountConfirming returns the number of peers that claim that this leader's process is dead.
func (e Evidence) CountConfirming(claims map[cluster.NodeID]cluster.ReceivedClaim) (n int) {
	for _, s := range claims {
		if e.confirmed(s.Claim) {
			n++
		}
	}
	return n
}

// confirmed reports whether the claim is that the leader's process is dead.
func (e Evidence) confirmed(c cluster.Claim) bool { return c.LeaderProcessDead && e.sameLeader(c) }

// sameLeader reports whether a claim is about the leader in question. A candidate has forgotten the leader's name.
func (e Evidence) sameLeader(c cluster.Claim) bool {
	if c.LeaderBootID != "" && e.BootID != "" {
		return c.LeaderBootID == e.BootID
	}
	return c.LeaderID == e.Leader
}

// confirms reports whether a claim confirms the evidence.
func (in Input) confirms(c cluster.Claim) bool {
	silent := in.Params.silent(c)
	switch {
	case !in.Evidence.sameLeader(c), in.Params.Lease && !silent:
		return false
	case in.Evidence.ProcessDead:
		return c.LeaderProcessDead
	}
	return silent || c.LeaderProcessDead
}

// remainingDelay returns how much longer a rank must wait. If the term has moved on, there was another candidate: it
// gets time to be heard as leader, counted from when that was noticed. A higher-ranked pre-vote candidate may be about
// to start its election, or after a silent leader only have been refused. Voters that have not responded keep their
// rank if an equal log would place them above this node.
func (in Input) remainingDelay(v Decision, others []cluster.ReceivedClaim) time.Duration {
	ahead := v.Ranking[:v.Rank]
	var unwinnable []uint64 // terms whose candidate cannot win
	for _, s := range others {
		if in.isNewCandidate(s.Claim) && in.cannotWin(s.Claim, others) {
			unwinnable = append(unwinnable, s.Claim.Term)
		}
	}
	moves := func(c cluster.Claim) bool { return c.Term > in.Evidence.Term && !slices.Contains(unwinnable, c.Term) }
	moved, candidate, late := moves(in.Mine), false, 0
	for _, s := range others {
		moved = moved || moves(s.Claim) || in.isNewCandidate(s.Claim) && !in.cannotWin(s.Claim, others)
		candidate = candidate || s.Claim.Role == cluster.Candidate &&
			slices.ContainsFunc(ahead, func(r Ranked) bool { return r.ID == s.Claim.NodeID })
	}
	for _, s := range in.unresponsive() {
		moved = moved || moves(s.Claim) || in.isNewCandidate(s.Claim) && !in.cannotWin(s.Claim, others)
		ranked := !in.isNewCandidate(s.Claim) || s.Claim.Term == in.Evidence.UnwinnableTerm
		if ranked && ineligibleReason(s.Claim) == "" &&
			in.Params.ranksAbove(s.Claim, in.Mine, in.Servers) {
			candidate = candidate || s.Claim.Role == cluster.Candidate
			late++
		}
	}
	wait, since := time.Duration(v.Rank+late)*Stagger, in.Evidence.AgreedAt
	if moved || candidate {
		switch {
		case moved:
			wait += 2 * Stagger
		case in.Evidence.ProcessDead:
			wait += Stagger // in addition to its rank's delay
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

// cannotWin reports whether no majority is left for a candidate, without the dead leader and all voters with more
// up-to-date logs. A survivor may receive the leader's last entries only after the candidate's poll.
func (in Input) cannotWin(candidate cluster.Claim, others []cluster.ReceivedClaim) bool {
	if !in.Evidence.ProcessDead || candidate.Term > in.Mine.Term {
		return false // a silent leader may vote, and this node would be a candidate of the same term
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

// unresponsive returns the newest claims of connected voters that have not responded. A disk may be slow, and a
// candidate may announce its election late. A second candidate would split the votes.
func (in Input) unresponsive() (all []cluster.ReceivedClaim) {
	for _, sv := range in.Servers {
		s, known := in.LatestClaims[sv.ID]
		_, answered := in.Responses[sv.ID]
		if known && !answered && s.Connected && sv.Suffrage == cluster.Voter && sv.ID != in.Mine.NodeID &&
			sv.ID != in.Evidence.Leader {
			all = append(all, s)
		}
	}
	return all
}

func (in Input) progress(others []cluster.ReceivedClaim) uint64 {
	term, candidate := in.Mine.Term, uint64(0)
	for _, s := range slices.Concat(others, in.unresponsive()) {
		if s.Claim.Term > term {
			term, candidate = s.Claim.Term, 0
		}
		if s.Claim.Term == term && s.Claim.Role == cluster.Candidate {
			candidate = 1
		}
	}
	return 2*term + candidate
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
