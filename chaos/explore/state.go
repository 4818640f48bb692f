package explore

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
)

const (
	nodes    = 3
	maxLog   = 8  // entries of a log
	maxBag   = 16 // messages on their way
	maxBatch = 3  // entries of an append
	maxTerm  = 7  // that the properties look at
)

// id is a node: 1 to nodes, 0 for none.
type id = uint8

// role is what a node does, as raft.Raft has it. A preCandidate has asked for pre-votes only.
type role uint8

const (
	follower role = iota
	preCandidate
	candidate
	leader
)

var roleNames = [...]string{"follower", "pre-candidate", "candidate", "leader"}

// entry is one entry of a log: its term, and its kind above that.
type entry = uint8

const (
	ordinary = entry(0)
	admits   = entry(1) << 6 // the record with which the wiped node may come back
	promotes = entry(2) << 6 // the configuration in which it votes again
	termBits = entry(1)<<6 - 1
)

// ages are counted in ticks, up to a limit from which on they make no difference.
type node struct {
	up      bool
	role    role
	forced  bool // the candidacy began with a TimeoutNow
	flagged bool // by the leader or an operator: its vote requests carry the LeadershipTransfer flag
	leader  id   // as raft.Raft knows it
	grants  uint8

	// As raft.Raft reads them; the disk may lag behind.
	term, voteTerm uint8
	voteFor        id
	log            [maxLog]entry
	last, commit   uint8

	diskTerm, diskVoteTerm uint8
	diskVoteFor            id
	diskLast               uint8

	running      uint8 // age of the process
	heard        uint8 // age of the last message of a leader
	heardFrom    id
	heardTerm    uint8
	heardGone    bool  // that process has ended
	heardDead    bool  // and this node has found that out
	votedAgo     uint8 // age of this process's newest vote
	candidacyAge uint8 // age of the candidacy

	// Of a leader.
	acked    [nodes]uint8 // age of the newest send that each has acknowledged; none: notAcked
	match    [nodes]uint8
	leaseOff bool  // a TimeoutNow was sent in this term
	servesIn uint8 // ticks until leases of a leader that the voters ignored have ended

	// Of the data directory, and the process on it.
	wiped                   bool  // this is the node's second one
	joined                  bool  // it has a cluster ID
	rosterIndex, rosterTerm uint8 // the last entry that its roster knows to be committed
}

const notAcked = 255

// kind is the kind of a message.
type kind uint8

const (
	voteRequest kind = iota + 1
	voteResponse
	appendRequest
	appendResponse
	timeoutNow
)

// message is one message that may be delivered now, later or never.
type message struct {
	kind     kind
	from, to id
	term     uint8
	ok       bool  // granted, success, or the LeadershipTransfer flag
	held     bool  // a response that waits for a write of its sender
	index    uint8 // last entry, previous entry, or acknowledged entry
	prevTerm uint8 // term of the last or previous entry, or of the request that this answers
	commit   uint8
	age      uint8 // since the append was sent
	gone     bool  // the process that sent this append has ended
	n        uint8
	entries  [maxBatch]entry
}

// budget is what may still go wrong.
type budget struct{ crashes, cuts, writes, requests, transfers, wipes uint8 }

// state is one state of the cluster. It is a plain value.
type state struct {
	nodes [nodes]node
	bag   [maxBag]message
	inBag uint8
	cut   uint8 // the node on neither side of the link that is cut; 0: no link is cut
	left  budget
	ghost ghost
}

// ghost is what only the properties need.
type ghost struct {
	votes     [nodes][maxTerm + 1]id // to whom each node's vote has gone, seen by others
	leaders   [maxTerm + 1]id
	committed [maxLog]entry // the longest log that was committed
	in        [maxLog]uint8 // the term in which each of them was
	length    uint8
	overfull  bool   // a message found no place: what follows is not explored
	broken    broken // the property that the last step broke
}

func (s *state) node(n id) *node { return &s.nodes[n-1] }

// send puts a message into the bag, unless the same one is there.
func (s *state) send(m message) {
	if slices.Contains(s.bag[:s.inBag], m) {
		return
	}
	if s.inBag == maxBag {
		s.ghost.overfull = true
		return
	}
	s.bag[s.inBag] = m
	s.inBag++
}

// remove takes the messages out of the bag for which f reports true.
func (s *state) remove(f func(*message) bool) {
	kept := uint8(0)
	for i := range s.inBag {
		if !f(&s.bag[i]) {
			s.bag[kept] = s.bag[i]
			kept++
		}
	}
	for i := kept; i < s.inBag; i++ {
		s.bag[i] = message{}
	}
	s.inBag = kept
}

