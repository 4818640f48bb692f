package raftnode

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// diary is a store that notes each synced write.
type diary struct {
	raft.InmemStore
	mu     sync.Mutex
	writes []string
	fail   error
}

func (d *diary) note(format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail == nil {
		d.writes = append(d.writes, fmt.Sprintf(format, args...))
	}
	return d.fail
}

func (d *diary) since(n int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.writes[n:])
}

func (d *diary) SetUint64(key []byte, v uint64) error {
	if string(key) == keyLastVoteTerm { // held back for the candidate, like the vote file does
		return d.fail
	}
	return d.note("%s %d", key, v)
}
func (d *diary) Set(key, v []byte) error { return d.note("%s %s", key, v) }
func (d *diary) RecordVote(term, voteTerm uint64, c []byte) error {
	return d.note("term %d, vote %d for %s", term, voteTerm, c)
}

func (d *diary) StoreLogs(entries []*raft.Log) error {
	var at []uint64
	for _, e := range entries {
		at = append(at, e.Index)
	}
	return d.note("entries %v", at)
}
func (d *diary) DeleteRange(from, to uint64) error { return d.note("delete %d-%d", from, to) }

// newDiary returns a store for a run of the library. The test sets the state and the number of voters of that run.
func newDiary(t *testing.T, state *raft.RaftState, voters *int) (*diary, *raftStore) {
	d := &diary{}
	s := newRaftStore(d, d, []byte("me"))
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.phase != stopped && s.writes != nil {
			close(s.writes)
		}
	})
	s.electionBlocked = func() bool { return false }
	s.state, s.voters = func() raft.RaftState { return *state }, func() int { return *voters }
	return d, s
}

func vote(t *testing.T, s *raftStore, term uint64, candidate string) {
	t.Helper()
	if err := errors.Join(s.SetUint64([]byte(keyLastVoteTerm), term),
		s.Set([]byte(keyLastVoteCand), []byte(candidate))); err != nil {
		t.Fatal(err)
	}
}

func setTerm(t *testing.T, s *raftStore, term uint64) {
	t.Helper()
	if err := s.SetUint64([]byte(keyCurrentTerm), term); err != nil {
		t.Fatal(err)
	}
}

func wantWrites(t *testing.T, d *diary, want ...string) {
	t.Helper()
	if got := d.since(0); !slices.Equal(got, want) {
		t.Errorf("%s: written %q, want %q", t.Name(), got, want)
	}
}

func noop(index uint64) []*raft.Log {
	return []*raft.Log{{Index: index, Term: 6, Type: raft.LogNoop}}
}

func command(index uint64) []*raft.Log {
	return []*raft.Log{{Index: index, Term: 6, Type: raft.LogCommand}}
}

// TestCandidateRecordsOnce: a candidate's term is written together with its vote for itself. The terms of other nodes
// are written alone.
func TestCandidateRecordsOnce(t *testing.T) {
	state, voters := raft.Follower, 3
	d, s := newDiary(t, &state, &voters)
	setTerm(t, s, 5)
	state = raft.Candidate
	setTerm(t, s, 6)
	wantWrites(t, d, "CurrentTerm 5")
	vote(t, s, 6, "me")
	mustSettle(t, s)
	state = raft.Follower
	setTerm(t, s, 7)
	wantWrites(t, d, "CurrentTerm 5", "term 6, vote 6 for me", "CurrentTerm 7")
}

// TestTermWaitsForItsVote: a term stays pending only while votes are on their way. The first thing that happens after
// that makes it durable.
func TestTermWaitsForItsVote(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(*testing.T, *raftStore)
		want []string
	}{
		"the vote":  {func(t *testing.T, s *raftStore) { vote(t, s, 6, "n2") }, []string{"term 6, vote 6 for n2"}},
		"an answer": {func(t *testing.T, s *raftStore) { mustSettle(t, s) }, []string{"CurrentTerm 6"}},
		"entries": {
			func(t *testing.T, s *raftStore) { mustStore(t, s, command(1)) },
			[]string{"CurrentTerm 6", "entries [1]"},
		},
		"a truncation": {
			func(t *testing.T, s *raftStore) { mustDelete(t, s) },
			[]string{"CurrentTerm 6", "delete 1-2"},
		},
		"a newer term": {
			func(t *testing.T, s *raftStore) { setTerm(t, s, 7); mustSettle(t, s) },
			[]string{"CurrentTerm 7"},
		},
		"its candidacy": {func(t *testing.T, s *raftStore) { candidate(t, s, 7) }, []string{"term 7, vote 7 for me"}},
		"answers, twice": {
			func(t *testing.T, s *raftStore) { mustSettle(t, s); mustSettle(t, s) },
			[]string{"CurrentTerm 6"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, voters := raft.Follower, 3
			d, s := newDiary(t, &state, &voters)
			s.state = func() raft.RaftState { return state }
			s.trackVote(true)
			setTerm(t, s, 6)
			wantWrites(t, d)
			tt.then(t, s)
			wantWrites(t, d, tt.want...)
			s.trackVote(false)
			mustSettle(t, s)
			wantWrites(t, d, tt.want...)
		})
	}
}

func candidate(t *testing.T, s *raftStore, term uint64) {
	s.state = func() raft.RaftState { return raft.Candidate }
	setTerm(t, s, term)
	vote(t, s, term, "me")
	mustSettle(t, s)
}

func mustSettle(t *testing.T, s *raftStore) {
	t.Helper()
	if err := s.flushBeforeReply(); err != nil {
		t.Error(err)
	}
}

func mustStore(t *testing.T, s *raftStore, entries []*raft.Log) {
	t.Helper()
	if err := s.StoreLogs(entries); err != nil {
		t.Error(err)
	}
}

