package transport

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/transport/monitor"
)

// Raft is the transport of one raft.Raft with the guards that this needs (DESIGN.md). Close ends all its goroutines.
type Raft struct {
	t           *Transport
	consumer    chan raft.RPC
	busy        *inFlightOps
	changingLog chan struct{}   // holds one element while a message that changes the log is handled
	commits     commitSteps     // what appends have committed and Raft is yet to be told
	bound       chan struct{}   // closed by Bind
	bind        sync.Once       // of bound
	ctx         context.Context // ends at Close
	cancel      context.CancelFunc
	closed      <-chan struct{} // of ctx
	local       atomic.Pointer[RaftNode]
	proxyAck    atomic.Pointer[proxyAck] // nil: none yet
	// since its leader or an operator last made this node start an election; nil: not, or another cause came later
	flag     atomic.Pointer[flagPermission]
	offering chan struct{} // holds one element during offerElection
	ballots  recentVotes
	installs snapshotInstalls
	restore  leaderRestore

	mu    sync.Mutex
	peers map[cluster.NodeID]*peer

	life sync.Mutex // guards adding to wg after Close; taken after mu
	wg   sync.WaitGroup
}

var (
	_ raft.Transport   = (*Raft)(nil)
	_ raft.WithPreVote = (*Raft)(nil)
	_ raft.WithClose   = (*Raft)(nil)
)

// maxPeers bounds the nodes that may be connected at the same time.
const maxPeers = monitor.MaxPeers

// noVotesReason returns why two nodes that admit one another exchange no votes.
func noVotesReason(a cluster.Admission) string {
	if a.RecordStale || a.Outside {
		return a.Reason
	}
	return "one of the two has no cluster ID, or they were not bootstrapped together"
}

func newRaft(t *Transport) *Raft {
	ctx, cancel := context.WithCancel(context.Background())
	return &Raft{
		t:           t,
		consumer:    make(chan raft.RPC),
		busy:        &inFlightOps{ops: make(map[*operation]struct{})},
		ctx:         ctx,
		cancel:      cancel,
		changingLog: make(chan struct{}, 1),
		bound:       make(chan struct{}),
		offering:    make(chan struct{}, 1),
		closed:      ctx.Done(),
		peers:       make(map[cluster.NodeID]*peer),
	}
}

// Bind connects the guards with their raft.Raft, right after raft.NewRaft. Until then incoming messages wait, at most
// for TimeoutMin.
func (r *Raft) Bind(n RaftNode) {
	r.local.Store(&n)
	r.bind.Do(func() { close(r.bound) })
	r.t.monitors.Look() // from now on there may be a configuration
}

// node returns the raft.Raft that uses this transport, nil before Bind.
func (r *Raft) node() RaftNode {
	if n := r.local.Load(); n != nil {
		return *n
	}
	return nil
}

// Consumer returns the messages for raft. Heartbeats go through it too: there is no other way in.
func (r *Raft) Consumer() <-chan raft.RPC { return r.consumer }

// SetHeartbeatHandler does nothing. The handler would raise the term outside raft's main loop, so that a deposed
// leader could write an entry under a term that it never won.
func (r *Raft) SetHeartbeatHandler(func(raft.RPC)) {}

// LocalAddr is the advertised address.
func (r *Raft) LocalAddr() raft.ServerAddress { return raft.ServerAddress(r.t.cfg.Advertise) }

// EncodePeer returns the address as messages carry it.
func (r *Raft) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }

// DecodePeer is the inverse of EncodePeer.
func (r *Raft) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// AppendEntriesPipeline returns an error: one refused append in a pipeline permanently stops the replication.
func (r *Raft) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries sends entries or a heartbeat, and records the acknowledgement with its send time. While the peer cannot
// be reached it does not return (appendretry.go).
func (r *Raft) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	err := r.sendAppend(id, target, args, resp)
	switch {
	case err == nil:
		return outdatedRefusal(args, resp)
	case isHeartbeat(args):
		return r.repeatHeartbeat(err, id, target, args, resp)
	}
	return r.resumeAppends(err, id, target, args, resp)
}

// sendAppend sends an append, and again if its connection was dead. A pooled one may be, and a peer that adopts its
// cluster ID closes the next one, too, if its hello came before.
func (r *Raft) sendAppend(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	start := time.Now()
	m := r.message(id, "append", args.Term, entryBytes(args.Entries))
	if isHeartbeat(args) {
		m.Kind = "heartbeat"
	}
	s := r.sending(m.To, args.Term, args.PrevLogEntry+uint64(len(args.Entries)), start)
	if r.t.cfg.Replication.ReplicationPaused() {
		return r.fail(start, errReplicationPaused)
	}
	if err := r.mayReplicateTo(m.To, target); err != nil {
		return r.fail(start, err)
	}
	if m.Size > MaxMessage {
		err := fmt.Errorf("append of %d bytes is over %d: MaxAppendEntries is too large for these entries",
			m.Size, MaxMessage)
		r.t.quiet.warn("append_size", "cannot replicate", "peer", id, "error", err)
		return r.fail(start, err)
	}
	send := func(out *libTransport) error { return out.AppendEntries(id, target, args, resp) }
	var err error
	for range maxAttempts {
		if err = r.call(m, start, send); !connectionDied(err) {
			break
		}
		if p, gone := r.peer(m.To); gone == nil {
			p.forget()
		}
	}
	if err != nil {
		return err
	}
	r.record(s, resp.Term, resp.Success)
	return nil
}

