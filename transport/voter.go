package transport

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Limits of delaying a vote request until this voter has evidence.
const (
	evidenceWait         = 10 * time.Millisecond
	evidencePollInterval = time.Millisecond
)

// voteRequest is a decoded vote or pre-vote request.
type voteRequest struct {
	candidate           cluster.NodeID
	pre, transfer       bool
	ordered             bool // transfer, as the candidate has set it
	term                uint64
	lastIndex, lastTerm uint64
}

// voteRequest decodes the message; false if it is not a vote or pre-vote request.
func (m incoming) voteRequest() (voteRequest, bool) {
	switch c := m.rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		return voteRequest{
			candidate: m.p.id, transfer: c.LeadershipTransfer, ordered: c.LeadershipTransfer, term: c.Term,
			lastIndex: c.LastLogIndex, lastTerm: c.LastLogTerm,
		}, true
	case *raft.RequestPreVoteRequest:
		return voteRequest{
			candidate: m.p.id, pre: true, term: c.Term, lastIndex: c.LastLogIndex,
			lastTerm: c.LastLogTerm,
		}, true
	}
	return voteRequest{}, false
}

// vote handles a vote or pre-vote request. It rejects requests that must not reach raft, because they could raise its
// term, and delivers the others. A rejection is always a response: the library counts some errors as a grant.
func (m incoming) vote(b voteRequest, a cluster.Admission) {
	m.r.t.monitors.FastPoll()
	if kind, why := m.refuseVote(b, a, time.Now()); why != "" {
		m.rejectVote(b, kind, why)
		return
	}
	if !b.pre && !b.transfer && m.ignoresLeader(b) {
		c := *m.rpc.Command.(*raft.RequestVoteRequest)
		c.LeadershipTransfer, b.transfer = true, true
		m.rpc.Command = &c
	}
	if why := m.r.boundByLease(m.p.id, b.term, time.Now()); why != "" && !b.ordered {
		m.rejectVote(b, "lease", why)
		return
	}
	if !b.transfer && m.r.boundByProxyAck(time.Now(), m.p.id, b.term) {
		m.rejectVote(b, "busy", "has acknowledged its leader recently")
		return
	}
	m.deliverVote(b)
}

// rejectVote rejects a vote request before raft. The answer shows the current term, which may not be durable yet.
func (m incoming) rejectVote(b voteRequest, kind, why string) {
	m.r.t.reject(m.kind, kind)
	m.count(b, false, kind)
	term := m.local.CurrentTerm()
	if err := m.local.FlushBeforeReply(); err != nil {
		m.rpc.Respond(nil, err)
		return
	}
	m.answerVote(b, false, term, why)
}

// count counts this node's response to a candidate.
func (m incoming) count(b voteRequest, granted bool, reason string) {
	if !b.pre {
		m.r.t.cfg.Elections.VoteAnswered(granted, reason)
	}
}

// refuseVote returns why a vote is refused, for the metric and as text; "" if it is not.
func (m incoming) refuseVote(b voteRequest, a cluster.Admission, now time.Time) (kind, why string) {
	switch {
	case !m.p.votes.AllowN(now, 1):
		return "rate", "sends requests too often"
	case !a.OK():
		return string(a.Refusal), a.Reason
	case a.RecordStale:
		return "outdated", "no votes are exchanged: " + noVotesReason(a)
	case !a.Votes:
		return "no_cluster_id", "no votes are exchanged: " + noVotesReason(a)
	case b.missesCommitted(m.committed()) != "":
		// A node that was wiped and re-admitted may lack committed entries itself, and Raft compares logs only.
		return "behind", b.missesCommitted(m.committed()) + ", which is committed"
	case !m.r.t.cfg.Elections.MayVote():
		return "lease", "a lease from before this node's restart may be running"
	case b.pre:
		if rival := m.r.ballots.votedSince(b.term, now.Add(-m.r.t.cfg.TimeoutMin)); rival != "" && rival != m.p.id {
			return "voted", fmt.Sprintf("already voted for %s", rival)
		}
		if why := m.r.t.cfg.Elections.VetoPreVote(m.p.id, now); why != "" {
			return "priority", why
		}
	}
	return "", ""
}

