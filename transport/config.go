package transport

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/transport/monitor"
)

// Config is what a Transport needs; a field may be nil only where its comment says so. Its functions and interfaces are
// called concurrently. They must not block, unless their comment says so.
type Config struct {
	// Listener accepts the connections of peers. Run closes it.
	Listener net.Listener
	// CrashSocketPort is the port of this process's crash socket; 0 if it has none.
	CrashSocketPort int
	// Dial opens a connection to a peer. It must resolve host names each time.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Advertise is the address that other nodes dial: Raft's LocalAddr.
	Advertise   string
	Membership  Membership
	Elections   Elections
	Replication Replication
	// Claims are those of this node and its peers. OnHeard is also called for each Raft message of a peer, with a nil
	// claim.
	Claims monitor.Claims
	// Handler answers other members. Nil rejects their calls and relayed messages.
	Handler Handler
	Events  Events
	// TLS authenticates both sides of every connection. Nil: plain TCP.
	TLS *TLS
	// ClusterName is the cluster's name in node certificates.
	ClusterName string
	// Lease: leaders may have leases.
	Lease bool
	// TimeoutMin and TimeoutMax are the election timeouts.
	TimeoutMin, TimeoutMax time.Duration
	// Faults injects faults in chaos tests; nil in production.
	Faults Faults
	Logger hclog.Logger
}

// Membership is what this node knows of itself and the members. It decides about hellos and each Raft message.
type Membership interface {
	// LocalPeer returns this node as its hellos describe it.
	LocalPeer() cluster.Peer
	// Record returns what is known of a member, for admission.
	Record(cluster.NodeID) cluster.Record
	// RecordIncarnation durably records the incarnation of a peer, so that Record returns it from then on. It is
	// called for each hello, before the hello is evaluated, and may block for a disk write.
	RecordIncarnation(cluster.Peer) error
	// Adopt durably adopts the cluster ID, generation and roster of from. An error means that they were not adopted.
	// It is called only while this node has no cluster ID: before the first message of a leader that has one reaches
	// Raft, or when a peer's hello reply allows it (MayAdoptClusterID). It may be called twice, and may block for a
	// disk write.
	Adopt(from cluster.Peer) error
	// OnHello is called at each completed hello, in both directions, with this node's decision about the peer.
	OnHello(cluster.Peer, cluster.Admission)
	// OnAdmitted is called when a peer's hello has admitted this node.
	OnAdmitted(by cluster.NodeID)
	// OnRefused is called when a peer's hello has refused this node, or when a peer that this node has dialled uses
	// another protocol version.
	OnRefused(by cluster.NodeID, r cluster.Refusal, reason string)
	// Servers returns Raft's latest configuration, whose members get a monitor connection. It is called often.
	Servers() []cluster.Server
}

// Elections decides about votes and elections in addition to Raft, and is notified of votes.
type Elections interface {
	// VetoPreVote returns why a candidate gets no pre-vote, "" if Raft decides. A veto must end after a bounded time.
	VetoPreVote(candidate cluster.NodeID, now time.Time) (reason string)
	// MayIgnoreLeader reports whether this voter has evidence of its own that its leader is dead or silent, so that it
	// may vote although it knows a leader. It returns false while a lease may be running.
	MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool
	// ApproveTimeoutNow returns why this node rejects a TimeoutNow of the leader of term, "" if it starts the
	// election. It may block until ctx ends.
	ApproveTimeoutNow(ctx context.Context, by cluster.NodeID, term uint64) (reason string)
	// MayStartElection reports whether this node may start an election for a cause. CauseLeaderFailed stands for all
	// that it starts by itself: if it may not, its own pre-votes fail.
	MayStartElection(by cluster.ElectionCause) bool
	// VoteObstacle returns why this node grants no votes and pre-votes at all, for the metric and as text; "" if it
	// does. One is that a lease from before a restart may be running, which must end after a bounded time.
	VoteObstacle() (kind, why string)
	// VoteReceived is called with each other voter's response to this node's candidacies.
	VoteReceived(cluster.VoteResponse)
	// TermRaised is called when Raft has gone to term from the one before without an election, to end a candidacy. The
	// election that was about to be that of term is that of the next one.
	TermRaised(term uint64)
	// VoteAnswered is called with each of this node's responses to vote requests, without pre-votes. kind is "granted",
	// "raft" (log less up-to-date, or vote already given), or that of a guard.
	VoteAnswered(v cluster.VoteGiven, kind string)
}

// Replication decides whether this node replicates at present. Both methods are called for each message.
type Replication interface {
	// ReadOnly reports whether appends with entries, and snapshots, are rejected because disk space is short.
	// Heartbeats pass.
	ReadOnly() bool
	// ReplicationPaused reports whether this node's own appends and snapshots fail, so that the followers elect
	// another leader.
	ReplicationPaused() bool
}