// mayReplicateTo returns why this node must not lead a peer: it has no cluster ID, and has not recorded that peer's
// incarnation. If that were lost, the others would not know that the peer's acknowledgements have counted.
func (r *Raft) mayReplicateTo(to cluster.NodeID, target raft.ServerAddress) error {
	if r.t.cfg.Membership.LocalPeer().ClusterID != "" {
		return nil
	}
	p, err := r.peer(to)
	if err != nil {
		return err
	}
	a, err := p.ensureHello(string(target))
	if err != nil || a.Votes {
		return err
	}
	return fmt.Errorf("no entries for node %s: %s", to, noVotesReason(a))
}

// InstallSnapshot sends a snapshot. It takes as long as bytes move, and then as long as the peer answers heartbeats.
func (r *Raft) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	start := time.Now()
	m := r.message(id, "snapshot", args.Term, int(args.Size))
	if r.t.cfg.Replication.ReplicationPaused() {
		return r.fail(start, errReplicationPaused)
	}
	if err := r.mayReplicateTo(m.To, target); err != nil {
		return r.fail(start, err)
	}
	s := r.sending(m.To, args.Term, args.LastLogIndex, start)
	install := installOf(s, args)
	r.delayRepeatedInstall(m.To, install)
	s.at = time.Now()
	err := r.call(m, s.at, func(out *libTransport) error { return out.InstallSnapshot(id, target, args, resp, data) })
	if err != nil {
		r.awaitRetryable(err, m.To, target, s.term)
		return err
	}
	if resp.Success {
		r.installs.done(m.To, install)
	}
	r.record(s, resp.Term, resp.Success)
	return nil
}

func (r *Raft) call(m Message, start time.Time, do func(*libTransport) error) error {
	p, err := r.peer(m.To)
	if err != nil {
		return r.fail(start, err)
	}
	if err := p.checkBackoff(start); err != nil {
		return r.fail(start, err)
	}
	out, err := p.outbound()
	if err != nil {
		return r.fail(start, err)
	}
	fault := r.fault(m)
	if !fault.Drop {
		err = fromWire(unwrapCodecError(do(out)))
	}
	if fault.Twice && err == nil {
		err = fromWire(unwrapCodecError(do(out)))
	}
	if err == nil && !fault.Drop && fault.Answered != nil {
		fault.Answered()
	}
	if fault.Late != nil {
		fault.Late(r.closed)
	}
	if fault.lost() && err == nil {
		sleep(r.t.params.rpc, r.closed)
		err = errDropped
	}
	if err != nil {
		if isTimeout(err) {
			p.forget() // the other pooled connections are dead too
		}
		return r.fail(start, err)
	}
	return nil
}

// fail returns err, at least minFailureDelay after start.
func (r *Raft) fail(start time.Time, err error) error {
	if d := minFailureDelay - time.Since(start); d > 0 {
		time.Sleep(d)
	}
	return err
}

func (r *Raft) message(to raft.ServerID, kind string, term uint64, size int) Message {
	return Message{
		From: r.t.cfg.Membership.LocalPeer().NodeID, To: cluster.NodeID(to), Kind: kind, Term: term, Size: size,
	}
}

// peer returns the traffic with a node, created at first use.
func (r *Raft) peer(id cluster.NodeID) (*peer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return nil, errClosed
	}
	p := r.peers[id]
	if p == nil {
		if len(r.peers) >= maxPeers && !r.evict() {
			return nil, fmt.Errorf("over %d peers", maxPeers)
		}
		p = &peer{id: id, r: r, votes: rate.NewLimiter(voteRate, voteBurst), saidHello: make(chan struct{}, 1)}
		r.peers[id] = p
	}
	return p, nil
}

// heard notes that a node has connected to this one, and both admit each other.
func (r *Raft) heard(id cluster.NodeID) {
	r.mu.Lock()
	p := r.peers[id]
	r.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case p.saidHello <- struct{}{}:
	default:
	}
}

// evict removes a peer that is not connected. Of those that this node has dialled, only former members: a node may run
// for years, and members come and go under new IDs. r.mu is held.
func (r *Raft) evict() bool {
	servers := r.t.cfg.Membership.Servers()
	for id, p := range r.peers {
		if _, member := cluster.FindServer(servers, id); p.idle(member) {
			p.shut()
			delete(r.peers, id)
			return true
		}
	}
	return false
}

// contactFrom returns when a node last sent a Raft message; zero if never.
func (r *Raft) contactFrom(id cluster.NodeID) time.Time {
	r.mu.Lock()
	p := r.peers[id]
	r.mu.Unlock()
	if p == nil {
		return time.Time{}
	}
	return p.lastContact()
}

func (r *Raft) allPeers() []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.peers))
}

// accept takes over a connection after its hello.
func (r *Raft) accept(x completedHello, conn net.Conn) error {
	p, err := r.peer(x.peer.NodeID)
	if err != nil {
		return err
	}
	return p.accept(x, conn)
}

// track registers something that Close waits for. It returns false after Close.
func (r *Raft) track() bool {
	r.life.Lock()
	defer r.life.Unlock()
	if r.ctx.Err() != nil {
		return false
	}
	r.wg.Add(1)
	return true
}

func (r *Raft) untrack() { r.wg.Done() }

// Close closes all connections, fails pending messages, and waits for the goroutines. It may be called again.
func (r *Raft) Close() error {
	r.shut()
	r.wg.Wait()
	return nil
}

func (r *Raft) shut() {
	r.mu.Lock()
	r.life.Lock()
	r.cancel()
	r.life.Unlock()
	r.mu.Unlock()
	for _, p := range r.allPeers() {
		p.shut()
	}
}
