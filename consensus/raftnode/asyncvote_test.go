package raftnode

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// slowVotes is a diary whose recording of a vote takes a while.
type slowVotes struct {
	*diary
	free chan struct{}
}

func (d *slowVotes) RecordVote(term, voteTerm uint64, c []byte) error {
	<-d.free
	return d.diary.RecordVote(term, voteTerm, c)
}

// newCandidate has voted for itself in term 7, and that is being written.
func newCandidate(t *testing.T) (*slowVotes, *raftStore, *raft.RaftState) {
	t.Helper()
	state, voters := raft.Candidate, 3
	d, s := newDiary(t, &state, &voters)
	slow := &slowVotes{d, make(chan struct{})}
	s.stable = slow
	setTerm(t, s, 7)
	vote(t, s, 7, "me")
	return slow, s, &state
}

// A candidate's own vote can be read while it is written, and all else waits for that: what is written after it,
// answers, and the votes of others.
func TestEverythingWaitsForAVoteThatIsWritten(t *testing.T) {
	var s *raftStore
	mine := "term 7, vote 7 for me"
	for name, tt := range map[string]struct {
		then func(*testing.T)
		want []string
	}{
		"the votes of others": {func(t *testing.T) { mustRecord(t, s) }, []string{mine}},
		"an answer":           {func(t *testing.T) { mustSettle(t, s) }, []string{mine}},
		"entries":             {func(t *testing.T) { mustStore(t, s, command(4)) }, []string{mine, "entries [4]"}},
		"a truncation":        {func(t *testing.T) { mustDelete(t, s) }, []string{mine, "delete 1-2"}},
		"a term": {
			func(t *testing.T) { s.state = follower; setTerm(t, s, 8) },
			[]string{mine, "CurrentTerm 8"},
		},
		"a term for a vote": {
			func(t *testing.T) { s.state = follower; s.trackVote(true); setTerm(t, s, 8) },
			[]string{mine},
		},
		"its next candidacy": {func(t *testing.T) { candidate(t, s, 8) }, []string{mine, "term 8, vote 8 for me"}},
		"the end":            {func(*testing.T) { s.stopWrites() }, []string{mine}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d *slowVotes
				d, s, _ = newCandidate(t)
				term, err := s.GetUint64([]byte(keyLastVoteTerm))
				who, err2 := s.Get([]byte(keyLastVoteCand))
				if term != 7 || string(who) != "me" || errors.Join(err, err2) != nil {
					t.Errorf("the vote reads as %q in term %d: %v, %v", who, term, err, err2)
				}
				wantBehind(t, d.diary, d.free, func() { tt.then(t) }, tt.want...)
				if s.inFlightSelfVote != nil {
					t.Error("the vote is still kept")
				}
			})
		})
	}
}

func follower() raft.RaftState { return raft.Follower }

func waitSelfVote(s *raftStore) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitSelfVote()
}

func mustRecord(t *testing.T, s *raftStore) {
	t.Helper()
	if err := waitSelfVote(s); err != nil {
		t.Error(err)
	}
}

// TestAnAnswerBeforeItsOwnVote: a candidate asks the voters that precede it in the list of servers before it votes for
// itself. An answer can then come before its own vote is written. It is held back until the term is durable, and that
// vote is written before it counts.
func TestAnAnswerBeforeItsOwnVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Candidate, 3
		d, s := newDiary(t, &state, &voters)
		slow := &slowVotes{d, make(chan struct{})}
		s.stable = slow
		setTerm(t, s, 7)
		quick := &raftTransport{Transport: grants{}, store: s}
		ask := func() {
			if err := quick.RequestVote("n2", "n2", &raft.RequestVoteRequest{Term: 7},
				new(raft.RequestVoteResponse)); err != nil {
				t.Error(err)
			}
		}
		if !ended(apart(ask)) {
			t.Error("it waits for more than the term")
		}
		wantWrites(t, d, "CurrentTerm 7")
		vote(t, s, 7, "me")
		wantWrites(t, d, "CurrentTerm 7", "LastVoteCand me")
		close(slow.free)
		// The other order: the vote shows before its term stops waiting.
		setTerm(t, s, 8)
		slow.free = make(chan struct{})
		vote(t, s, 8, "me")
		late := apart(ask)
		if ended(late) {
			t.Error("an answer is handed on before the vote is durable")
		}
		close(slow.free)
		if !ended(late) {
			t.Error("it still waits")
		}
	})
}

// grants is a transport to voters that grant every vote immediately.
type grants struct{ Transport }

func (grants) RequestVote(_ raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	resp.Term, resp.Granted = args.Term, true
	return nil
}

// TestWhatVoteIsWrittenFirst: a node that is a majority by itself writes its own vote before it continues. Every node
// writes a vote for another node before it answers.
func TestWhatVoteIsWrittenFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		state  raft.RaftState
		voters int
		who    string
		want   []string
	}{
		"a single voter's": {raft.Candidate, 1, "me", []string{"term 7, vote 7 for me", "LastVoteCand me"}},
		"for another":      {raft.Follower, 3, "n2", []string{"CurrentTerm 7", "LastVoteCand n2"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := newDiary(t, &tt.state, &tt.voters)
			setTerm(t, s, 7)
			vote(t, s, 7, tt.who)
			wantWrites(t, d, tt.want...)
		})
	}
}

// TestFailedSelfVote_StopsVotesAndWrites: the write of a candidate's own vote has failed. From then on no vote of
// another node is passed on, and no write follows.
func TestFailedSelfVote_StopsVotesAndWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s, state := newCandidate(t)
		d.fail = errors.New("input/output error")
		held := apart(func() {
			if waitSelfVote(s) == nil || s.flushBeforeReply() == nil {
				t.Error("an answer was handed on")
			}
		})
		close(d.free)
		synctest.Wait()
		d.fail = nil // a later write would succeed
		if s.StoreLogs(command(5)) == nil {
			t.Error("something was written after it")
		}
		*state = raft.Follower
		term := apart(func() { setTerm(t, s, 8); t.Error("the term was recorded") })
		time.Sleep(time.Hour)
		if ended(held) || ended(term) {
			t.Error("it did not wait for the end")
		}
		s.close()
		if !ended(held) || !ended(term) {
			t.Error("it still waits")
		}
		wantWrites(t, d.diary)
	})
}
