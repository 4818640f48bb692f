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

// QuorumTime returns the newest time at which a majority of voters followed this node in term: the majority-th newest
// send time of their acknowledgements, with now for self. It is zero if there is none.
func (a *Acks) QuorumTime(term uint64, self cluster.NodeID, voters []cluster.NodeID) time.Time {
	return a.quorumTime(term, self, voters, time.Now())
}

func (a *Acks) quorumTime(term uint64, self cluster.NodeID, voters []cluster.NodeID, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return QuorumTime(a.peers, term, self, voters, now)
}

// QuorumTime is Acks.QuorumTime at now with these acknowledgements.
func QuorumTime(acks map[cluster.NodeID]cluster.PeerAck, term uint64, self cluster.NodeID, voters []cluster.NodeID,
	now time.Time,
) time.Time {
	var times []time.Time
	for _, v := range voters {
		if v == self {
			times = append(times, now)
		} else if p := acks[v]; p.Term == term && !p.LastSendAcked.IsZero() {
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

// ack records a successful response to a message of term, sent at sent. It shows that the peer holds the log up to
// match (0: unknown) in the data directory of that incarnation, and no longer what it held in another one.
func (a *Acks) ack(id cluster.NodeID, of string, term, match uint64, sent, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.peers[id]
	p.LastContact = now
	if term > p.Term || of != p.Incarnation {
		p = cluster.PeerAck{Incarnation: of, Term: max(term, p.Term), LastContact: now}
	}
	if term == p.Term {
		if sent.After(p.LastSendAcked) {
			p.LastSendAcked = sent
		}
		p.MatchIndex = max(p.MatchIndex, match)
	}
	a.peers[id] = p
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
