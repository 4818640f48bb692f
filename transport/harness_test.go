package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"northstar/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one transport whose raft is simulated by the test.
type end struct {
	t    testing.TB
	id   cluster.NodeID
	addr string
	tr   *Transport
	raft *Raft
	stop func()

	mu        sync.Mutex
	self      cluster.Peer
	records   map[cluster.NodeID]cluster.Record
	known     []cluster.Peer
	admitted  []cluster.NodeID
	refused   []cluster.Refusal
	rejects   map[string]int
	given     []cluster.VoteGiven
	adoptErr  error
	keepsID   bool // it adopts no cluster ID
	recordErr error
	servers   []cluster.Server
	claim     cluster.Claim
	losses    []cluster.ConnectionLoss
	sentAfter []time.Time // of LeaderCommit

	term, applied, progress           atomic.Uint64
	leaderCommit                      atomic.Uint64
	snapshotEnd                       atomic.Uint64 // its newest snapshot ends there, in term 4
	leader                            atomic.Value  // cluster.NodeID
	readOnly, replicationPaused, idle atomic.Bool   // idle: it may start no election by itself
	candidate                         atomic.Bool   // Candidate returns true
	raised                            atomic.Uint64 // the last term of TermRaised
	restoring                         atomic.Int64
	electionBlocked                   atomic.Bool // ElectionBlocked returns true
	superseded                        atomic.Bool // MayStartElection returns false for every cause

	// What a test decides; nil: nothing.
	onHello         func()
	onHeard         func(claim *cluster.Claim)
	called          func(ctx context.Context, from cluster.NodeID, request []byte) []byte
	relayed         func(from cluster.NodeID, message []byte) error
	installRepeated func(peer cluster.NodeID, index uint64, times int)
	commitMessage   func(term uint64) (*raft.AppendEntriesRequest, error)
	vetoPreVote     func(candidate cluster.NodeID) string
	mayIgnoreLeader func(candidate cluster.NodeID, term uint64, now time.Time) bool
	approve         func(by cluster.NodeID, term uint64) string
	mayVote         func() bool
	onVote          func(cluster.VoteResponse)
}

type option func(*Config, *end)

const testMin, testMax = 150 * time.Millisecond, 300 * time.Millisecond

func peerOf(id cluster.NodeID) cluster.Peer {
	return cluster.Peer{
		Identity: cluster.Identity{NodeID: id, ClusterID: "c1", Incarnation: "inc-" + string(id)},
		BootID:   "boot-" + string(id), Priority: 100, Eligible: true,
	}
}

// newEnd starts a transport on a loopback port. Its raft knows n1 as leader in term 5, and has applied 100 entries.
func newEnd(t testing.TB, id cluster.NodeID, opts ...option) *end {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newEndOn(t, id, ln, opts...)
}

func newEndOn(t testing.TB, id cluster.NodeID, ln net.Listener, opts ...option) *end {
	t.Helper()
	e := &end{
		t: t, id: id, addr: ln.Addr().String(), self: peerOf(id), records: map[cluster.NodeID]cluster.Record{},
		rejects: map[string]int{},
	}
	e.self.RaftAddress = e.addr
	e.term.Store(5)
	e.applied.Store(100)
	e.leader.Store(cluster.NodeID("n1"))
	cfg := Config{
		Listener: ln, Advertise: e.addr, Membership: e, Elections: testElections{e: e},
		Replication: e, Claims: e, Events: e,
		ClusterName: "test", TimeoutMin: testMin, TimeoutMax: testMax,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
		Logger: hclog.NewNullLogger(),
	}
	for _, o := range opts {
		o(&cfg, e)
	}
	if e.called != nil || e.relayed != nil {
		cfg.Handler = e
	}
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.tr, e.raft = tr, tr.Raft()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run of %s: %v", id, err)
		}
	})
	t.Cleanup(e.stop)
	eventually(t, "the transport runs", func() bool { return tr.spawn(func(context.Context) {}) })
	return e
}

func (e *end) peer() cluster.Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.self
}

// An end is its own Membership.

func (e *end) LocalPeer() cluster.Peer { return e.peer() }