// committed returns an entry that this node knows to be committed without its log: the one of its roster. Term 0 if
// unknown.
func (m incoming) committed() (index, term uint64) {
	if self := m.r.t.cfg.Membership.LocalPeer(); self.Roster != nil {
		return self.Roster.Index, self.Roster.Term
	}
	return 0, 0
}

// missesCommitted returns why the candidate's log cannot hold a committed entry, "" if it can. A log that holds the
// entry ends at or after it, in the entry's term or a later one.
func (b voteRequest) missesCommitted(index, term uint64) string {
	switch {
	case b.lastTerm < term:
		return fmt.Sprintf("log behind: term %d < %d", b.lastTerm, term)
	case b.lastIndex < index:
		return fmt.Sprintf("log behind: %d < %d", b.lastIndex, index)
	}
	return ""
}

// ignoresLeader reports whether this voter has evidence of its own that the leader it knows has failed. It waits up to
// evidenceWait for it: the candidate may have found out first.
func (m incoming) ignoresLeader(b voteRequest) bool {
	stuck := func() bool {
		leader := m.local.Leader()
		self := m.r.t.cfg.Membership.LocalPeer().NodeID
		return leader != "" && leader != m.p.id && leader != self && b.term > m.local.CurrentTerm()
	}
	if !stuck() {
		return false // raft does not refuse the vote because of its leader
	}
	if m.r.t.cfg.Elections.MayIgnoreLeader(m.p.id, b.term, time.Now()) {
		return true
	}
	look := time.NewTicker(evidencePollInterval)
	defer look.Stop()
	for until := time.Now().Add(evidenceWait); time.Now().Before(until) && stuck(); {
		select {
		case <-look.C:
		case <-m.r.closed:
			return false
		}
		if m.r.t.cfg.Elections.MayIgnoreLeader(m.p.id, b.term, time.Now()) {
			return stuck()
		}
	}
	return false
}

// deliverVote passes a vote request to raft, and responds with raft's answer and its reason.
func (m incoming) deliverVote(b voteRequest) {
	before := m.voterState(b)
	answer, err := m.requestVote(b)
	if err == nil {
		err = m.local.FlushBeforeReply()
	}
	if err != nil {
		m.rpc.Respond(nil, err)
		return
	}
	granted, term, ok := decodeVoteResponse(answer)
	if !ok {
		m.rpc.RespChan <- answer
		return
	}
	if granted && !b.pre {
		m.r.ballots.cast(b.term, b.candidate, time.Now())
	}
	reason, why := "granted", ""
	lease := m.r.boundByLease(m.p.id, b.term, time.Now())
	switch {
	case !granted:
		reason, why = "raft", explain(b, before)
	case !b.ordered && lease != "":
		granted, reason, why = false, "lease", lease // as below
	case !b.pre && !b.transfer && m.r.boundByProxyAck(time.Now(), m.p.id, b.term):
		// The request waited while raft was busy, and was delivered before the proxied acknowledgement. To the
		// candidate the vote is lost.
		granted, reason, why = false, "busy", "has acknowledged its leader meanwhile"
	}
	m.count(b, granted, reason)
	m.answerVote(b, granted, term, why)
}

// requestVote passes a vote request to raft, and waits for the answer.
func (m incoming) requestVote(b voteRequest) (answer raft.RPCResponse, err error) {
	if !b.pre {
		m.local.TrackVote(true)
		defer m.local.TrackVote(false)
	}
	reply := make(chan raft.RPCResponse, 1)
	select {
	case m.r.consumer <- raft.RPC{Command: m.rpc.Command, RespChan: reply}:
	case <-m.r.closed:
		return answer, errClosed
	}
	select {
	case answer = <-reply:
		return answer, nil
	case <-m.r.closed:
		return answer, errClosed
	}
}

// decodeVoteResponse decodes raft's answer; ok is false if it is an error.
func decodeVoteResponse(answer raft.RPCResponse) (granted bool, term uint64, ok bool) {
	switch c := answer.Response.(type) {
	case *raft.RequestVoteResponse:
		return c.Granted, c.Term, answer.Error == nil
	case *raft.RequestPreVoteResponse:
		return c.Granted, c.Term, answer.Error == nil
	}
	return false, 0, false
}

