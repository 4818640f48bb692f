// Package transport moves bytes between nodes: one listener a node, a hello
// that binds each connection to a node's identity, the Raft messages with the
// guards that the Raft library needs, and probes.
//
// DESIGN.md says why it has this shape.
package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
)

// MaxMessage is the most that one Raft message (without the data of a
// snapshot) may take on the wire, and that all unfinished messages of one peer
// may take together. Whoever configures Raft keeps its MaxAppendEntries times
// its largest entry below it.
const MaxMessage = 128 << 20

// MaxField is the longest single byte string in a Raft message, and so the
// largest log entry.
const MaxField = 16 << 20

// Config is what a Transport needs. The functions are called from many
// goroutines at once and must not block, but for Meet and Adopt.
type Config struct {
	// Listener takes the connections of peers. Run closes it.
	Listener net.Listener
	// CrashSocketPort is that of this process's Canary; 0: it has none.
	CrashSocketPort int
	// Dial opens a connection to a peer. It resolves host names each time. Nil
	// means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Advertise is the address that the other nodes dial: Raft's LocalAddr.
	Advertise string
	// RaftCallbacks is this node as its hellos say it. It is asked for each hello, and
	// for each message that is judged.
	Local func() cluster.Peer
	// Record is what is known of a member, for admission. Nil: nothing.
	Record func(cluster.NodeID) cluster.Record
	// RecordIncarnation puts the data directory of a peer on record, durably, where Record is
	// to have it from then on. It is called for each hello, before that is judged.
	// It may block for a disk write. Optional.
	RecordIncarnation func(cluster.Peer) error
	// Adopt makes the cluster ID, generation and roster of from durable, as this
	// node's own. It is called only while this node has no cluster ID: before
	// the first message of a leader that has one reaches Raft, or when a peer
	// vouches for this node. It may block for a disk write, may be called
	// twice, and an error means not adopted.
	Adopt func(from cluster.Peer) error
	// Known hears of each completed hello, in both directions, with this
	// node's verdict on the peer. Optional.
	Known func(cluster.Peer, cluster.Admission)
	// Admitted hears that a peer's hello has admitted this node. Optional.
	Admitted func(by cluster.NodeID)
	// Refused hears that a peer's hello has refused this node. Optional.
	Refused func(by cluster.NodeID, r cluster.Refusal, reason string)
	// Rejected counts connections and messages that were turned away, for the
	// metric rpc_rejected_total. Both strings come from small fixed sets.
	// Optional.
	Rejected func(kind, reason string)
	// Servers is Raft's latest configuration: the peers to keep a monitor
	// connection with. Asked often, so it must be cheap. Nil: none.
	Servers func() []cluster.Server
	// Claim is what this node says to its peers of itself and of the leader,
	// but for what Transport.Claim fills in. Asked often. Nil: nothing.
	Claim func() cluster.Claim
	// ConnectionLost hears that a peer's process has ended its monitor connection, or that
	// the kernel did it for a process that died. Optional.
	ConnectionLost func(cluster.ConnectionLoss)
	// VetoPreVote says why a candidate must not have this node's pre-vote, "" when
	// raft is to decide. Whoever sets it bounds it in time. Optional.
	VetoPreVote func(candidate cluster.NodeID, now time.Time) (refuse string)
	// MayIgnoreLeader says whether this node has evidence of its own that its leader is
	// dead or silent, and may vote although it knows that leader. Must be false
	// while a lease may run. Nil: never.
	MayIgnoreLeader func(candidate cluster.NodeID, term uint64, now time.Time) bool
	// VoteReceived hears each voter's answer to this node's candidacies, but for its
	// own vote. Optional.
	VoteReceived func(cluster.VoteResponse)
	// ApproveTimeoutNow hears that the leader of that term tells this node to stand, and says
	// why it will not, "" when it will. Unlike the others it may block, until ctx
	// ends. Optional.
	ApproveTimeoutNow func(ctx context.Context, by cluster.NodeID, term uint64) (refuse string)
	// Relayed takes a message that another member has sent with Relay; it may block,
	// until ctx ends. An error is told to that member. Nil: none is taken.
	Relayed func(ctx context.Context, from cluster.NodeID, message []byte) error
	// VoteAnswered counts this node's answers to candidates, pre-votes apart. reason is
	// "granted", "raft" (its log is behind, or the vote is given), or a guard's.
	// Optional.
	VoteAnswered func(granted bool, reason string)
	// TLS authenticates both sides of every connection. Nil: plain TCP.
	TLS *TLS
	// ClusterName is the cluster's name in the certificates of nodes.
	ClusterName string
	// TimeoutMin and TimeoutMax are the election timeouts.
	TimeoutMin, TimeoutMax time.Duration
	Gate                   Gate
	// Faults is the hook of chaos tests; nil in production.
	Faults Faults
	Logger hclog.Logger
}

