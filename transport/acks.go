package transport

import (
	"slices"
	"sync"
	"time"

	"northstar/cluster"
)

// Acks records which of this node's AppendEntries the other nodes have acknowledged, by send time. It is the evidence
// that this node led at that time. The library's own VerifyLeader and lastContact count non-voters, and answers to
// messages sent before the question.
//
// An acknowledgement is a successful response in the message's own term. Safe for concurrent use.
type Acks struct {
	mu      sync.Mutex
	peers   map[cluster.NodeID]cluster.PeerAck
	changed chan struct{} // nil while there is no waiter
}

func newAcks() *Acks { return &Acks{peers: make(map[cluster.NodeID]cluster.PeerAck)} }

// Peer returns what a peer has acknowledged, the zero value if nothing.
func (a *Acks) Peer(id cluster.NodeID) cluster.PeerAck {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peers[id]
}

// Changed returns a channel that is closed at the next acknowledgement. Take it before reading.
func (a *Acks) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changed == nil {
		a.changed = make(chan struct{})
	}
	return a.changed
}

// QuorumSince reports whether a majority of voters has acknowledged, in term, an AppendEntries sent after start; one
// sent at the same clock reading may have been sent before. Self counts as one if it is a voter.
func (a *Acks) QuorumSince(term uint64, self cluster.NodeID, voters []cluster.NodeID, start time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, v := range voters {
		if v == self {
			n++
			continue
		}
		if p := a.peers[v]; p.Term == term && p.LastSendAcked.After(start) {
			n++
		}
	}
	return n >= cluster.Quorum(len(voters))
}

// LeaseTime returns the newest time at which a majority of voters followed this node in term: the majority-th newest
// send time of their acknowledgements, with now for self. Only voters count that promised to vote for no other node for
// lease at least. It is zero if there is no majority.
func (a *Acks) LeaseTime(term uint64, self cluster.NodeID, voters []cluster.NodeID, lease time.Duration) time.Time {
	return a.leaseTime(term, self, voters, lease, time.Now())
}

func (a *Acks) leaseTime(term uint64, self cluster.NodeID, voters []cluster.NodeID, lease time.Duration,
	now time.Time,
) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return LeaseTime(a.peers, term, self, voters, lease, now)
}

// LeaseTime is Acks.LeaseTime at now with these acknowledgements.
func LeaseTime(acks map[cluster.NodeID]cluster.PeerAck, term uint64, self cluster.NodeID, voters []cluster.NodeID,
	lease time.Duration, now time.Time,
) time.Time {
	var times []time.Time
	for _, v := range voters {
		if v == self {
			times = append(times, now)
		} else if p := acks[v]; p.Term == term && !p.LastSendAcked.IsZero() && p.LeasePromise >= lease {
			times = append(times, p.LastSendAcked)
		}
	}
	need := cluster.Quorum(len(voters))
	if len(voters) == 0 || len(times) < need {
		return time.Time{}
	}
	slices.SortFunc(times, func(x, y time.Time) int { return y.Compare(x) })
	return times[need-1]
}

// ack records a successful response. It shows that the peer holds the log up to s.match (0: unknown) in the data
// directory of s.incarnation, and no longer what it held in another one.
func (a *Acks) ack(s sentAppend, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[s.to]
	p.LastContact = now
	if s.term > p.Term || s.incarnation != p.Incarnation {
		p = cluster.PeerAck{Incarnation: s.incarnation, Term: max(s.term, p.Term), LastContact: now}
	}
	if s.term == p.Term {
		if s.at.After(p.LastSendAcked) {
			p.LastSendAcked, p.LeasePromise = s.at, s.leasePromise
		}
		p.MatchIndex = max(p.MatchIndex, s.match)
	}
	a.peers[s.to] = p
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// contact records any other response.
func (a *Acks) contact(id cluster.NodeID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	p.LastContact = now
	a.peers[id] = p
}

// sentAppend is an append or a snapshot that was sent to a peer.
type sentAppend struct {
	to          cluster.NodeID
	incarnation string // of the peer's newest admitted hello when it was sent; "" if none
	term, match uint64 // match: the last index that the peer holds when it succeeds
	at          time.Time

	leasePromise time.Duration // of the peer's newest admitted hello when it was answered
}

// sending describes a message about to be sent. It copies what it keeps, because the library reuses its arguments.
func (r *Raft) sending(to cluster.NodeID, term, match uint64, at time.Time) sentAppend {
	s := sentAppend{to: to, term: term, match: match, at: at}
	if p, err := r.peer(to); err == nil {
		hello, _ := p.known()
		s.incarnation = hello.Incarnation
	}
	return s
}

func (r *Raft) record(s sentAppend, respTerm uint64, success bool) {
	r.t.cfg.Claims.OnHeard(s.to, nil)
	if success && respTerm == s.term {
		// If that hello is of a later process than the answer, it counts no less: that process grants no votes for
		// twice as long after its start.
		if p, err := r.peer(s.to); err == nil {
			hello, _ := p.known()
			s.leasePromise = hello.LeasePromise
		}
		r.t.acks.ack(s, time.Now())
	} else {
		r.t.acks.contact(s.to, time.Now())
	}
}