// answerVote responds to a vote or pre-vote request.
func (m incoming) answerVote(b voteRequest, granted bool, term uint64, why string) {
	header := m.r.header()
	setReason(&header, why)
	if b.pre {
		m.rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: header, Term: term, Granted: granted}, nil)
	} else {
		m.rpc.Respond(&raft.RequestVoteResponse{RPCHeader: header, Term: term, Granted: granted}, nil)
	}
}

// voterState is what a voter's response depends on, as it was just before raft decided.
type voterState struct {
	term                uint64
	leader              cluster.NodeID
	votedFor            cluster.NodeID // in the request's term; "" if unknown
	lastIndex, lastTerm uint64
	member, voter       bool // of the candidate, in this node's configuration
}

func (m incoming) voterState(b voteRequest) voterState {
	v := voterState{term: m.local.CurrentTerm(), leader: m.local.Leader(), votedFor: m.r.ballots.voteIn(b.term)}
	v.lastIndex, v.lastTerm = m.local.LastEntry()
	servers := m.r.t.cfg.Membership.Servers()
	s, known := cluster.FindServer(servers, b.candidate)
	v.member, v.voter = known || len(servers) == 0, s.Suffrage == cluster.Voter || len(servers) == 0
	return v
}

// explain returns why raft refused a vote request, in the order of raft's checks.
func explain(b voteRequest, v voterState) string {
	switch {
	case !v.member:
		return fmt.Sprintf("%s is not in the configuration", b.candidate)
	case v.leader != "" && v.leader != b.candidate && !b.transfer:
		return fmt.Sprintf("knows leader %s", v.leader)
	case b.term < v.term:
		return fmt.Sprintf("old term: %d < %d", b.term, v.term)
	case !v.voter:
		return fmt.Sprintf("%s is not a voter", b.candidate)
	case !b.pre && v.votedFor != "" && v.votedFor != b.candidate:
		return fmt.Sprintf("already voted for %s", v.votedFor)
	case b.lastTerm < v.lastTerm:
		return fmt.Sprintf("log behind: term %d < %d", b.lastTerm, v.lastTerm)
	case b.lastTerm == v.lastTerm && b.lastIndex < v.lastIndex:
		return fmt.Sprintf("log behind: %d < %d", b.lastIndex, v.lastIndex)
	}
	return "refused"
}

// recentVotes remembers this process's recent votes, for itself too. Explanations use it, and pre-votes for a term
// whose vote is already given. Safe for concurrent use.
type recentVotes struct {
	mu    sync.Mutex
	votes [8]grantedVote
}

type grantedVote struct {
	term uint64
	to   cluster.NodeID
	at   time.Time
}

func (b *recentVotes) cast(term uint64, candidate cluster.NodeID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.votes[term%uint64(len(b.votes))] = grantedVote{term, candidate, now}
}

// voteIn returns the candidate that got this process's vote of a term, "" if unknown.
func (b *recentVotes) voteIn(term uint64) cluster.NodeID { return b.votedSince(term, time.Time{}) }

// votedSince returns the candidate that got the vote of term, if it was given at or after since. A pre-vote for that
// term would promise a vote that cannot be given, and so lead to split votes. The refusal must end: if the term has no
// winner, the candidate must get on to the next term.
func (b *recentVotes) votedSince(term uint64, since time.Time) cluster.NodeID {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v := b.votes[term%uint64(len(b.votes))]; v.term == term && !v.at.Before(since) {
		return v.to
	}
	return ""
}

// maxReason is the longest reason in characters. A voter's reason is in the header of its response, behind the
// address, which no node reads there.
const maxReason = 200

func setReason(h *raft.RPCHeader, why string) {
	if why != "" {
		h.Addr = append(append(bytes.Clone(h.Addr), 0), cutReason(why)...)
	}
}

// popReason removes and returns the reason in a response's header; "" if there is none.
func popReason(h *raft.RPCHeader) string {
	addr, why, found := bytes.Cut(h.Addr, []byte{0})
	if !found {
		return ""
	}
	h.Addr = addr
	return cutReason(string(why))
}

// cutReason makes a text of another node fit for a log: short, and on one line.
func cutReason(s string) string {
	clean := []rune{}
	for _, c := range s {
		if len(clean) == maxReason {
			break
		}
		if c < ' ' || c == 0x7f {
			c = ' '
		}
		clean = append(clean, c)
	}
	return string(clean)
}