// Gate holds the switches by which the rest of the node restrains Raft's
// traffic. A nil function never restrains. They are asked for each message.
type Gate struct {
	// ReadOnly: turn away AppendEntries that carry entries (disk space is
	// short). Heartbeats pass.
	ReadOnly func() bool
	// Muted: fail this node's own AppendEntries and snapshots, so that the
	// followers elect another leader (the disk is stalled).
	ReplicationPaused func() bool
	// MayStartElection: when it says false, this node's own pre-votes fail.
	MayStartElection func() bool
	// MayVote: when it says false, this node grants nobody a vote or pre-vote
	// (a lease that it has forgotten may be running). Bounded in time by
	// whoever sets it.
	MayVote func() bool
}

// Message describes an outgoing Raft message to the fault hook.
type Message struct {
	From, To cluster.NodeID
	Kind     string // append, heartbeat, vote, prevote, snapshot, timeout_now; probe, with the claim's term
	Term     uint64
	Size     int // bytes of the entries, or of the snapshot
}

// Fault is what shall go wrong with one message.
type Fault struct {
	Drop      bool          // it never arrives, and the sender finds out by timeout
	Delay     time.Duration // before it is sent
	DropReply bool          // it arrives, its answer does not
	Twice     bool          // it arrives a second time; not for a snapshot
	// Late holds the answer up; gone is closed when nobody waits for it any more.
	// nil: it is not held up. A probe's frame has no answer, and comes once.
	Late func(gone <-chan struct{})
}

// Faults decides on faults of outgoing messages. It is called once a message,
// from many goroutines.
type Faults interface {
	Outgoing(Message) Fault
}

// ClaimFaults is what Faults may be as well: then it changes what a node claims
// to a peer.
type ClaimFaults interface {
	Claim(to cluster.NodeID, c cluster.Claim) cluster.Claim
}

// Transport is one node's end of all peer traffic.
type Transport struct {
	cfg    Config
	log    hclog.Logger
	quiet  *rateLimitedLog
	acks   *Acks
	half   *halfOpen
	params timing

	monitors *monitors
	relaying atomic.Int64 // messages being taken

	mu      sync.Mutex
	raft    *Raft // the current one; replaced when it was closed
	stopped bool

	life    sync.Mutex      // guards adding to jobs once Run ends
	running context.Context // of Run; nil before and after
	jobs    sync.WaitGroup  // short ones, which Run waits for
}

// timing holds the durations that follow from the election timeouts.
type timing struct {
	rpc          time.Duration // one small RPC, or dialling including the hello
	hello        time.Duration // an accepted connection's handshake and hello
	stall        time.Duration // silence in the middle of a message
	storeTimeout time.Duration // the longest store operation that heartbeats do not feel
	probe        time.Duration // between two questions on a monitor connection
	// The same while there is a leader: whoever needs claims then asks for them.
	probeIdle time.Duration
}

// maxStall is how long a connection may make no progress in the middle of a
// message although its peer is known to be alive.
const maxStall = 10 * time.Second

// minFailureDelay is what passes at least before a message fails: the library retries
// some failures at once, for ever.
const minFailureDelay = time.Millisecond

func timingOf(timeoutMin, timeoutMax time.Duration) timing {
	return timing{
		rpc:          2 * timeoutMin,
		hello:        max(2*timeoutMax, time.Second),
		stall:        max(2*timeoutMax, time.Second),
		storeTimeout: timeoutMax,
		probe:        min(timeoutMin*2/3, maxStall/4), // whoever is asked ends a connection on which nothing comes for slowest

		probeIdle: min(timeoutMin*10/3, maxStall/4),
	}
}

// New checks the configuration and makes a transport. It starts nothing.
func New(cfg Config) (*Transport, error) {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("transport: no "+what))
		}
	}
	need(cfg.Listener != nil, "listener")
	need(cfg.Advertise != "", "advertised address")
	need(cfg.Local != nil, "Local function")
	need(cfg.Adopt != nil, "Adopt function")
	need(cfg.TimeoutMin > 0 && cfg.TimeoutMax >= cfg.TimeoutMin, "valid election timeouts")
	need(cfg.TLS == nil || cfg.ClusterName != "", "cluster name, which certificates need")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	fillDefaults(&cfg)
	log := cfg.Logger.Named("transport")
	t := &Transport{
		cfg:    cfg,
		log:    log,
		quiet:  newLimitedLog(log),
		acks:   newAcks(),
		half:   newHalfOpen(maxHalfOpen),
		params: timingOf(cfg.TimeoutMin, cfg.TimeoutMax),
	}
	t.monitors = newMonitors(t)
	return t, nil
}

