package transport

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

func answerAppend(success *bool, term *uint64, after time.Duration) func(raft.RPC) {
	return func(rpc raft.RPC) {
		time.Sleep(after)
		rpc.Respond(&raft.AppendEntriesResponse{Term: *term, Success: *success}, nil)
	}
}

func TestOperation_MayProxyHeartbeat(t *testing.T) {
	t.Parallel()
	tm := timingOf(testMin, testMax)
	base := time.Now()
	at := func(d time.Duration) time.Time { return base.Add(d) }
	store := &operation{since: base, lastProgress: base}
	if !store.mayProxyHeartbeat(at(20*testMax), tm) || store.mayProxyHeartbeat(at(20*testMax+1), tm) {
		t.Error("a store operation has exactly 20 times timeout-max")
	}
	snap := &operation{snapshot: true, size: 3 * syncRate, since: base, lastProgress: base}
	quiet := tm.stall + 3*time.Second
	if !snap.mayProxyHeartbeat(at(quiet), tm) || snap.mayProxyHeartbeat(at(quiet+1), tm) {
		t.Error("a snapshot has the stall and the time to sync")
	}
	snap.observe(at(time.Minute), 1)
	if !snap.mayProxyHeartbeat(at(time.Minute+quiet), tm) {
		t.Error("progress was not seen")
	}
	snap.observe(at(2*time.Minute), 1)
	if snap.mayProxyHeartbeat(at(2*time.Minute), tm) {
		t.Error("no progress was taken for some")
	}
}

// makeBusy sends n2 an append, which its raft handles until release is closed.
func makeBusy(n1, n2 *end) (release chan struct{}) {
	n2.bindOnly()
	taken := make(chan struct{})
	release = make(chan struct{})
	n2.serve(func(rpc raft.RPC) {
		if a, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && len(a.Entries) > 0 {
			close(taken)
			<-release
		}
		answer(&rpc, 5)
	})
	n1.background(func() { _, _ = n1.append(n2, nil) })
	<-taken
	synctest.Wait()
	return release
}

// renew makes the operation in progress one that has just begun.
func (e *end) renew() { e.raft.busy.shift(0) }

func (b *inFlightOps) shift(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for op := range b.ops {
		op.since = time.Now().Add(d)
	}
}

func TestHeartbeatIsAnsweredWhileRaftStores(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		n1, n2, n3 := ends[0], ends[1], ends[2]
		release := makeBusy(n1, n2)
		start := time.Now()
		r, err := n1.heartbeat(n2)
		if err != nil || !r.Success || r.Term != 5 || time.Since(start) > testMax/2 {
			t.Errorf("heartbeat while busy: %+v, %v after %v", r, err, time.Since(start))
		}
		// A heartbeat of another node, of another term or with a log position is not answered. Nor is one after
		// 20 times TimeoutMax.
		if _, err := n3.heartbeat(n2); err == nil {
			t.Error("answered a node that is not the leader")
		}
		n2.renew()
		n2.term.Store(6)
		if _, err := n1.heartbeat(n2); err == nil {
			t.Error("answered in an older term")
		}
		n2.term.Store(5)
		n2.renew()
		_, err = n1.append(n2, func(r *raft.AppendEntriesRequest) { r.Entries = nil })
		if err == nil {
			t.Error("answered a message that claims a log")
		}
		n2.raft.busy.shift(-20*testMax - 1)
		if _, err := n1.heartbeat(n2); err == nil {
			t.Error("answered although the disk is stalled for long")
		}
		close(release)
		eventually(t, "raft answers again", func() bool {
			r, err := n1.heartbeat(n2)
			return err == nil && r.Success
		})
	})
}

// A heartbeat that waits when raft begins an operation is answered too.
func TestWaitingHeartbeatIsAnsweredWhenRaftGetsBusy(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		got := make(chan error, 1)
		go func() {
			_, err := n1.heartbeat(n2)
			got <- err
		}()
		p, _ := n2.raft.peer("n1")
		eventually(t, "it waits", func() bool { return p.budget.Load() > 0 })
		n1.background(func() { _, _ = n1.append(n2, nil) })
		var rpc raft.RPC
		for rpc = range n2.raft.Consumer() {
			if len(rpc.Command.(*raft.AppendEntriesRequest).Entries) > 0 {
				break
			}
			answer(&rpc, 5) // the heartbeat came first
			if err := <-got; err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := n1.heartbeat(n2)
				got <- err
			}()
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		answer(&rpc, 5)
	})
}