func (e *end) Record(id cluster.NodeID) cluster.Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.records[id]
}

func (e *end) RecordIncarnation(p cluster.Peer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recordErr != nil {
		return e.recordErr
	}
	if cluster.MayRecordIncarnation(e.self, p) && e.records[p.NodeID].Incarnation == "" {
		e.records[p.NodeID] = cluster.Record{Incarnation: p.Incarnation}
	}
	return nil
}

func (e *end) Adopt(from cluster.Peer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.adoptErr == nil && !e.keepsID {
		e.self.ClusterID, e.self.Generation = from.ClusterID, from.Generation
	}
	return e.adoptErr
}

func (e *end) OnHello(p cluster.Peer, _ cluster.Admission) {
	e.mu.Lock()
	e.known = append(e.known, p)
	e.mu.Unlock()
	if e.onHello != nil {
		e.onHello()
	}
}

func (e *end) OnAdmitted(by cluster.NodeID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.admitted = append(e.admitted, by)
}

func (e *end) OnRefused(_ cluster.NodeID, r cluster.Refusal, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = append(e.refused, r)
}

func (e *end) Servers() []cluster.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.servers
}

// An end is its own RaftNode.

func (e *end) CurrentTerm() uint64                  { return e.term.Load() }
func (e *end) Leader() cluster.NodeID               { return e.leader.Load().(cluster.NodeID) }
func (e *end) Candidate() bool                      { return e.candidate.Load() }
func (e *end) Progress() (applied, restored uint64) { return e.applied.Load(), e.progress.Load() }
func (e *end) Restoring() int64                     { return e.restoring.Load() }
func (e *end) LastEntry() (index, term uint64)      { return 0, 0 }
func (e *end) EndsSnapshot(index, term uint64) bool {
	return index == e.snapshotEnd.Load() && term == 4
}
func (e *end) CheckEntry(uint64, uint64, uint64) error    { return nil }
func (e *end) CheckSnapshot(uint64, uint64, uint64) error { return nil }
func (e *end) LeaderCommit(index, _ uint64, sentAfter time.Time) {
	e.leaderCommit.Store(index)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sentAfter = append(e.sentAfter, sentAfter)
}

func (e *end) CommitMessage(term uint64) (*raft.AppendEntriesRequest, error) {
	if e.commitMessage == nil {
		return nil, errors.New("it has no log")
	}
	return e.commitMessage(term)
}
func (e *end) TrackVote(bool)          {}
func (e *end) FlushBeforeReply() error { return nil }
func (e *end) ElectionBlocked() bool   { return e.electionBlocked.Load() }

func (e *end) ReadOnly() bool          { return e.readOnly.Load() }
func (e *end) ReplicationPaused() bool { return e.replicationPaused.Load() }

func (e *end) Claim() cluster.Claim {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.claim
}

func (e *end) OnHeard(_ cluster.NodeID, claim *cluster.Claim) {
	if e.onHeard != nil {
		e.onHeard(claim)
	}
}

func (e *end) OnConnectionLost(l cluster.ConnectionLoss) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.losses = append(e.losses, l)
}

func (e *end) Called(ctx context.Context, from cluster.NodeID, request []byte) []byte {
	return e.called(ctx, from, request)
}

func (e *end) Relayed(_ context.Context, from cluster.NodeID, message []byte) error {
	return e.relayed(from, message)
}

func (e *end) Rejected(kind, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rejects[kind+"/"+reason]++
}

func (e *end) InstallRepeated(peer cluster.NodeID, index uint64, times int) {
	if e.installRepeated != nil {
		e.installRepeated(peer, index, times)
	}
}

// testElections calls the functions of its end.
type testElections struct{ e *end }

func (x testElections) VetoPreVote(candidate cluster.NodeID, _ time.Time) string {
	if x.e.vetoPreVote == nil {
		return ""
	}
	return x.e.vetoPreVote(candidate)
}

func (x testElections) MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool {
	return x.e.mayIgnoreLeader != nil && x.e.mayIgnoreLeader(candidate, term, now)
}

func (x testElections) ApproveTimeoutNow(_ context.Context, by cluster.NodeID, term uint64) string {
	if x.e.approve == nil {
		return ""
	}
	return x.e.approve(by, term)
}