func fillDefaults(cfg *Config) {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	if cfg.Record == nil {
		cfg.Record = func(cluster.NodeID) cluster.Record { return cluster.Record{} }
	}
	if cfg.RecordIncarnation == nil {
		cfg.RecordIncarnation = func(cluster.Peer) error { return nil }
	}
	if cfg.Known == nil {
		cfg.Known = func(cluster.Peer, cluster.Admission) {}
	}
	if cfg.Admitted == nil {
		cfg.Admitted = func(cluster.NodeID) {}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(cluster.NodeID, cluster.Refusal, string) {}
	}
	if cfg.Rejected == nil {
		cfg.Rejected = func(string, string) {}
	}
	if cfg.Servers == nil {
		cfg.Servers = func() []cluster.Server { return nil }
	}
	if cfg.Claim == nil {
		cfg.Claim = func() cluster.Claim { return cluster.Claim{} }
	}
	if cfg.ConnectionLost == nil {
		cfg.ConnectionLost = func(cluster.ConnectionLoss) {}
	}
	if cfg.VetoPreVote == nil {
		cfg.VetoPreVote = func(cluster.NodeID, time.Time) string { return "" }
	}
	if cfg.MayIgnoreLeader == nil {
		cfg.MayIgnoreLeader = func(cluster.NodeID, uint64, time.Time) bool { return false }
	}
	if cfg.VoteReceived == nil {
		cfg.VoteReceived = func(cluster.VoteResponse) {}
	}
	if cfg.ApproveTimeoutNow == nil {
		cfg.ApproveTimeoutNow = func(context.Context, cluster.NodeID, uint64) string { return "" }
	}
	if cfg.VoteAnswered == nil {
		cfg.VoteAnswered = func(bool, string) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	never := func() bool { return false }
	if cfg.Gate.ReadOnly == nil {
		cfg.Gate.ReadOnly = never
	}
	if cfg.Gate.ReplicationPaused == nil {
		cfg.Gate.ReplicationPaused = never
	}
	always := func() bool { return true }
	if cfg.Gate.MayStartElection == nil {
		cfg.Gate.MayStartElection = always
	}
	if cfg.Gate.MayVote == nil {
		cfg.Gate.MayVote = always
	}
}

// Raft gives the transport that a raft.Raft is made with. Raft closes it when
// it shuts down; the next call gives a new one, for the next raft.Raft.
func (t *Transport) Raft() *Raft {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.raft == nil || (t.raft.isClosed() && !t.stopped) {
		t.raft = newRaft(t)
		if t.stopped {
			t.raft.shut()
		}
	}
	return t.raft
}

// Acks gives the record of acknowledged AppendEntries.
func (t *Transport) Acks() *Acks { return t.acks }

// ResetPeers closes the connections with all peers, each at the end of its
// message in progress, so that the next message says hello again. To be called
// when this node's identity has changed.
func (t *Transport) ResetPeers() {
	for _, p := range t.Raft().allPeers() {
		p.reset()
	}
}

// admit judges a peer by what is known now.
func (t *Transport) admit(peer cluster.Peer) cluster.Admission {
	return cluster.Admit(t.cfg.Local(), peer, t.cfg.Record(peer.NodeID))
}

// adopt makes the peer's cluster this node's own, unless it has one.
func (t *Transport) adopt(from cluster.Peer) error {
	if t.cfg.Local().ClusterID != "" {
		return nil
	}
	if err := t.cfg.Adopt(from); err != nil {
		return fmt.Errorf("adopt cluster ID %s of node %s: %w", from.ClusterID, from.NodeID, err)
	}
	t.log.Info("adopted cluster ID", "cluster_id", from.ClusterID, "generation", from.Generation.Number, "from", from.NodeID)
	t.ResetPeers()
	return nil
}

// spawn runs f in a goroutine that Run waits for; f must end when its ctx does.
// It fails when Run does not run.
func (t *Transport) spawn(f func(context.Context)) bool {
	t.life.Lock()
	defer t.life.Unlock()
	if t.running == nil || t.running.Err() != nil {
		return false
	}
	ctx := t.running
	t.jobs.Go(func() { f(ctx) })
	return true
}

// openJobs lets spawn work until ctx ends.
func (t *Transport) openJobs(ctx context.Context) {
	t.life.Lock()
	defer t.life.Unlock()
	t.running = ctx
}

// awaitJobs waits for what was spawned, once the context given to openJobs has
// ended.
func (t *Transport) awaitJobs() {
	t.life.Lock()
	t.running = nil // from now on nobody adds to jobs
	t.life.Unlock()
	t.jobs.Wait()
}

// identityChanged says that this node's cluster ID or generation is another than its
// hello said.
func (t *Transport) identityChanged(x completedHello) bool {
	return t.cfg.Local().Identity != x.sentIdentity
}

// reject counts something that was turned away.
func (t *Transport) reject(kind, reason string) { t.cfg.Rejected(kind, reason) }

// sleep waits for d, or until done is closed.
func sleep(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