func mustDelete(t *testing.T, s *raftStore) {
	t.Helper()
	if err := s.DeleteRange(1, 2); err != nil {
		t.Error(err)
	}
}

// A term that could not be made durable is not answered for, then or later.
func TestNoAnswerWithoutTheTerm(t *testing.T) {
	state, voters := raft.Follower, 3
	d, s := newDiary(t, &state, &voters)
	s.trackVote(true)
	setTerm(t, s, 6)
	d.fail = errors.New("input/output error")
	for range 2 {
		if s.flushBeforeReply() == nil {
			t.Error("an answer may leave")
		}
	}
}

// TestPendingTerm_WrittenWithoutLaterEvent: the last vote ends while its term is recorded. No later event would write
// the pending term.
func TestPendingTerm_WrittenWithoutLaterEvent(t *testing.T) {
	state, voters := raft.Follower, 3
	d, s := newDiary(t, &state, &voters)
	s.trackVote(true)
	var once sync.Once
	s.state = func() raft.RaftState { // called in the middle
		once.Do(func() { s.trackVote(false) })
		return state
	}
	setTerm(t, s, 6)
	wantWrites(t, d, "CurrentTerm 6")
}

// TestFirstEntryWaitsForTheLeaderStart: a new leader's no-op is written together with its leader-start. No reader gets
// the no-op before that.
func TestFirstEntryWaitsForTheLeaderStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time alone writes the no-op, too
		state, voters := raft.Leader, 3
		d, s := newDiary(t, &state, &voters)
		mustStore(t, s, noop(4))
		var e raft.Log
		if err := s.GetLog(4, &e); err != ErrNoopPending {
			t.Errorf("read before it is durable: %v", err)
		}
		if last, err := s.LastIndex(); last != 4 || err != nil {
			t.Errorf("last index %d, %v", last, err)
		}
		wantWrites(t, d)
		mustStore(t, s, command(5))
		mustSettle(t, s)
		wantWrites(t, d, "entries [4 5]")
		if err := s.GetLog(4, &e); errors.Is(err, ErrNoopPending) {
			t.Error("it still waits")
		}
		mustStore(t, s, command(6))
		mustSettle(t, s)
		wantWrites(t, d, "entries [4 5]", "entries [6]")
	})
}

// TestFirstEntryThatMustNotWait: a follower acknowledges the entries that it stores, so it writes them first. A leader
// that is a majority by itself commits its entries immediately, so it does the same.
func TestFirstEntryThatMustNotWait(t *testing.T) {
	for _, tt := range []struct {
		state  raft.RaftState
		voters int
		entry  []*raft.Log
	}{
		{raft.Follower, 3, noop(4)},
		{raft.Candidate, 3, noop(4)},
		{raft.Leader, 1, noop(4)},
		{raft.Leader, 3, command(4)},
		{raft.Leader, 3, append(noop(4), noop(5)...)},
	} {
		d, s := newDiary(t, &tt.state, &tt.voters)
		mustStore(t, s, tt.entry)
		mustSettle(t, s)
		if got := d.since(0); len(got) != 1 {
			t.Errorf("%v of %d voters, %v: written %q", tt.state, tt.voters, tt.entry[0].Type, got)
		}
	}
}

// Other writes come after a first entry that waits, and time does it, too.
func TestFirstEntryIsWrittenInTheEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(*testing.T, *raftStore)
		want []string
	}{
		"a term": {
			func(t *testing.T, s *raftStore) { setTerm(t, s, 7) },
			[]string{"entries [4]", "CurrentTerm 7"},
		},
		"a vote": {
			func(t *testing.T, s *raftStore) { vote(t, s, 7, "n2") },
			[]string{"entries [4]", "LastVoteCand n2"},
		},
		"a truncation": {func(t *testing.T, s *raftStore) { mustDelete(t, s) }, []string{"entries [4]", "delete 1-2"}},
		"other entries": {
			func(t *testing.T, s *raftStore) { mustStore(t, s, command(9)) },
			[]string{"entries [4]", "entries [9]"},
		},
		"time":         {func(*testing.T, *raftStore) { time.Sleep(noopMaxDelay) }, []string{"entries [4]"}},
		"no more time": {func(_ *testing.T, s *raftStore) { s.close(); time.Sleep(noopMaxDelay) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				state, voters := raft.Leader, 3
				d, s := newDiary(t, &state, &voters)
				mustStore(t, s, noop(4))
				tt.then(t, s)
				synctest.Wait()
				wantWrites(t, d, tt.want...)
			})
		})
	}
}

// TestElectionBlocked_WritesNoSelfVote: a node that must not become a candidate records the term of a candidacy. It
// records no vote for itself, and votes for others.
func TestElectionBlocked_WritesNoSelfVote(t *testing.T) {
	role, voters := raft.Candidate, 1
	d, s := newDiary(t, &role, &voters)
	s.electionBlocked = func() bool { return true }
	vote := func(to []byte) error {
		return errors.Join(s.SetUint64([]byte(keyCurrentTerm), 7), s.SetUint64([]byte(keyLastVoteTerm), 7),
			s.Set([]byte(keyLastVoteCand), to))
	}
	if err := vote(s.self); !errors.Is(err, errElectionBlocked) ||
		!slices.Equal(d.since(0), []string{"CurrentTerm 7"}) {
		t.Errorf("for itself: %v, %v", err, d.since(0))
	}
	role = raft.Follower
	if err := vote([]byte("another")); err != nil ||
		!slices.Equal(d.since(1), []string{"CurrentTerm 7", "LastVoteCand another"}) {
		t.Errorf("for another: %v, %v", err, d.since(1))
	}
}
