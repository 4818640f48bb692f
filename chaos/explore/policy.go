package explore

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/raftnode"
	"northstar/election"
	"northstar/transport"
)

// The timeouts of the explored cluster. Only their proportions count.
const (
	timeoutMin = 150 * time.Millisecond
	timeoutMax = 2 * timeoutMin
	drift      = 0.05
)

// now is the time of every decision: ages are relative to it.
var now = time.Unix(1_000_000, 0)

var ids = [nodes + 1]cluster.NodeID{"", "n1", "n2", "n3"}

// view is what one node knows. It calls the product's functions with it.
type view struct {
	m *Model
	s *state
	n id
}

func (v view) node() *node { return v.s.node(v.n) }

// timed reports whether time is part of the model. Otherwise everything may be long ago.
func (m *Model) timed() bool { return m.TicksPerTimeout > 0 }

// ago returns the duration of ticks.
func (m *Model) ago(ticks uint8) time.Duration {
	if !m.timed() {
		return timeoutMax
	}
	return time.Duration(ticks) * timeoutMin / time.Duration(m.TicksPerTimeout)
}

func (m *Model) at(age uint8) time.Time { return now.Add(-m.ago(age)) }

func (m *Model) params() election.Params {
	return election.Params{TimeoutMin: timeoutMin, Lease: m.Lease}
}

var roles = [...]cluster.Role{
	follower: cluster.Follower, preCandidate: cluster.Candidate, candidate: cluster.Candidate, leader: cluster.Leader,
}

func lifeOf(gone bool) string {
	if gone {
		return "process 1"
	}
	return "process 2"
}

// claim returns the node's claim.
func (v view) claim() cluster.Claim {
	n := v.node()
	c := cluster.Claim{
		NodeID: ids[v.n], ClusterID: "c", Term: uint64(n.term), Role: roles[n.role], LeaderID: ids[n.leader],
		LeaderSilence: -1, LeaderContactAge: -1, LastLogIndex: uint64(n.last), LastLogTerm: uint64(n.lastTerm()),
		AppliedIndex: uint64(n.commit), Priority: v.m.Priorities[v.n-1], Eligible: true,
		IsVoter: v.s.isVoter(v.n, v.n), Lifecycle: cluster.Active,
		SilenceLimit: election.MinSilence, // any step of time may be longer than what a node has measured
	}
	if n.heardFrom != 0 {
		c.LeaderSilence, c.LeaderContactAge = v.m.ago(n.heard), v.m.ago(n.heard)
	}
	if n.role != leader && n.heardFrom != 0 && (n.leader == 0 || n.leader == n.heardFrom) {
		c.LeaderBootID, c.LeaderProcessDead = lifeOf(n.heardGone), n.heardDead
	}
	return c
}

// received returns another node's claim as this one has received it just now.
func (v view) received(from id) cluster.ReceivedClaim {
	return cluster.ReceivedClaim{Claim: view{v.m, v.s, from}.claim(), At: now, Connected: true}
}

// servers returns the node's configuration.
func (v view) servers() (all []cluster.Server) {
	if v.node().last == 0 {
		return nil
	}
	for i := id(1); i <= nodes; i++ {
		sv := cluster.Server{ID: ids[i], Suffrage: cluster.NonVoter}
		if v.s.isVoter(v.n, i) {
			sv.Suffrage = cluster.Voter
		}
		all = append(all, sv)
	}
	return all
}

// MayIgnoreLeader is failover's answer to the transport.
func (v view) MayIgnoreLeader(cluster.NodeID, uint64, time.Time) bool {
	return election.MayIgnoreLeader(v.claim(), v.m.params())
}

// VetoPreVote is failover's answer to the transport.
func (v view) VetoPreVote(from cluster.NodeID, now time.Time) string {
	in := election.PreVoteInput{
		Now: now, Candidate: from, Servers: v.servers(), Mine: v.claim(), Params: v.m.params(),
		Claims: map[cluster.NodeID]cluster.ReceivedClaim{},
	}
	if n := v.node(); n.heardFrom != 0 {
		in.LastContact = v.m.at(n.heard)
	}
	for i := id(1); i <= nodes; i++ {
		if i != v.n && v.s.node(i).up && v.s.connected(v.n, i) {
			in.Claims[ids[i]] = v.received(i)
		}
	}
	_, why := election.MayPreVote(in)
	return why
}

// VoteObstacle is the answer of consensus to the transport.
func (v view) VoteObstacle() (kind, why string) {
	if v.m.Lease && !consensus.MayVoteAfter(v.m.ago(v.node().running), timeoutMin) {
		return "lease", "it has just started"
	}
	return "", ""
}

var _ transport.VoterPolicy = view{}