func (x testElections) TermRaised(term uint64) { x.e.raised.Store(term) }

func (x testElections) MayStartElection(by cluster.ElectionCause) bool {
	return !x.e.superseded.Load() && (by != cluster.CauseLeaderFailed || !x.e.idle.Load())
}

func (x testElections) VoteObstacle() (kind, why string) {
	if x.e.mayVote == nil || x.e.mayVote() {
		return "", ""
	}
	return "starting", "just started"
}

func (x testElections) VoteReceived(v cluster.VoteResponse) {
	if x.e.onVote != nil {
		x.e.onVote(v)
	}
}

func (x testElections) VoteAnswered(v cluster.VoteGiven, kind string) {
	x.e.mu.Lock()
	defer x.e.mu.Unlock()
	x.e.rejects[fmt.Sprintf("voted/%v/%s", v.Granted, kind)]++
	x.e.given = append(x.e.given, v)
}

// set changes the identity in the end's hellos.
func (e *end) set(change func(*cluster.Peer)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.self)
}

func (e *end) remember(id cluster.NodeID, r cluster.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records[id] = r
}

func (e *end) rejected(what string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rejects[what]
}

func (e *end) refusals() []cluster.Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]cluster.Refusal(nil), e.refused...)
}

func (e *end) lost() []cluster.ConnectionLoss {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]cluster.ConnectionLoss(nil), e.losses...)
}

// confirm asks for a peer's process until the answer is clear: on a busy machine the 60 ms of a check may be too short
// for a hello.
func (e *end) confirm(id cluster.NodeID, boot string) (l cluster.Liveness) {
	e.t.Helper()
	eventually(e.t, "it is clear whether "+boot+" runs", func() bool {
		l = e.tr.Confirm(e.t.Context(), id, boot)
		return l != cluster.LivenessUnclear
	})
	return l
}

// hellos counts the completed hellos.
func (e *end) hellos() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.known)
}

// claims changes what the end claims.
func (e *end) claims(change func(*cluster.Claim)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.claim)
}

// acquaint makes the ends servers of one configuration, and waits until each has the claims of all others.
func acquaint(t testing.TB, ends ...*end) {
	t.Helper()
	var servers []cluster.Server
	for _, e := range ends {
		servers = append(servers, cluster.Server{ID: e.id, Address: e.addr, Suffrage: cluster.Voter})
	}
	for _, e := range ends {
		e.mu.Lock()
		e.servers = servers
		e.mu.Unlock()
	}
	for _, e := range ends {
		eventually(t, "all are connected", func() bool {
			n := 0
			for _, s := range e.tr.Claims() {
				if s.Connected {
					n++
				}
			}
			return n == len(ends)-1
		})
	}
}

func as(change func(*cluster.Peer)) option {
	return func(_ *Config, e *end) { change(&e.self) }
}

// noID makes an end that has bootstrapped and has no cluster ID yet.
func noID(_ *Config, e *end) { e.self.ClusterID, e.self.Start = "", cluster.StartBootstrapped }

// empty makes an end whose data directory is empty.
func empty(_ *Config, e *end) { e.self.ClusterID = "" }

// bind binds the end's raft and answers everything that reaches it; each message goes to the channel first.
func (e *end) bind() <-chan any {
	e.bindOnly()
	got := make(chan any, 1000)
	e.serve(func(rpc raft.RPC) {
		select {
		case got <- rpc.Command:
		default: // no test needs more commands than the channel holds
		}
		answer(&rpc, e.term.Load())
	})
	return got
}

func (e *end) bindOnly() { e.raft.Bind(e) }

// background runs f, which must end when the end has stopped.
func (e *end) background(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	e.t.Cleanup(func() {
		e.stop()
		<-done
	})
}

// serve simulates raft's main loop: it handles one message at a time.
func (e *end) serve(f func(raft.RPC)) {
	stop, done := make(chan struct{}), make(chan struct{})
	consumer := e.raft.Consumer() // a test may replace raft
	go func() {
		defer close(done)
		for {
			select {
			case rpc := <-consumer:
				f(rpc)
			case <-stop:
				return
			}
		}
	}()
	e.t.Cleanup(func() {
		e.stop()
		close(stop)
		<-done
	})
}

