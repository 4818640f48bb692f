package transport

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// Config is what a Transport needs. Its functions and interfaces are called from
// many goroutines at once and must not block, unless their comment says so.
type Config struct {
	// Listener takes the connections of peers. Run closes it.
	Listener net.Listener
	// CrashSocketPort is that of this process's crash socket; 0: it has none.
	CrashSocketPort int
	// Dial opens a connection to a peer. It resolves host names each time. Nil
	// means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Advertise is the address that the other nodes dial: Raft's LocalAddr.
	Advertise  string
	Membership Membership
	// Elections is asked about votes and elections. Nil: RaftDecides.
	Elections Elections
	// Claim is what this node says to its peers of itself and of the leader, but for
	// what Transport.Claim fills in. Called often. Nil: nothing.
	Claim func() cluster.Claim
	// ConnectionLost is called when a peer's process has ended its monitor connection, or when
	// the kernel has done it for a process that died. Optional.
	ConnectionLost func(cluster.ConnectionLoss)
	// Relayed takes a message that another member has sent with Relay. It may block,
	// until ctx ends. That member receives an error's text. Nil: none is taken.
	Relayed func(ctx context.Context, from cluster.NodeID, message []byte) error
	// Rejected counts connections and messages that were turned away, for the metric
	// rpc_rejected_total. Both strings come from small fixed sets. Optional.
	Rejected func(kind, reason string)
	// ReadOnly reports whether appends with entries, and snapshots, are to be turned
	// away because disk space is short. Heartbeats pass. Called for each message. Nil:
	// never.
	ReadOnly func() bool
	// ReplicationPaused reports whether this node's own appends and snapshots are to
	// fail, so that the followers elect another leader. Called for each message. Nil:
	// never.
	ReplicationPaused func() bool
	// TLS authenticates both sides of every connection. Nil: plain TCP.
	TLS *TLS
	// ClusterName is the cluster's name in the certificates of nodes.
	ClusterName string
	// TimeoutMin and TimeoutMax are the election timeouts.
	TimeoutMin, TimeoutMax time.Duration
	// Faults is the hook of chaos tests; nil in production.
	Faults Faults
	Logger hclog.Logger
}

// Membership is what this node knows of itself and of the cluster's members. Hellos
// are judged by it, and each Raft message again.
type Membership interface {
	// LocalPeer returns this node as its hellos say it.
	LocalPeer() cluster.Peer
	// Record returns what is known of a member, for admission.
	Record(cluster.NodeID) cluster.Record
	// RecordIncarnation records the data directory of a peer durably, so that Record
	// has it from then on. It is called for each hello, before that is judged, and may
	// block for a disk write.
	RecordIncarnation(cluster.Peer) error
	// Adopt makes the cluster ID, generation and roster of from durable, as this node's
	// own. It is called only while this node has no cluster ID: before the first
	// message of a leader that has one reaches Raft, or when a peer vouches for this
	// node. It may be called twice, and may block for a disk write. An error means not
	// adopted.
	Adopt(from cluster.Peer) error
	// OnHello is called at each completed hello, in both directions, with this node's
	// judgement of the peer.
	OnHello(cluster.Peer, cluster.Admission)
	// OnAdmitted is called when a peer's hello has admitted this node.
	OnAdmitted(by cluster.NodeID)
	// OnRefused is called when a peer's hello has refused this node.
	OnRefused(by cluster.NodeID, r cluster.Refusal, reason string)
	// Servers returns Raft's latest configuration: the peers to keep a monitor
	// connection with. It is called often.
	Servers() []cluster.Server
}

