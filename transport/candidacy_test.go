package transport

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// candidacy is what makes a library's candidate one.
type candidacy int

const (
	noCandidate     candidacy = iota
	preVotes                  // it waits for pre-votes, or began with them: any append of its term ends that
	afterTimeoutNow           // only a higher term ends it
)

// runCandidate makes the end's raft behave like the library's as a candidate. It returns what it gets, and calls
// during, if any, for each message.
func (e *end) runCandidate(as candidacy, during func(command any)) *[]any {
	var got []any
	e.candidate.Store(as != noCandidate)
	e.serve(func(rpc raft.RPC) {
		got = append(got, rpc.Command)
		if c, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
			if len(c.Addr) != 0 || len(c.ID) != 0 || len(c.Entries) != 0 || c.LeaderCommitIndex != 0 ||
				c.PrevLogEntry < 1<<60 {
				e.t.Errorf("raft could accept %+v", c)
			}
			if c.Term > e.term.Load() || as == preVotes {
				e.candidate.Store(false)
			}
			e.term.Store(max(e.term.Load(), c.Term))
			e.leader.Store(cluster.NodeID(""))
			if during != nil {
				during(rpc.Command)
			}
			rpc.Respond(&raft.AppendEntriesResponse{}, nil)
			return
		}
		if e.candidate.Load() {
			e.t.Error("a candidate ignores TimeoutNow")
		}
		rpc.Respond(&raft.TimeoutNowResponse{}, nil)
	})
	return &got
}

// A node that knows no leader may be a candidate that waits for pre-votes. StartElection ends that candidacy first.
func TestStartElection_EndsCandidacy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		as           candidacy
		leader       cluster.NodeID
		want         int
		term, raised uint64
	}{
		{noCandidate, "", 1, 6, 0},
		{noCandidate, "n2", 1, 6, 0},
		{preVotes, "", 2, 6, 0},
		{afterTimeoutNow, "", 3, 7, 6},
		{afterTimeoutNow, "n2", 2, 7, 6}, // it has acknowledged its term's leader
	} {
		for _, by := range []cluster.ElectionCause{
			cluster.CauseOperator, cluster.CauseTransferFailed, cluster.CauseLeaderFailed,
		} {
			inBubble(t, 1, func(t *testing.T, ends []*end) {
				e := ends[0]
				e.bindOnly()
				e.leader.Store(tt.leader)
				got := e.runCandidate(tt.as, nil)
				term, err := e.raft.StartElection(t.Context(), 5, by)
				if err != nil || term != tt.term || len(*got) != tt.want || e.raised.Load() != tt.raised {
					t.Fatalf("%+v: term %d, %v, raised to %d; raft got %v", tt, term, err, e.raised.Load(), *got)
				}
			})
		}
	}
}

// The target of a transfer may have lost an election of the leader's term. The library's candidate would ignore the
// leader's TimeoutNow until its timer fires.
func TestTimeoutNow_EndsCandidacy(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		leader, e := ends[0], ends[1]
		leader.bind()
		e.bindOnly()
		got := e.runCandidate(afterTimeoutNow, nil)
		if err := leader.timeoutNow(e); err != nil || len(*got) != 2 || e.raised.Load() != 6 {
			t.Errorf("%v, raised to %d; raft got %v", err, e.raised.Load(), *got)
		}
	})
}

// Between the message that ends the candidacy and the TimeoutNow, another node is elected in the raised term. It may
// have a lease. The old leader must not believe that it leads on.
func TestTimeoutNow_AnotherLeadsInTheRaisedTerm(t *testing.T) {
	t.Parallel()
	for _, during := range []func(e *end){
		func(e *end) { e.leader.Store(cluster.NodeID("n3")) },
		func(e *end) { e.term.Store(7) },
	} {
		inBubble(t, 2, func(t *testing.T, ends []*end) {
			leader, e := ends[0], ends[1]
			leader.bind()
			e.bindOnly()
			got := e.runCandidate(afterTimeoutNow, func(any) { during(e) })
			err := leader.timeoutNow(e)
			if err == nil || errors.As(err, new(*TimeoutNowUndelivered)) || len(*got) != 1 || e.raised.Load() != 6 {
				t.Errorf("%v, raised to %d; raft got %v", err, e.raised.Load(), *got)
			}
		})
	}
}

// The permission of a leader does not hold for a candidate that has an entry of a later leader.
func TestTransferFlag_LaterLeader(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		flag    *flagPermission
		lastLog uint64
		want    bool
	}{
		{nil, 5, false},
		{&flagPermission{at: now.Add(-testMax)}, 5, false},
		{&flagPermission{at: now}, 9, true}, // of an operator
		{&flagPermission{at: now, term: 5}, 5, true},
		{&flagPermission{at: now, term: 5}, 6, false},
	} {
		if got := tt.flag.allows(tt.lastLog, now, testMax); got != tt.want {
			t.Errorf("%+v, log of term %d: %v", tt.flag, tt.lastLog, got)
		}
	}
}

// The winner's first append comes while the loser ends its candidacy, whose messages make raft forget the winner. The
// loser starts no election by its own decision.
func TestStartElection_WinnerIsHeardMeanwhile(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		winner, e := ends[0], ends[1]
		e.bindOnly()
		e.leader.Store(cluster.NodeID(""))
		got := e.runCandidate(afterTimeoutNow, func(any) {
			e.tr.leaderContact.Store(&LeaderContact{winner.id, time.Now()})
		})
		if _, err := e.raft.StartElection(t.Context(), 5, cluster.CauseLeaderFailed); err == nil || len(*got) != 1 {
			t.Errorf("%v; raft got %v", err, *got)
		}
		if _, err := e.raft.StartElection(t.Context(), 5, cluster.CauseOperator); err != nil {
			t.Errorf("requested: %v", err)
		}
	})
}

// A candidate of the library goes on naming the leader that it acknowledged in an earlier candidacy. If that one was
// not heard for timeout-min, the candidacy ends instead of asking for pre-votes.
func TestRequestPreVote_ForgetsALostLeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		as     candidacy
		leader cluster.NodeID
		silent time.Duration
		lost   bool
	}{
		{preVotes, "n1", testMin, true},
		{preVotes, "n1", testMin - time.Millisecond, false},
		{preVotes, "", testMin, false},
		{noCandidate, "n1", testMin, false},
	} {
		inBubble(t, 2, func(t *testing.T, ends []*end) {
			leader, e := ends[0], ends[1]
			leader.bind()
			e.bindOnly()
			got := e.runCandidate(tt.as, nil)
			e.leader.Store(tt.leader)
			e.tr.leaderContact.Store(&LeaderContact{leader.id, time.Now()})
			time.Sleep(tt.silent)
			_, err := e.preVote(leader, 6)
			if lost := errors.Is(err, errCandidacyEnded); lost != tt.lost || lost != (len(*got) == 1) {
				t.Errorf("%+v: %v; raft got %v", tt, err, *got)
			}
		})
	}
}
