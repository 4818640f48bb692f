package transport

import (
	"bytes"
	"fmt"
	"slices"
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

// voteRequest decodes the message; false if it is not a vote or pre-vote request.
func (m incoming) voteRequest() (VoteRequest, bool) {
	switch c := m.rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		return VoteRequest{
			Candidate: m.p.id, Transfer: c.LeadershipTransfer, OverLiveLeader: c.LeadershipTransfer, Term: c.Term,
			LastIndex: c.LastLogIndex, LastTerm: c.LastLogTerm,
		}, true
	case *raft.RequestPreVoteRequest:
		return VoteRequest{
			Candidate: m.p.id, Pre: true, Term: c.Term, LastIndex: c.LastLogIndex,
			LastTerm: c.LastLogTerm,
		}, true
	}
	return VoteRequest{}, false
}

// vote handles a vote or pre-vote request. It rejects requests that must not reach raft, because they could raise its
// term, and delivers the others. A rejection is always a response: the library counts some errors as a grant.
func (m incoming) vote(b VoteRequest, a cluster.Admission) {
	m.r.t.monitors.FastPoll()
	if kind, why := m.refuseVote(b, a, time.Now()); why != "" {
		m.rejectVote(b, kind, why)
		return
	}
	if !b.Pre && !b.Transfer && m.ignoresLeader(b) {
		c := *m.rpc.Command.(*raft.RequestVoteRequest)
		c.LeadershipTransfer, b.Transfer = true, true
		m.rpc.Command = &c
	}
	if why := m.boundByLease(b, a); why != "" {
		m.rejectVote(b, "lease", why)
		return
	}
	if !b.Transfer && m.r.boundByProxyAck(time.Now(), m.p.id, b.Term) {
		m.rejectVote(b, "busy", "has acknowledged its leader recently")
		return
	}
	m.deliverVote(b, a)
}

// rejectVote rejects a vote request before raft. The answer shows the current term, which may not be durable yet.
func (m incoming) rejectVote(b VoteRequest, kind, why string) {
	m.r.t.reject(m.kind, kind)
	m.count(b, false, kind, why)
	term := m.local.CurrentTerm()
	if err := m.local.FlushBeforeReply(); err != nil {
		m.rpc.Respond(nil, err)
		return
	}
	m.answerVote(b, false, term, why)
}

// count counts this node's response to a candidate. why is human-readable, "" if it is granted.
func (m incoming) count(b VoteRequest, granted bool, kind, why string) {
	if b.Pre {
		return
	}
	cfg := m.r.t.cfg
	cfg.Elections.VoteAnswered(cluster.VoteGiven{
		Term: b.Term, Candidate: b.Candidate,
		Vote: cluster.Vote{Voter: cfg.Membership.LocalPeer().NodeID, Granted: granted, Reason: why},
	}, kind)
}

// guard returns what the guards know about a request.
func (m incoming) guard(b VoteRequest, a cluster.Admission, now time.Time) VoteGuard {
	cfg := m.r.t.cfg
	g := VoteGuard{
		Admission: a, LastLeader: m.r.t.lastLeaderContact(), Policy: cfg.Elections, Lease: cfg.Lease,
		TimeoutMin: cfg.TimeoutMin, TimeoutMax: cfg.TimeoutMax,
		VotedFor: m.r.ballots.votedSince(b.Term, now.Add(-cfg.TimeoutMin)),
	}
	g.CommittedIndex, g.CommittedTerm = m.committed()
	return g
}

// refuseVote returns why a vote is refused, for the metric and as text; "" if it is not.
func (m incoming) refuseVote(b VoteRequest, a cluster.Admission, now time.Time) (kind, why string) {
	if !m.p.votes.AllowN(now, 1) {
		return "rate", "sends requests too often"
	}
	return m.guard(b, a, now).Refuse(b, now)
}

// boundByLease returns why the vote may contradict a lease now, "" if it does not.
func (m incoming) boundByLease(b VoteRequest, a cluster.Admission) string {
	now := time.Now()
	return m.guard(b, a, now).BoundByLease(b, now)
}

// committed returns an entry that this node knows to be committed without its log: the one of its roster. Term 0 if
// unknown.
func (m incoming) committed() (index, term uint64) {
	if self := m.r.t.cfg.Membership.LocalPeer(); self.Roster != nil {
		return self.Roster.Index, self.Roster.Term
	}
	return 0, 0
}