// Elections decides about votes and elections where Raft alone would not, and hears
// of votes.
type Elections interface {
	// VetoPreVote returns why a candidate must not have this node's pre-vote, "" when
	// Raft decides. A veto has to end after a bounded time.
	VetoPreVote(candidate cluster.NodeID, now time.Time) (reason string)
	// MayIgnoreLeader reports whether this voter has evidence of its own that its
	// leader is dead or silent, and may vote although it knows that leader. It is false
	// while a lease may run.
	MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool
	// ApproveTimeoutNow returns why this node rejects a TimeoutNow of the leader of that
	// term, "" when it starts the election. It may block, until ctx ends.
	ApproveTimeoutNow(ctx context.Context, by cluster.NodeID, term uint64) (reason string)
	// MayStartElection reports whether this node may start elections by itself. While
	// it is false, this node's own pre-votes fail.
	MayStartElection() bool
	// MayVote reports whether this node grants votes and pre-votes at all: a lease that
	// it has forgotten may be running. A false has to end after a bounded time.
	MayVote() bool
	// VoteReceived is called with each voter's answer to this node's candidacies, but
	// for its own vote.
	VoteReceived(cluster.VoteResponse)
	// VoteAnswered is called with each of this node's answers to candidates, pre-votes
	// apart. The reason is "granted", "raft" (its log is behind, or the vote is given),
	// or a guard's.
	VoteAnswered(granted bool, reason string)
}

// RaftDecides is an Elections that leaves every decision to Raft. Embed it to
// override some.
type RaftDecides struct{}

// VetoPreVote returns "".
func (RaftDecides) VetoPreVote(cluster.NodeID, time.Time) string { return "" }

// MayIgnoreLeader returns false.
func (RaftDecides) MayIgnoreLeader(cluster.NodeID, uint64, time.Time) bool { return false }

// ApproveTimeoutNow returns "".
func (RaftDecides) ApproveTimeoutNow(context.Context, cluster.NodeID, uint64) string { return "" }

// MayStartElection returns true.
func (RaftDecides) MayStartElection() bool { return true }

// MayVote returns true.
func (RaftDecides) MayVote() bool { return true }

// VoteReceived does nothing.
func (RaftDecides) VoteReceived(cluster.VoteResponse) {}

// VoteAnswered does nothing.
func (RaftDecides) VoteAnswered(bool, string) {}

// RaftNode is the raft.Raft that uses the transport, as its guards see it. The
// methods are called from many goroutines and must not block, unless their comment
// says so.
type RaftNode interface {
	CurrentTerm() uint64
	// Leader returns the leader that Raft knows, "" when it knows none.
	Leader() cluster.NodeID
	// Progress returns the last applied index, and a number that grows while the state
	// machine restores a snapshot, such as the bytes read.
	Progress() (applied, restored uint64)
	// LastEntry returns the position of the last entry, in log or snapshot.
	LastEntry() (index, term uint64)
	// CheckEntry returns why an entry of the current term's leader cannot belong to
	// what this node has applied. It may block for a disk write then.
	CheckEntry(index, term uint64) error
	// TrackVote is called when a vote enters Raft, and when it is no longer there:
	// meanwhile a term may wait, to be recorded with the vote.
	TrackVote(inside bool)
	// FlushBeforeReply makes durable what waits. Nothing that Raft answers leaves this
	// node before that; with an error it never does. It may block for a disk write.
	FlushBeforeReply() error
	// ElectionBlocked reports whether this node must not start an election, not even
	// for an operator.
	ElectionBlocked() bool
}

// fillDefaults sets what is optional and not set.
func (cfg *Config) fillDefaults() {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.Elections == nil {
		cfg.Elections = RaftDecides{}
	}
	if cfg.Claim == nil {
		cfg.Claim = func() cluster.Claim { return cluster.Claim{} }
	}
	if cfg.ConnectionLost == nil {
		cfg.ConnectionLost = func(cluster.ConnectionLoss) {}
	}
	if cfg.Rejected == nil {
		cfg.Rejected = func(string, string) {}
	}
	if cfg.ReadOnly == nil {
		cfg.ReadOnly = func() bool { return false }
	}
	if cfg.ReplicationPaused == nil {
		cfg.ReplicationPaused = func() bool { return false }
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
}
