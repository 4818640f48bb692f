package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// The transport does not use raft's heartbeat handler. Heartbeats arrive through the consumer like all other messages,
// so only the main loop handles them.
func TestHeartbeatsGoThroughTheMainLoop(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.raft.SetHeartbeatHandler(func(rpc raft.RPC) {
		t.Error("the heartbeat handler was called")
		rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
	})
	got := n2.bind()
	if _, err := n1.heartbeat(n2); err != nil {
		t.Fatal(err)
	}
	if reached(got) != 1 {
		t.Error("the heartbeat did not come through the consumer")
	}
}

func (e *end) install(to *end, last uint64, data []byte) (raft.InstallSnapshotResponse, error) {
	req := raft.InstallSnapshotRequest{
		RPCHeader: e.header(), SnapshotVersion: 1, Term: 5, LastLogIndex: last, LastLogTerm: 5, Size: int64(len(data)),
		Configuration: raft.EncodeConfiguration(raft.Configuration{}),
	}
	return e.send(to, &req, bytes.NewReader(data))
}

func (e *end) send(to *end, req *raft.InstallSnapshotRequest, data io.Reader) (raft.InstallSnapshotResponse, error) {
	var resp raft.InstallSnapshotResponse
	err := e.raft.InstallSnapshot(raft.ServerID(to.id), raft.ServerAddress(to.addr), req, &resp, data)
	return resp, err
}

// TestStaleSnapshotHoldsUpNoAppend: a sender whose snapshot is of no use may take its time.
func TestStaleSnapshotHoldsUpNoAppend(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct{ term, last uint64 }{
		"not newer than what is applied": {5, 50},
		"of a deposed leader":            {4, 101},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			staleSnapshotHoldsUpNoAppend(t, of.term, of.last)
		})
	}
}

func staleSnapshotHoldsUpNoAppend(t *testing.T, term, last uint64) {
	n1, n2, n3 := newEnd(t, "n1"), newEnd(t, "n2"), newEnd(t, "n3")
	n2.bind()
	data, rest := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = n1.send(n2, &raft.InstallSnapshotRequest{
			RPCHeader: n1.header(), SnapshotVersion: 1, Term: term, LastLogIndex: last, LastLogTerm: 4, Size: 100,
			Configuration: raft.EncodeConfiguration(raft.Configuration{}),
		}, data)
	}()
	eventually(t, "the snapshot was found stale", func() bool { return n2.rejected("snapshot/stale") == 1 })
	if resp, err := n3.append(n2, nil); err != nil || !resp.Success {
		t.Errorf("an append meanwhile: %+v, %v", resp, err)
	}
	_ = rest.Close()
	<-done
}

func TestStaleSnapshotIsNotInstalled(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	data := make([]byte, 40<<20) // more than the sockets' buffers hold: it must be drained
	for _, last := range []uint64{50, 100} {
		resp, err := n1.install(n2, last, data)
		if err != nil || !resp.Success {
			t.Errorf("the leader's stale snapshot at %d: %+v, %v; want: done", last, resp, err)
		}
	}
	n2.leader.Store(cluster.NodeID("n3"))
	if resp, err := n1.install(n2, 50, data); err != nil || resp.Success || resp.Term != 5 {
		t.Errorf("a stale snapshot of another node: %+v, %v; want: refused", resp, err)
	}
	if resp, err := n1.send(n2, &raft.InstallSnapshotRequest{
		RPCHeader: n1.header(), SnapshotVersion: 1, Term: 4, LastLogIndex: 101, LastLogTerm: 4, Size: int64(len(data)),
		Configuration: raft.EncodeConfiguration(raft.Configuration{}),
	}, bytes.NewReader(data)); err != nil || resp.Success || resp.Term != 5 {
		t.Errorf("a snapshot of a deposed leader: %+v, %v; want: refused in term 5", resp, err)
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d stale snapshots reached raft", n)
	}
	n2.leader.Store(cluster.NodeID("n1"))
	if resp, err := n1.install(n2, 101, data); err != nil || !resp.Success {
		t.Errorf("a fresh snapshot: %+v, %v", resp, err)
	}
	if reached(got) != 1 {
		t.Error("the fresh snapshot did not reach raft")
	}
	if n := n1.tr.Acks().Peer("n2").MatchIndex; n != 101 {
		t.Errorf("match index %d", n)
	}
}