// ignoresLeader reports whether this voter has evidence of its own that the leader it knows has failed. It waits up to
// evidenceWait for it: the candidate may have found out first.
func (m incoming) ignoresLeader(b VoteRequest) bool {
	stuck := func() bool {
		return b.HeldByLeader(m.local.Leader(), m.r.t.cfg.Membership.LocalPeer().NodeID, m.local.CurrentTerm())
	}
	if !stuck() {
		return false // raft does not refuse the vote because of its leader
	}
	if m.r.t.cfg.Elections.MayIgnoreLeader(m.p.id, b.Term, time.Now()) {
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
		if m.r.t.cfg.Elections.MayIgnoreLeader(m.p.id, b.Term, time.Now()) {
			return stuck()
		}
	}
	return false
}

// deliverVote passes a vote request to raft, and responds with raft's answer and its reason.
func (m incoming) deliverVote(b VoteRequest, a cluster.Admission) {
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
	if granted && !b.Pre {
		m.r.ballots.cast(b.Term, b.Candidate, time.Now())
	}
	kind, why := "granted", ""
	lease := m.boundByLease(b, a)
	switch {
	case !granted:
		kind, why = "raft", explain(b, before)
	case lease != "":
		granted, kind, why = false, "lease", lease // as below
	case !b.Pre && !b.Transfer && m.r.boundByProxyAck(time.Now(), m.p.id, b.Term):
		// The request waited while raft was busy, and was delivered before the proxied acknowledgement. To the
		// candidate the vote is lost.
		granted, kind, why = false, "busy", "has acknowledged its leader since"
	}
	m.count(b, granted, kind, why)
	m.answerVote(b, granted, term, why)
}

// requestVote passes a vote request to raft, and waits for the answer.
func (m incoming) requestVote(b VoteRequest) (answer raft.RPCResponse, err error) {
	if !b.Pre {
		m.local.TrackVote(true)
		defer m.local.TrackVote(false)
	}
	reply := make(chan raft.RPCResponse, 1)
	command := fromAVoter(m.rpc.Command, m.r.t.cfg.Membership.Servers(), b.Candidate)
	select {
	case m.r.consumer <- raft.RPC{Command: command, RespChan: reply}:
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

// fromAVoter returns a vote or pre-vote request in the name of a voter of this node's configuration. raft.Raft refuses
// others. But a node that was away may have to vote for one that is a voter in a later configuration only, and has the
// log (Raft thesis, 4.1: servers process requests of servers that their latest configuration lacks). raft.Raft uses the
// ID for nothing else: the vote is for the address. Whether the candidate is a member at all is decided before.
func fromAVoter(command any, servers []cluster.Server, candidate cluster.NodeID) any {
	if s, _ := cluster.FindServer(servers, candidate); s.Suffrage == cluster.Voter {
		return command
	}
	i := slices.IndexFunc(servers, func(s cluster.Server) bool { return s.Suffrage == cluster.Voter })
	if i < 0 {
		return command
	}
	switch c := command.(type) {
	case *raft.RequestVoteRequest:
		named := *c
		named.ID = []byte(servers[i].ID)
		return &named
	case *raft.RequestPreVoteRequest:
		named := *c
		named.ID = []byte(servers[i].ID)
		return &named
	}
	return command
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
func (m incoming) answerVote(b VoteRequest, granted bool, term uint64, why string) {
	header := m.r.header()
	setReason(&header, why)
	if b.Pre {
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
}

func (m incoming) voterState(b VoteRequest) voterState {
	v := voterState{term: m.local.CurrentTerm(), leader: m.local.Leader(), votedFor: m.r.ballots.voteIn(b.Term)}
	v.lastIndex, v.lastTerm = m.local.LastEntry()
	return v
}

// explain returns why raft refused a vote request, in the order of raft's checks.
func explain(b VoteRequest, v voterState) string {
	switch {
	case v.leader != "" && v.leader != b.Candidate && !b.Transfer:
		return fmt.Sprintf("knows leader %s", v.leader)
	case b.Term < v.term:
		return fmt.Sprintf("old term: %d < %d", b.Term, v.term)
	case !b.Pre && v.votedFor != "" && v.votedFor != b.Candidate:
		return fmt.Sprintf("already voted for %s", v.votedFor)
	case b.LastTerm < v.lastTerm:
		return fmt.Sprintf("log behind: term %d < %d", b.LastTerm, v.lastTerm)
	case b.LastTerm == v.lastTerm && b.LastIndex < v.lastIndex:
		return fmt.Sprintf("log behind: %d < %d", b.LastIndex, v.lastIndex)
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