// answer answers as a raft that accepts every message.
func answer(rpc *raft.RPC, term uint64) {
	switch c := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		rpc.Respond(&raft.AppendEntriesResponse{Term: c.Term, Success: true}, nil)
	case *raft.RequestVoteRequest:
		rpc.Respond(&raft.RequestVoteResponse{Term: c.Term, Granted: true}, nil)
	case *raft.RequestPreVoteRequest:
		rpc.Respond(&raft.RequestPreVoteResponse{Term: c.Term, Granted: true}, nil)
	case *raft.InstallSnapshotRequest:
		buf := make([]byte, 32<<10)
		for {
			if _, err := rpc.Reader.Read(buf); err != nil {
				break
			}
		}
		rpc.Respond(&raft.InstallSnapshotResponse{Term: c.Term, Success: true}, nil)
	case *raft.TimeoutNowRequest:
		rpc.Respond(&raft.TimeoutNowResponse{}, nil)
	default:
		rpc.Respond(nil, fmt.Errorf("what is %T in term %d", c, term))
	}
}

func (e *end) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(e.id), Addr: []byte(e.addr)}
}

// The messages of an end to another, with a well-formed request.

func (e *end) append(to *end, change func(*raft.AppendEntriesRequest)) (raft.AppendEntriesResponse, error) {
	req := raft.AppendEntriesRequest{
		RPCHeader: e.header(), Term: 5, PrevLogEntry: 10, PrevLogTerm: 4, LeaderCommitIndex: 9,
		Entries: []*raft.Log{{Index: 11, Term: 5, Type: raft.LogCommand, Data: []byte("x")}},
	}
	if change != nil {
		change(&req)
	}
	var resp raft.AppendEntriesResponse
	err := e.raft.sendAppend(raft.ServerID(to.id), raft.ServerAddress(to.addr), &req, &resp)
	return resp, err
}

func (e *end) heartbeat(to *end) (raft.AppendEntriesResponse, error) {
	return e.append(to, func(r *raft.AppendEntriesRequest) {
		*r = raft.AppendEntriesRequest{RPCHeader: r.RPCHeader, Term: r.Term}
	})
}

func (e *end) vote(to *end, term uint64) (raft.RequestVoteResponse, error) {
	var resp raft.RequestVoteResponse
	err := e.raft.RequestVote(raft.ServerID(to.id), raft.ServerAddress(to.addr),
		&raft.RequestVoteRequest{RPCHeader: e.header(), Term: term}, &resp)
	return resp, err
}

func (e *end) preVote(to *end, term uint64) (raft.RequestPreVoteResponse, error) {
	var resp raft.RequestPreVoteResponse
	err := e.raft.RequestPreVote(raft.ServerID(to.id), raft.ServerAddress(to.addr),
		&raft.RequestPreVoteRequest{RPCHeader: e.header(), Term: term}, &resp)
	return resp, err
}

func (e *end) timeoutNow(to *end) error {
	var resp raft.TimeoutNowResponse
	return e.raft.TimeoutNow(raft.ServerID(to.id), raft.ServerAddress(to.addr),
		&raft.TimeoutNowRequest{RPCHeader: e.header()}, &resp)
}

// to returns the library's transport to a peer. It bypasses the sender's guards.
func (e *end) to(peer *end) *libTransport {
	e.t.Helper()
	p, err := e.raft.peer(peer.id)
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := p.outbound()
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// reached drains the messages that have reached raft.
func reached(got <-chan any) int {
	n := 0
	for {
		select {
		case <-got:
			n++
		default:
			return n
		}
	}
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// relisten stops the end and listens at the same address.
func (e *end) relisten() net.Listener {
	e.t.Helper()
	e.stop()
	var ln net.Listener
	eventually(e.t, "the port is free again", func() bool {
		var err error
		ln, err = net.Listen("tcp", e.addr)
		return err == nil
	})
	return ln
}

// len returns the number of half-open connections.
func (h *halfOpen) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns.Len()
}