func TestReadOnlyDropsEntriesNotHeartbeats(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n2.readOnly.Store(true)
	start := time.Now()
	if _, err := n1.append(n2, nil); err == nil {
		t.Error("entries were accepted")
	}
	if d := time.Since(start); d < minFailureDelay {
		t.Errorf("failed after %v: the library would spin", d)
	}
	// The transport reads its data nevertheless; otherwise the sender would never receive the answer.
	if _, err := n1.install(n2, 200, make([]byte, 16<<20)); err == nil ||
		!strings.Contains(err.Error(), "short of disk space") {
		t.Errorf("a snapshot: %v", err)
	}
	if reached(got) != 0 {
		t.Error("it reached raft")
	}
	if r, err := n1.heartbeat(n2); err != nil || !r.Success {
		t.Errorf("heartbeat: %+v, %v", r, err)
	}
	n2.readOnly.Store(false)
	if _, err := n1.append(n2, nil); err != nil {
		t.Errorf("after: %v", err)
	}
}

func TestReplicationPaused_LeaderSendsNothing(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n1.replicationPaused.Store(true)
	start := time.Now()
	_, err := n1.heartbeat(n2)
	if !errors.Is(err, errReplicationPaused) || time.Since(start) < minFailureDelay {
		t.Errorf("heartbeat: %v after %v", err, time.Since(start))
	}
	if _, err := n1.append(n2, nil); !errors.Is(err, errReplicationPaused) {
		t.Errorf("append: %v", err)
	}
	if _, err := n1.install(n2, 200, nil); !errors.Is(err, errReplicationPaused) {
		t.Errorf("snapshot: %v", err)
	}
	if _, err := n1.vote(n2, 6); err != nil {
		t.Errorf("a leader whose replication is paused gets no vote: %v", err)
	}
	if reached(got) != 1 {
		t.Error("more than the vote arrived")
	}
}

// TestNonVoter_StartsNoElection: raft.Raft starts an election after a TimeoutNow although its configuration lists it as
// a non-voter, and no voter refuses it for that.
func TestNonVoter_StartsNoElection(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got, own := n2.bind(), n1.bind()
	n1.leader.Store(n2.id)
	setServers := func(s cluster.Suffrage) {
		n1.mu.Lock()
		defer n1.mu.Unlock()
		n1.servers = []cluster.Server{
			{ID: "n1", Address: n1.addr, Suffrage: s}, {ID: "n2", Address: n2.addr, Suffrage: cluster.Voter},
		}
	}
	setServers(cluster.NonVoter)
	if _, err := n1.preVote(n2, 6); !errors.Is(err, errElectionNotAllowed) {
		t.Errorf("pre-vote: %v", err)
	}
	if _, err := n1.vote(n2, 6); !errors.Is(err, errElectionNotAllowed) {
		t.Errorf("vote: %v", err)
	}
	if _, err := n1.raft.StartElection(t.Context(), 5, cluster.CauseOperator); !errors.Is(err, errElectionNotAllowed) {
		t.Errorf("an election that an operator requests: %v", err)
	}
	if err := n2.timeoutNow(n1); err == nil || !strings.Contains(err.Error(), "not a voter") {
		t.Errorf("TimeoutNow: %v", err)
	}
	if reached(got) != 0 || reached(own) != 0 {
		t.Error("something was sent, or reached its raft")
	}
	for _, candidate := range []bool{false, true} { // it is demoted while the request is considered
		setServers(cluster.Voter)
		n1.candidate.Store(candidate)
		n1.approve = func(cluster.NodeID, uint64) string { setServers(cluster.NonVoter); return "" }
		if err := n2.timeoutNow(n1); err == nil || !strings.Contains(err.Error(), "not a voter") {
			t.Errorf("candidate %t, demoted meanwhile: %v", candidate, err)
		}
	}
	n1.candidate.Store(false)
	n1.approve = nil
	if reached(own) != 0 {
		t.Error("a TimeoutNow reached its raft")
	}
	setServers(cluster.Voter)
	if v, err := n1.vote(n2, 6); err != nil || !v.Granted {
		t.Errorf("as a voter: %+v, %v", v, err)
	}
	if err := n2.timeoutNow(n1); err != nil {
		t.Errorf("TimeoutNow to a voter: %v", err)
	}
}