// guard returns what the guards in front of Raft know about a request.
func (v view) guard(b transport.VoteRequest, from id) transport.VoteGuard {
	n := v.node()
	g := transport.VoteGuard{
		Admission: v.admit(from), Policy: v, LastLeader: v.lastLeader(), Lease: v.m.Lease,
		TimeoutMin: timeoutMin, TimeoutMax: timeoutMax,
		CommittedIndex: uint64(n.rosterIndex), CommittedTerm: uint64(n.rosterTerm),
	}
	if uint64(n.voteTerm) == b.Term && v.m.ago(n.votedAgo) < timeoutMin {
		g.VotedFor = ids[n.voteFor]
	}
	return g
}

// lastLeader returns the last message of a leader to this process.
func (v view) lastLeader() transport.LeaderContact {
	n := v.node()
	if n.heardFrom == 0 {
		return transport.LeaderContact{}
	}
	return transport.LeaderContact{Leader: ids[n.heardFrom], At: v.m.at(n.heard)}
}

// peer returns what the node's hellos say.
func (v view) peer() cluster.Peer {
	n := v.node()
	p := cluster.Peer{Identity: cluster.Identity{
		NodeID: ids[v.n], Generation: cluster.Generation{Number: 1}, Incarnation: incarnation(v.n, n.wiped),
	}, BootID: string(ids[v.n])}
	if n.joined {
		p.ClusterID = "c"
	}
	p.Start = cluster.StartBootstrapped
	if n.wiped {
		p.Start = cluster.StartJoinOnly
	}
	if !n.wiped || recordsWiped(n.log[:n.commit]) {
		p.RecordedIndex = uint64(n.commit)
	}
	return p
}

func incarnation(n id, wiped bool) string {
	if wiped {
		return string(ids[n]) + " wiped"
	}
	return string(ids[n])
}

// record returns what the node's state says of another one, or its roster until the state has caught up.
func (v view) record(of id) cluster.Record {
	n := v.node()
	if !n.joined {
		return cluster.Record{}
	}
	known := n.rosterIndex > 1
	if n.commit >= n.rosterIndex {
		known = recordsWiped(n.log[:n.commit])
	}
	return cluster.Record{
		Incarnation: incarnation(of, v.s.node(of).wiped && known), AsOfIndex: uint64(max(n.commit, n.rosterIndex)),
	}
}

// recordsWiped reports whether the log has the record of the wiped node's second data directory.
func recordsWiped(log []entry) bool {
	return slices.ContainsFunc(log, func(e entry) bool { return e&^termBits == admits })
}

// admit returns the node's decision about another one.
func (v view) admit(from id) cluster.Admission {
	return cluster.Admit(v.peer(), view{v.m, v.s, from}.peer(), v.record(from))
}

// unwritten returns what of the node is not on its disk.
func (n *node) unwritten() raftnode.Unwritten {
	u := raftnode.Unwritten{SelfVote: n.voteTerm != n.diskVoteTerm}
	u.Term = n.term != n.diskTerm && !u.SelfVote
	if n.diskLast < n.last {
		u.FirstEntry = uint64(n.diskLast) + 1
	}
	return u
}

// mayReply reports whether a response may leave the node, and another voter's vote count on it.
func (n *node) mayReply() bool { return n.unwritten().BeforeReply() == raftnode.Unwritten{} }

// mayCount reports whether an acknowledgement of the entries up to index counts on the node.
func (n *node) mayCount(index uint8) bool {
	return n.unwritten().BeforeAck(uint64(index)) == raftnode.Unwritten{}
}

var raftStates = [...]raft.RaftState{
	follower: raft.Follower, preCandidate: raft.Candidate, candidate: raft.Candidate, leader: raft.Leader,
}

// lease returns how long the node's lease lasts from now on.
func (v view) lease() time.Duration {
	n := v.node()
	if !v.m.Lease || !n.up || n.role != leader || !n.serves() {
		return 0
	}
	acks, all := map[cluster.NodeID]cluster.PeerAck{}, []cluster.NodeID{}
	for i := id(1); i <= nodes; i++ {
		if v.s.isVoter(v.n, i) {
			all = append(all, ids[i])
		}
		if n.acked[i-1] != notAcked {
			acks[ids[i]] = cluster.PeerAck{
				Term: uint64(n.term), LastSendAcked: v.m.at(n.acked[i-1]), LeasePromise: timeoutMin,
			}
		}
	}
	limits := consensus.LeaseLimits{Length: consensus.LeaseLength(timeoutMin, drift)}
	if n.leaseOff {
		limits.OffTerm = uint64(n.term)
	}
	return limits.Left(now, uint64(n.term), transport.LeaseTime(acks, uint64(n.term), ids[v.n], all, timeoutMin, now))
}

// serves reports whether a leader has committed an entry of its own term, and has waited for leases of another one.
func (n *node) serves() bool {
	return n.commit > 0 && n.log[n.commit-1]&termBits == n.term && n.servesIn == 0
}