func TestHeartbeatIsAnsweredWhileASnapshotMoves(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		taken, release := make(chan struct{}), make(chan struct{})
		n2.serve(func(rpc raft.RPC) {
			if _, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
				_, _ = io.Copy(io.Discard, rpc.Reader)
				close(taken)
				<-release
			}
			answer(&rpc, 5)
		})
		installed := make(chan error, 1)
		go func() {
			_, err := n1.install(n2, 500, make([]byte, 1<<20))
			installed <- err
		}()
		<-taken
		// The restore takes much longer than TimeoutMax, and makes progress.
		for start := time.Now(); time.Since(start) < 3*time.Second; {
			n2.progress.Add(1)
			if r, err := n1.heartbeat(n2); err != nil || !r.Success {
				t.Fatalf("heartbeat after %v: %+v, %v", time.Since(start), r, err)
			}
			time.Sleep(testMin / 5)
		}
		close(release)
		if err := <-installed; err != nil {
			t.Errorf("the snapshot's RPC did not last as long as the restore: %v", err)
		}
	})
}

// Heartbeats are answered only for a limited time during a restore without progress.
func TestStuckRestore_StopsProxyAcks(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		op := &operation{snapshot: true}
		n2.raft.busy.enter(op, time.Now())
		n2.raft.busy.mu.Lock()
		op.lastProgress = time.Now().Add(-time.Minute)
		n2.raft.busy.mu.Unlock()
		if _, err := n1.heartbeat(n2); err == nil {
			t.Error("answered")
		}
	})
}

// A proxied acknowledgement binds this node for TimeoutMin: it votes for no other candidate and starts no election.
func TestProxyAck(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(t *testing.T, ends []*end) {
		n1, n2, n3 := ends[0], ends[1], ends[2]
		n3.bind()
		release := makeBusy(n1, n2)
		if _, err := n1.heartbeat(n2); err != nil {
			t.Fatal(err)
		}
		close(release)
		v, err := n3.vote(n2, 6)
		if err != nil || v.Granted {
			t.Errorf("voted for another: %+v, %v", v, err)
		}
		if _, err := n2.preVote(n3, 6); err == nil {
			t.Error("it started an election")
		}
		eventually(t, "the promise ends", func() bool {
			v, err := n3.vote(n2, 6)
			return err == nil && v.Granted
		})
		n2.raft.recordProxyAck(time.Now(), "n3", "boot-n3")
		if v, err := n3.vote(n2, 6); err != nil || !v.Granted {
			t.Errorf("not for the leader itself: %+v, %v", v, err)
		}
	})
}

// A heartbeat that follows the answer to an append is raft's: the append is over when its sender knows that.
func TestHeartbeatAfterAnAppend(t *testing.T) {
	t.Parallel()
	leader, follower := newEnd(t, "n1"), newEnd(t, "n2")
	leader.bind()
	follower.leader.Store(leader.id)
	got := follower.bind()
	const rounds = 300
	for range rounds {
		if _, err := leader.append(follower, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := leader.heartbeat(follower); err != nil {
			t.Fatal(err)
		}
	}
	if n := reached(got); n != 2*rounds {
		t.Errorf("%d messages reached raft, want %d", n, 2*rounds)
	}
}

// A vote request that came before the proxied acknowledgement and waited behind the operation is granted only to the
// leader itself.
func TestProxyAck_DelaysWaitingVotes(t *testing.T) {
	t.Parallel()
	for _, candidate := range []int{0, 2} {
		inBubble(t, 3, func(t *testing.T, ends []*end) {
			n1, n2, n3 := ends[0], ends[1], ends[candidate]
			release := makeBusy(n1, n2)
			got := make(chan raft.RequestVoteResponse, 1)
			go func() {
				v, err := n3.vote(n2, 6)
				if err != nil {
					t.Error(err)
				}
				got <- v
			}()
			synctest.Wait() // it waits for raft
			if _, err := n1.heartbeat(n2); err != nil {
				t.Fatal(err)
			}
			close(release)
			if v := <-got; v.Granted != (candidate == 0) {
				t.Errorf("candidate %s: %+v", n3.id, v)
			}
		})
	}
}

func TestOnlyHeartbeatsAreHeartbeats(t *testing.T) {
	t.Parallel()
	if !isHeartbeat(&raft.AppendEntriesRequest{Term: 5}) {
		t.Error("a heartbeat is none")
	}
	for name, a := range map[string]raft.AppendEntriesRequest{
		"no term":  {},
		"entries":  {Term: 5, Entries: []*raft.Log{{}}},
		"previous": {Term: 5, PrevLogEntry: 1},
		"its term": {Term: 5, PrevLogTerm: 1},
		"a commit": {Term: 5, LeaderCommitIndex: 1},
	} {
		if isHeartbeat(&a) {
			t.Errorf("%s: it claims more than leadership", name)
		}
	}
}