func TestMayStartElection(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n1.idle.Store(true)
	if _, err := n1.preVote(n2, 6); !errors.Is(err, errElectionNotAllowed) {
		t.Errorf("pre-vote: %v", err)
	}
	if reached(got) != 0 {
		t.Error("it was sent")
	}
	n1.idle.Store(false)
	if v, err := n1.preVote(n2, 6); err != nil || !v.Granted {
		t.Errorf("after: %+v, %v", v, err)
	}
	n1.bind()
	n1.superseded.Store(true)
	for _, by := range []cluster.ElectionCause{
		cluster.CauseLeaderFailed, cluster.CauseTransferFailed, cluster.CauseOperator,
	} {
		if _, err := n1.raft.StartElection(t.Context(), 5, by); !errors.Is(err, errElectionNotAllowed) {
			t.Errorf("an election by cause %d, which no cause allows: %v", by, err)
		}
	}
}

// A node that a lease may still bind grants no vote, and the request does not reach raft.
func TestMayVote(t *testing.T) {
	t.Parallel()
	var free atomic.Bool
	a := newEnd(t, "n1")
	b := newEnd(t, "n2", func(_ *Config, e *end) { e.mayVote = free.Load })
	a.bindOnly()
	b.bind()
	vote, err := a.vote(b, 9)
	pre, err2 := a.preVote(b, 9)
	if err != nil || err2 != nil || vote.Granted || pre.Granted || vote.Term != 5 || pre.Term != 5 {
		t.Fatalf("%+v %v, %+v %v", vote, err, pre, err2)
	}
	if n := b.rejected("vote/starting"); n != 1 {
		t.Errorf("%d votes rejected because of a start", n)
	}
	free.Store(true)
	if vote, err := a.vote(b, 9); err != nil || !vote.Granted {
		t.Errorf("%+v %v", vote, err)
	}
}

func TestTimeoutNowOnlyFromTheLeader(t *testing.T) {
	t.Parallel()
	var withdrawn atomic.Value // string
	withdrawn.Store("")
	n1, n3 := newEnd(t, "n1"), newEnd(t, "n3")
	n2 := newEnd(t, "n2", func(_ *Config, e *end) {
		e.approve = func(by cluster.NodeID, term uint64) string {
			if by != "n1" || term != 5 {
				t.Errorf("told by %s in term %d", by, term)
			}
			if withdrawn.Load() == "late" {
				e.leader.Store(cluster.NodeID("n3"))
				return ""
			}
			return withdrawn.Load().(string)
		}
	})
	got := n2.bind()
	if err := n3.timeoutNow(n2); err == nil || n2.rejected("timeout_now/not_leader") != 1 {
		t.Errorf("from a follower: %v", err)
	}
	n2.leader.Store(cluster.NodeID(""))
	if err := n1.timeoutNow(n2); err == nil {
		t.Error("accepted without a leader")
	}
	if reached(got) != 0 {
		t.Error("it reached raft")
	}
	n2.leader.Store(cluster.NodeID("n1"))
	if err := n1.timeoutNow(n2); err != nil {
		t.Errorf("from the leader: %v", err)
	}
	if reached(got) != 1 {
		t.Error("the leader's did not reach raft")
	}
	for _, why := range []string{"given up", "late"} {
		withdrawn.Store(why)
		var not *TimeoutNowUndelivered
		if err := n1.timeoutNow(n2); !errors.As(err, &not) || reached(got) != 0 {
			t.Errorf("%s: %v", why, err)
		}
	}
	var not *TimeoutNowUndelivered
	if err := n1.timeoutNow(&end{id: "n4", addr: "127.0.0.1:1"}); !errors.As(err, &not) {
		t.Errorf("to a node that does not run: %v", err)
	}
}