// connected reports whether messages pass between two nodes.
func (s *state) connected(a, b id) bool { return s.cut == 0 || a == b || a == s.cut || b == s.cut }

// pack returns the message as one number, with renamed nodes.
func (m *message) pack(name *[nodes + 1]id) uint64 {
	v := uint64(m.kind)<<2 | uint64(name[m.from])
	for _, f := range [...]struct{ value, bits uint8 }{
		{name[m.to], 2},
		{m.term, 4},
		{bit(m.ok), 1},
		{bit(m.held), 1},
		{m.index, 4},
		{m.prevTerm, 4},
		{m.commit, 4},
		{m.age, 4},
		{bit(m.gone), 1},
		{m.n, 2},
		{m.entries[0], 8},
		{m.entries[1], 8},
		{m.entries[2], 8},
	} {
		v = v<<f.bits | uint64(f.value)
	}
	return v
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// permutations are all renamings of the nodes; the first one changes nothing.
var permutations = [...][nodes + 1]id{
	{0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}, {0, 3, 2, 1},
}

// encode appends the state to b with renamed nodes. Two states have equal encodings only if they are equal but for the
// names.
func (s *state) encode(b []byte, name *[nodes + 1]id) []byte {
	var order [nodes]*node
	var votes [nodes]*[maxTerm + 1]id
	var old [nodes]int
	for i := range s.nodes {
		at := name[i+1] - 1
		order[at], votes[at], old[at] = &s.nodes[i], &s.ghost.votes[i], i
	}
	for i, n := range order {
		grants := uint8(0)
		for j := range nodes {
			grants |= n.grants >> j & 1 << (name[j+1] - 1)
		}
		b = append(b, bit(n.up)|bit(n.forced)<<1|bit(n.flagged)<<2|bit(n.heardDead)<<3|bit(n.leaseOff)<<4|
			bit(n.joined)<<5|uint8(n.role)<<6, name[n.leader]|name[n.voteFor]<<2|name[n.diskVoteFor]<<4|
			name[n.heardFrom]<<6, grants|n.last<<4, n.term|n.voteTerm<<4, n.diskTerm|n.diskVoteTerm<<4,
			n.commit|n.diskLast<<4, n.heardTerm|n.running<<4, n.heard|n.votedAgo<<4,
			bit(n.heardGone)|bit(n.wiped)<<1|n.servesIn<<4, n.rosterIndex|n.rosterTerm<<4, n.candidacyAge)
		b = append(b, n.log[:n.last]...)
		for _, o := range old {
			b = append(b, n.acked[o], n.match[o])
		}
		b = encodeIDs(b, votes[i], name)
	}
	b = encodeIDs(b, &s.ghost.leaders, name)
	b = append(b, name[s.cut], s.left.crashes|s.left.cuts<<4, s.left.writes|s.left.requests<<4,
		s.left.transfers|s.left.wipes<<4, s.ghost.length)
	b = append(b, s.ghost.committed[:s.ghost.length]...)
	b = append(b, s.ghost.in[:s.ghost.length]...)
	var packed [maxBag]uint64
	for i := range s.inBag {
		packed[i] = s.bag[i].pack(name)
	}
	slices.Sort(packed[:s.inBag])
	for _, p := range packed[:s.inBag] {
		b = binary.LittleEndian.AppendUint64(b, p)
	}
	return b
}

// encodeIDs appends one node for each term.
func encodeIDs(b []byte, of *[maxTerm + 1]id, name *[nodes + 1]id) []byte {
	v := uint16(0)
	for _, n := range of {
		v = v<<2 | uint16(name[n])
	}
	return binary.LittleEndian.AppendUint16(b, v)
}

// key is the identity of a state, or of all states that are equal but for the names of nodes: 128 bits, so that two
// different ones do not meet.
type key struct{ a, b uint64 }

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// key returns the least key of the state under the renamings.
func (s *state) key(symmetric bool) (least key) {
	var buffer [512]byte
	names := permutations[:1]
	if symmetric {
		names = permutations[:]
	}
	for i := range names {
		b := s.encode(buffer[:0], &names[i])
		k := key{maphash.Bytes(seeds[0], b), maphash.Bytes(seeds[1], b)}
		if i == 0 || cmp.Or(cmp.Compare(k.a, least.a), cmp.Compare(k.b, least.b)) < 0 {
			least = k
		}
	}
	return least
}