// Handler handles messages of other members. Both methods may block until ctx ends.
type Handler interface {
	// Relayed handles a message that another member sent with Relay; that member receives the text of an error.
	Relayed(ctx context.Context, from cluster.NodeID, message []byte) error
	// Called handles a request that another member sent with Call, and returns the response.
	Called(ctx context.Context, from cluster.NodeID, request []byte) []byte
}

// Events is notified of what an operator may want to know.
type Events interface {
	// Rejected counts rejected connections and messages (rpc_rejected_total). Both strings are from small fixed sets.
	Rejected(kind, reason string)
	// InstallRepeated is called before this node, as leader, sends a snapshot again that the peer has already installed
	// so many times.
	InstallRepeated(peer cluster.NodeID, index uint64, times int)
}

// RaftLog is the log of a RaftNode.
type RaftLog interface {
	// LastEntry returns the position of the last entry, in log or snapshot.
	LastEntry() (index, term uint64)
	// EndsSnapshot reports whether this node's newest snapshot ends with the entry.
	EndsSnapshot(index, term uint64) bool
	// CheckEntry returns why an entry of the log of a leader conflicts with what this node has applied. leader is that
	// leader's term, no earlier than the current one. It may block for a disk write then.
	CheckEntry(leader, index, term uint64) error
	// CheckSnapshot returns why Raft must not install a snapshot now that ends at (index, term), and that is not older
	// than what this node has applied. leader is the current term. It may read the disk.
	CheckSnapshot(leader, index, term uint64) error
	// CommitMessage returns an append without entries that brings a follower the commit index of the leader of term,
	// which is this node. It may read the disk.
	CommitMessage(term uint64) (*raft.AppendEntriesRequest, error)
}

// RaftState is a RaftNode's part in elections.
type RaftState interface {
	CurrentTerm() uint64
	// Leader returns the leader that Raft knows, "" if none.
	Leader() cluster.NodeID
	// Candidate reports whether Raft is a candidate.
	Candidate() bool
	// ElectionBlocked reports whether this node must not start an election, not even at an operator's request.
	ElectionBlocked() bool
}

// RaftProgress is what a RaftNode does with the messages that it has got.
type RaftProgress interface {
	// Progress returns the last applied index, and a number that grows while a snapshot is restored, as its bytes do.
	Progress() (applied, restored uint64)
	// Restoring returns the size of the snapshot with which Raft's main loop, as leader, replaces the state; 0: none.
	Restoring() int64
	// TrackVote is called when a vote request enters and leaves Raft: the store may delay a term until the vote then.
	TrackVote(inside bool)
	// FlushBeforeReply makes delayed writes durable. Responses of Raft leave only when it has succeeded. It may block.
	FlushBeforeReply() error
	// LeaderCommit is called with the commit index of each append of the current term's leader, before Raft gets it.
	// last is the index of the append's last entry, or of the entry before it, if that is of the same term; else 0.
	// The leader has sent the append after sentAfter; zero: unknown.
	LeaderCommit(index, last uint64, sentAfter time.Time)
}

// RaftNode is the raft.Raft that uses the transport, as the guards see it. Its methods are called concurrently. They
// must not block, unless their comment says so. Large because the guards need all three parts of one Raft.
type RaftNode interface {
	RaftLog
	RaftState
	RaftProgress
}

// Message describes an outgoing Raft message to the fault hook.
type Message struct {
	From, To cluster.NodeID
	Kind     string // append, heartbeat, vote, prevote, snapshot, timeout_now, or probe with the claim's term
	Term     uint64
	Size     int // bytes of the entries, or of the snapshot
}

// Fault is what goes wrong with one message.
type Fault struct {
	Drop      bool          // the message is lost, and its sender times out
	Delay     time.Duration // before the message is sent
	DropReply bool          // the message arrives, its response is lost
	Twice     bool          // the message arrives twice; not for a snapshot
	// Late delays the response; nil means no delay. gone is closed when the sender no longer waits. A monitor frame
	// has no response, and arrives once.
	Late func(gone <-chan struct{})
	// Answered, if not nil, is called when the peer's Raft has answered, before the delay. A refusal with an error, and
	// what the peer says to a monitor frame, are no answers.
	Answered func()
}

// Faults decides about faults of outgoing messages. It is called once per message, concurrently.
type Faults interface {
	Outgoing(Message) Fault
}

// ClaimFaults is an optional extension of Faults that changes this node's claims.
type ClaimFaults interface {
	Claim(to cluster.NodeID, c cluster.Claim) cluster.Claim
}

func (f Fault) lost() bool { return f.Drop || f.DropReply }

// fault returns the fault of a message, after its delay.
func (r *Raft) fault(m Message) Fault {
	if r.t.cfg.Faults == nil {
		return Fault{}
	}
	f := r.t.cfg.Faults.Outgoing(m)
	if f.Delay > 0 {
		sleep(f.Delay, r.closed)
	}
	return f
}

// entryBytes returns the approximate size of entries on the wire.
func entryBytes(entries []*raft.Log) int {
	n := 0
	for _, e := range entries {
		n += len(e.Data) + len(e.Extensions) + 96
	}
	return n
}