// A node whose elections are blocked starts none, neither for the leader nor for an operator.
func TestElectionBlocked(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n2.electionBlocked.Store(true)
	var not *TimeoutNowUndelivered
	if err := n1.timeoutNow(n2); !errors.As(err, &not) || n2.rejected("timeout_now/barred") != 1 {
		t.Errorf("the leader's word: %v", err)
	}
	for _, by := range []cluster.ElectionCause{cluster.CauseLeaderFailed, cluster.CauseOperator} {
		if _, err := n2.raft.StartElection(t.Context(), 5, by); !errors.Is(err, errElectionBlocked) {
			t.Errorf("by %v: %v", by, err)
		}
	}
	if reached(got) != 0 {
		t.Error("it reached raft")
	}
	n2.electionBlocked.Store(false)
	if err := n1.timeoutNow(n2); err != nil || reached(got) != 1 {
		t.Errorf("after: %v", err)
	}
}

// This node's roster contains the position of a committed entry. A candidate whose log cannot hold that entry does not
// get this node's vote, even if its log is newer than this node's.
func TestVoteForCommitted(t *testing.T) {
	t.Parallel()
	n1 := newEnd(t, "n1")
	n2 := newEnd(t, "n2", as(func(p *cluster.Peer) { p.Roster = &cluster.Roster{Index: 10, Term: 5} }))
	n1.bindOnly()
	got := n2.bind()
	for _, tt := range []struct {
		index, term uint64
		want        bool
	}{
		{9, 5, false},
		{1000, 4, false}, // entries of an earlier leader that no other node has
		{9, 6, false},
		{10, 5, true},
		{11, 6, true},
	} {
		vote, pre := raft.RequestVoteResponse{}, raft.RequestPreVoteResponse{}
		id, addr := raft.ServerID(n2.id), raft.ServerAddress(n2.addr)
		err := n1.raft.RequestPreVote(id, addr, &raft.RequestPreVoteRequest{
			RPCHeader: n1.header(), Term: 7,
			LastLogIndex: tt.index, LastLogTerm: tt.term,
		}, &pre)
		err2 := n1.raft.RequestVote(id, addr, &raft.RequestVoteRequest{
			RPCHeader: n1.header(), Term: 7,
			LastLogIndex: tt.index, LastLogTerm: tt.term,
		}, &vote)
		if err != nil || err2 != nil || pre.Granted != tt.want || vote.Granted != tt.want ||
			(reached(got) > 0) != tt.want {
			t.Errorf("with the log up to %d/%d: %+v, %+v, %v, %v", tt.term, tt.index, pre, vote, err, err2)
		}
	}
	if n2.rejected("vote/behind") != 3 || n2.rejected("prevote/behind") != 3 {
		t.Error("it is not counted")
	}
}

// VoteAnswered counts responses of guards and of raft, but no pre-votes.
func TestVotesAreCounted(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bind()
	if _, err := n1.vote(n2, 6); err != nil {
		t.Fatal(err)
	}
	if _, err := n1.preVote(n2, 6); err != nil {
		t.Fatal(err)
	}
	n2.remember("n1", cluster.Record{Removed: true})
	if v, err := n1.vote(n2, 7); err == nil && v.Granted {
		t.Error("a removed node got a vote")
	}
	if n := n2.rejected("voted/true/granted"); n != 1 {
		t.Errorf("%d votes counted as granted, want 1", n)
	}
	if n := n2.rejected("voted/false/removed"); n != 1 {
		t.Errorf("%d votes counted as refused to a removed node, want 1", n)
	}
	n2.mu.Lock()
	defer n2.mu.Unlock()
	for i, want := range []cluster.VoteGiven{
		{Term: 6, Candidate: "n1", Vote: cluster.Vote{Voter: "n2", Granted: true}},
		{Term: 7, Candidate: "n1", Vote: cluster.Vote{Voter: "n2", Reason: "removed"}},
	} {
		got := n2.given[i]
		if !strings.Contains(got.Reason, want.Reason) {
			t.Errorf("the reason of %+v", got)
		}
		if got.Reason = want.Reason; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestTimeoutNowIsBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bind()
		start := time.Now()
		if err := n1.timeoutNow(n2); err == nil {
			t.Error("answered")
		}
		if d := time.Since(start); d != testMax {
			t.Errorf("took %v", d)
		}
	}, func(c *Config, _ *end) { c.Faults = faultFunc(slowMessages) })
}

