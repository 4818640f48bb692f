package transport

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// Config is what a Transport needs. Its functions and interfaces are called concurrently. They must not block, unless
// their comment says so.
type Config struct {
	// Listener accepts the connections of peers. Run closes it.
	Listener net.Listener
	// CrashSocketPort is the port of this process's crash socket; 0 if it has none.
	CrashSocketPort int
	// Dial opens a connection to a peer. It must resolve host names each time. Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Advertise is the address that other nodes dial: Raft's LocalAddr.
	Advertise  string
	Membership Membership
	// Elections decides about votes and elections. Nil means RaftDecides.
	Elections Elections
	// Claim returns this node's claim, without the fields that Transport.Claim fills in. It is called often. Nil means
	// an empty claim.
	Claim func() cluster.Claim
	// ConnectionLost is called when a peer's process ends its monitor connection, or when the kernel does so for a
	// dead process. Optional.
	ConnectionLost func(cluster.ConnectionLoss)
	// Relayed handles a message that another member sent with Relay; that member receives the text of an error. It may
	// block until ctx ends. Nil rejects relayed messages.
	Relayed func(ctx context.Context, from cluster.NodeID, message []byte) error
	// Rejected counts rejected connections and messages, for the metric rpc_rejected_total. Both strings come from
	// small fixed sets. Optional.
	Rejected func(kind, reason string)
	// InstallRepeated is called before this node, as leader, sends a snapshot again that the peer has already installed
	// so many times. Optional.
	InstallRepeated func(peer cluster.NodeID, index uint64, times int)
	// ReadOnly reports whether appends with entries, and snapshots, are rejected because disk space is short.
	// Heartbeats pass. It is called for each message. Nil means never.
	ReadOnly func() bool
	// ReplicationPaused reports whether this node's own appends and snapshots fail, so that the followers elect
	// another leader. It is called for each message. Nil means never.
	ReplicationPaused func() bool
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

// Membership is what this node knows of itself and of the cluster's members. It decides about hellos, and again about
// each Raft message.
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
	// OnRefused is called when a peer's hello has refused this node.
	OnRefused(by cluster.NodeID, r cluster.Refusal, reason string)
	// Servers returns Raft's latest configuration, whose members get a monitor connection. It is called often.
	Servers() []cluster.Server
}

// Elections decides about votes and elections in addition to Raft, and is notified of votes.
type Elections interface {
	// VetoPreVote returns why a candidate is refused this node's pre-vote, "" if Raft decides. A veto must end after a
	// bounded time.
	VetoPreVote(candidate cluster.NodeID, now time.Time) (reason string)
	// MayIgnoreLeader reports whether this voter has evidence of its own that its leader is dead or silent, so that it
	// may vote although it knows a leader. It returns false while a lease may be running.
	MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool
	// ApproveTimeoutNow returns why this node rejects a TimeoutNow of the leader of term, "" if it starts the
	// election. It may block until ctx ends.
	ApproveTimeoutNow(ctx context.Context, by cluster.NodeID, term uint64) (reason string)
	// MayStartElection reports whether this node may start elections by itself. While it returns false, this node's
	// own pre-votes fail.
	MayStartElection() bool
	// MayVote reports whether this node grants votes and pre-votes at all. It returns false while a lease from before
	// a restart may be running, which must end after a bounded time.
	MayVote() bool
	// VoteReceived is called with each other voter's response to this node's candidacies.
	VoteReceived(cluster.VoteResponse)
	// VoteAnswered is called with each of this node's responses to vote requests, without pre-votes. The reason is
	// "granted", "raft" (log less up-to-date, or vote already given), or that of a guard.
	VoteAnswered(granted bool, reason string)
}

// RaftDecides is an Elections that leaves every decision to Raft. Embed it to override some methods.
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

// RaftLog is the log of a RaftNode.
type RaftLog interface {
	// LastEntry returns the position of the last entry, in log or snapshot.
	LastEntry() (index, term uint64)
	// EndsSnapshot reports whether this node's newest snapshot ends with the entry.
	EndsSnapshot(index, term uint64) bool
	// CheckEntry returns why an entry of the current term's leader conflicts with what this node has applied. It may
	// block for a disk write then.
	CheckEntry(index, term uint64) error
}

// RaftNode is the raft.Raft that uses the transport, as the guards see it. Its methods are called concurrently. They
// must not block, unless their comment says so.
type RaftNode interface {
	RaftLog
	CurrentTerm() uint64
	// Leader returns the leader that Raft knows, "" if none.
	Leader() cluster.NodeID
	// Progress returns the last applied index, and a number that grows while the state machine restores a snapshot,
	// such as the bytes read.
	Progress() (applied, restored uint64)
	// TrackVote is called when a vote request enters Raft, and when it has left Raft. In between, the store may delay
	// a term until it is written with the vote.
	TrackVote(inside bool)
	// FlushBeforeReply makes delayed writes durable. No response of Raft leaves this node before it, nor at all if it
	// fails. It may block for a disk write.
	FlushBeforeReply() error
	// ElectionBlocked reports whether this node must not start an election, not even at an operator's request.
	ElectionBlocked() bool
}

// fillDefaults sets the optional fields that are not set.
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
	if cfg.InstallRepeated == nil {
		cfg.InstallRepeated = func(cluster.NodeID, uint64, int) {}
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