// A leader cancels a transfer while raft is busy at the target. The target must not start an election later.
func TestTimeoutNowDoesNotWaitForRaft(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly() // no goroutine receives the messages for raft
		start := time.Now()
		var not *TimeoutNowUndelivered
		if err := n1.timeoutNow(n2); !errors.As(err, &not) || n2.rejected("timeout_now/busy") != 1 {
			t.Errorf("raft is busy: %v", err)
		}
		if d := time.Since(start); d < testMin || d > testMin+10*time.Millisecond {
			t.Errorf("it waited %v", d)
		}
		left := make(chan error, 1)
		go func() { left <- n1.timeoutNow(n2) }()
		synctest.Wait()
		n2.leader.Store(cluster.NodeID("n3"))
		if err := <-left; !errors.As(err, &not) || n2.rejected("timeout_now/not_leader") != 1 {
			t.Errorf("another leads meanwhile: %v", err)
		}
	})
}

func TestVoteRateLimit(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	var granted, refused int
	for range 3 * voteBurst {
		v, err := n1.preVote(n2, 6)
		switch {
		case err != nil:
			t.Fatal(err)
		case v.Granted:
			granted++
		default:
			refused++
		}
	}
	if refused == 0 || granted < voteBurst || n2.rejected("prevote/rate") != refused {
		t.Errorf("granted %d, refused %d, counted %d", granted, refused, n2.rejected("prevote/rate"))
	}
	if reached(got) != granted {
		t.Error("a refused one reached raft")
	}
}

// The library counts a pre-vote error with this text as a grant.
func TestPreVoteErrorIsNoGrant(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bindOnly()
	n2.serve(func(rpc raft.RPC) { rpc.Respond(nil, errors.New("unexpected command")) })
	_, err := n1.preVote(n2, 6)
	if err == nil || strings.Contains(err.Error(), "unexpected command") {
		t.Errorf("error %v", err)
	}
}

// Messages that would make raft panic do not reach it.
func TestMalformedMessagesDoNotReachRaft(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	for name, entry := range map[string]*raft.Log{
		"nil":               nil,
		"gap":               {Index: 12, Term: 5},
		"unknown type":      {Index: 11, Term: 5, Type: 77},
		"bad configuration": {Index: 11, Term: 5, Type: raft.LogConfiguration, Data: []byte{0xc1}},
	} {
		req := raft.AppendEntriesRequest{
			RPCHeader: n1.header(), Term: 5, PrevLogEntry: 10, PrevLogTerm: 4,
			Entries: []*raft.Log{entry},
		}
		var resp raft.AppendEntriesResponse
		if err := n1.to(n2).AppendEntries("n2", raft.ServerAddress(n2.addr), &req, &resp); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if reached(got) != 0 {
		t.Error("it reached raft")
	}
}

// A pooled connection that died with the peer's process costs no vote.
func TestVoteIsRetriedOnADeadConnection(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.bind()
	// Fill the pool with several connections.
	done := make(chan struct{})
	for range maxPool {
		go func() {
			_, _ = n1.heartbeat(n2)
			done <- struct{}{}
		}()
	}
	for range maxPool {
		<-done
	}
	ln := n2.relisten()
	again := newEndOn(t, "n2", ln)
	again.bind()
	v, err := n1.vote(again, 6)
	if err != nil || !v.Granted {
		t.Errorf("vote after the restart: %+v, %v", v, err)
	}
}

// brokenConn fails once it is cut, as after a network cut that was longer than TCP_USER_TIMEOUT.
type brokenConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c brokenConn) SetDeadline(t time.Time) error {
	if c.cut.Load() {
		return &net.OpError{Op: "set", Net: "tcp", Err: os.NewSyscallError("setsockopt", syscall.ETIMEDOUT)}
	}
	return c.Conn.SetDeadline(t)
}

// A pooled connection that a network cut has ended costs a dial, and no vote.
func TestVoteIsRetriedAfterACut(t *testing.T) {
	t.Parallel()
	var cut atomic.Pointer[atomic.Bool]
	cut.Store(new(atomic.Bool))
	n1 := newEnd(t, "n1", func(c *Config, _ *end) {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", addr)
			return brokenConn{conn, cut.Load()}, err
		}
	})
	n2 := newEnd(t, "n2")
	n2.bind()
	if v, err := n1.vote(n2, 6); err != nil || !v.Granted {
		t.Fatalf("vote: %+v, %v", v, err)
	}
	cut.Swap(new(atomic.Bool)).Store(true)
	if v, err := n1.vote(n2, 7); err != nil || !v.Granted {
		t.Errorf("vote after the cut: %+v, %v", v, err)
	}
}

func TestVoteIsNotRetriedOnARefusedDial(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n2.stop()
	start := time.Now()
	if _, err := n1.vote(n2, 6); err == nil || connectionDied(err) {
		t.Errorf("vote: %v", err)
	}
	if d := time.Since(start); d < minFailureDelay {
		t.Errorf("failed after %v", d)
	}
}

type faultFunc func(Message) Fault

func (f faultFunc) Outgoing(m Message) Fault { return f(m) }

func slowMessages(Message) Fault { return Fault{Delay: time.Hour} }

func TestMessagesBeforeBindFail(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	if _, err := n1.heartbeat(n2); err == nil {
		t.Error("answered before Bind")
	}
}

// Close answers every message that waits for raft: those that raft has not accepted, and those that it has accepted
// and not answered.
func TestNothingStaysUnanswered(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(n1, n2 *end) error{
		"append":    func(n1, n2 *end) error { _, err := n1.append(n2, nil); return err },
		"heartbeat": func(n1, n2 *end) error { _, err := n1.heartbeat(n2); return err },
		"vote":      func(n1, n2 *end) error { _, err := n1.vote(n2, 6); return err },
		"snapshot":  func(n1, n2 *end) error { _, err := n1.install(n2, 500, make([]byte, 1<<20)); return err },
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprint(name, taken), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newSimNet().newCluster(t, 2)
					n1, n2 := c.nodes[0].end, c.nodes[1].end
					n2.bindOnly()
					failed := make(chan error, 1)
					go func() { failed <- send(n1, n2) }()
					if taken {
						<-n2.raft.Consumer()
					}
					synctest.Wait()
					start := time.Now()
					n2.stop()
					if err := <-failed; err == nil {
						t.Error("answered by nobody")
					}
					if d := time.Since(start); d > time.Second {
						t.Errorf("it took %v", d)
					}
				})
			})
		}
	}
}

// While raft hangs, a peer with too many unanswered messages is refused. The messages outlive their connections.
func TestUnansweredMessagesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimNet().newCluster(t, 2)
		n1, n2 := c.nodes[0].end, c.nodes[1].end
		n2.bindOnly() // no goroutine answers messages
		for range 2 * maxPending {
			if _, err := n1.heartbeat(n2); err == nil {
				t.Fatal("answered")
			}
		}
		synctest.Wait()
		p, err := n2.raft.peer("n1")
		if err != nil {
			t.Fatal(err)
		}
		if n := p.pending.Load(); n != maxPending {
			t.Errorf("%d wait", n)
		}
		if n := n2.rejected("append/crowded"); n != maxPending {
			t.Errorf("%d turned away", n)
		}
	})
}

// An injected fault takes as long as the same fault in a network.
func TestFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fault Fault
		c := newSimNet().newCluster(t, 2,
			func(c *Config, _ *end) { c.Faults = faultFunc(func(Message) Fault { return fault }) })
		n1, n2 := c.nodes[0].end, c.nodes[1].end
		got := n2.bind()
		for name, f := range map[string]struct {
			Fault
			arrives int
			fails   bool
			takes   time.Duration
		}{
			"none":       {Fault{}, 1, false, 0},
			"drop":       {Fault{Drop: true}, 0, true, 2 * testMin},
			"drop reply": {Fault{DropReply: true}, 1, true, 2 * testMin},
			"delay":      {Fault{Delay: time.Second}, 1, false, time.Second},
			"twice":      {Fault{Twice: true}, 2, false, 0},
			"late": {Fault{Late: func(gone <-chan struct{}) {
				select {
				case <-time.After(time.Second):
				case <-gone:
				}
			}}, 1, false, time.Second},
		} {
			fault = f.Fault
			start := time.Now()
			_, err := n1.heartbeat(n2)
			if (err != nil) != f.fails || reached(got) != f.arrives || time.Since(start) != f.takes {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
		}
	})
}

// The transport offers no pipeline, because one refused append in it permanently stops that follower's replication.
func TestNoPipeline(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	n2.bind()
	p, err := n1.raft.AppendEntriesPipeline(raft.ServerID(n2.id), raft.ServerAddress(n2.addr))
	if p != nil || !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
		t.Errorf("got %v, %v", p, err)
	}
}

// otherHistory has applied other entries than any leader sends.
type otherHistory struct{ *end }

func (otherHistory) CheckEntry(uint64, uint64, uint64) error { return errors.New("another history") }

// An entry that conflicts with an applied one must not reach raft, unless its leader was deposed.
func TestContradictionIsTurnedAway(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	n2.raft.Bind(otherHistory{n2})
	if _, err := n1.append(n2, nil); err == nil || !strings.Contains(err.Error(), "another history") {
		t.Errorf("got %v", err)
	}
	if reached(got) != 0 {
		t.Error("it reached raft")
	}
}

// A commit index beyond the entries of an append does not commit the entries that this node has there.
func TestCommitIndexEndsWithTheEntries(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	for _, tt := range []struct {
		entries         bool
		committed, want uint64
	}{{true, 9, 9}, {true, 11, 11}, {true, 500, 11}, {false, 9, 9}, {false, 500, 10}} {
		_, err := n1.append(n2, func(r *raft.AppendEntriesRequest) {
			r.LeaderCommitIndex = tt.committed
			if !tt.entries {
				r.Entries = nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if c := (<-got).(*raft.AppendEntriesRequest); c.LeaderCommitIndex != tt.want {
			t.Errorf("after entry 10, entries %v: commit index %d reaches raft as %d, want %d", tt.entries,
				tt.committed, c.LeaderCommitIndex, tt.want)
		}
		if seen := n2.leaderCommit.Load(); seen != tt.committed {
			t.Errorf("the leader's commit index %d is noted as %d", tt.committed, seen)
		}
	}
	_, err := n1.append(n2, func(r *raft.AppendEntriesRequest) { r.Term, r.LeaderCommitIndex = 4, 7 })
	if seen := n2.leaderCommit.Load(); err != nil || seen == 7 {
		t.Errorf("that of a deposed leader is noted as well: %v, %v", seen, err)
	}
}

// When a message gets no answer in time, the other pooled connections are dead too. They are closed, because each would
// cost another timeout.
func TestTimeoutEmptiesThePool(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		done := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := n1.heartbeat(n2)
				done <- err
			}()
		}
		var waiting []raft.RPC
		for range 3 {
			waiting = append(waiting, <-n2.raft.Consumer())
		}
		for _, rpc := range waiting {
			answer(&rpc, 5)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		p, _ := n1.raft.peer("n2")
		open := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.outs)
		}
		if open() != 3 {
			t.Fatalf("%d connections", open())
		}
		if _, err := n1.heartbeat(n2); !isTimeout(err) {
			t.Fatalf("answered by nobody: %v", err)
		}
		if n := open(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}
