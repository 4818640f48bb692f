package raftnode

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// slowDiary is a diary whose writes of entries take a while, and whose entries can be read as soon as they are written.
type slowDiary struct {
	*diary
	kept raft.InmemStore
	free chan struct{} // a write of entries waits for it
}

func newSlowDiary(t *testing.T, state *raft.RaftState, voters *int) (*slowDiary, *raftStore) {
	d, s := newDiary(t, state, voters)
	slow := &slowDiary{d, *raft.NewInmemStore(), make(chan struct{})}
	s.logs = slow
	return slow, s
}

func (d *slowDiary) StoreLogs(entries []*raft.Log) error {
	<-d.free
	if err := d.diary.StoreLogs(entries); err != nil {
		return err
	}
	return d.kept.StoreLogs(entries)
}
func (d *slowDiary) LastIndex() (uint64, error)             { return d.kept.LastIndex() }
func (d *slowDiary) GetLog(index uint64, e *raft.Log) error { return d.kept.GetLog(index, e) }

// ended reports whether the other goroutine has closed done.
func ended(done <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// wantBehind holds that something waits until the disk is free, and what is written then.
func wantBehind(t *testing.T, d *diary, free chan struct{}, then func(), want ...string) {
	t.Helper()
	done := apart(then)
	if ended(done) {
		t.Error("it did not wait")
	}
	wantWrites(t, d)
	close(free)
	if !ended(done) {
		t.Error("it still waits")
	}
	wantWrites(t, d, want...)
}

func apart(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// A leader's entries can be read while they are written, and all else waits for that: what comes after them, answers,
// and acknowledgements of them.
func TestEverythingWaitsForEntriesThatAreWritten(t *testing.T) {
	var s *raftStore
	for name, tt := range map[string]struct {
		then func(*testing.T)
		want []string
	}{
		"more entries": {
			func(t *testing.T) { mustStore(t, s, config(5)) },
			[]string{"entries [4]", "entries [5]"},
		},
		"a truncation": {func(t *testing.T) { mustDelete(t, s) }, []string{"entries [4]", "delete 1-2"}},
		"a term":       {func(t *testing.T) { setTerm(t, s, 7) }, []string{"entries [4]", "CurrentTerm 7"}},
		"its candidacy": {
			func(t *testing.T) { candidate(t, s, 7) },
			[]string{"entries [4]", "term 7, vote 7 for me"},
		},
		"a vote":             {func(t *testing.T) { vote(t, s, 7, "n2") }, []string{"entries [4]", "LastVoteCand n2"}},
		"a term for a vote":  {func(t *testing.T) { s.trackVote(true); setTerm(t, s, 7) }, []string{"entries [4]"}},
		"an answer":          {func(t *testing.T) { mustSettle(t, s) }, []string{"entries [4]"}},
		"an acknowledgement": {func(t *testing.T) { mustBeWritten(t, s, 4) }, []string{"entries [4]"}},
		"a snapshot's end":   {func(t *testing.T) { mustBeWritten(t, s, 9) }, []string{"entries [4]"}},
		"the end":            {func(*testing.T) { s.stopWrites() }, []string{"entries [4]"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				state, voters := raft.Leader, 3
				var d *slowDiary
				d, s = newSlowDiary(t, &state, &voters)
				mustStore(t, s, command(4))
				wantReadable(t, s, 4)
				wantBehind(t, d.diary, d.free, func() { tt.then(t) }, tt.want...)
				if s.inFlightAppend != nil {
					t.Error("the entries are still kept")
				}
			})
		})
	}
}

func mustBeWritten(t *testing.T, s *raftStore, index uint64) {
	t.Helper()
	if err := s.waitAppended(index); err != nil {
		t.Error(err)
	}
}

func wantReadable(t *testing.T, s *raftStore, index uint64) {
	t.Helper()
	var e raft.Log
	if err := s.GetLog(index, &e); err != nil || e.Index != index {
		t.Errorf("entry %d read as %+v, %v", index, e, err)
	}
	if err := s.GetLog(index+1, &e); err != raft.ErrLogNotFound {
		t.Errorf("the entry after the last: %v", err)
	}
	if last, err := s.LastIndex(); last != index || err != nil {
		t.Errorf("last index %d, %v", last, err)
	}
}

func config(index uint64) []*raft.Log {
	return []*raft.Log{{Index: index, Term: 6, Type: raft.LogConfiguration}}
}

// TestOlderEntriesAreWritten: entries are being written. An acknowledgement of older entries is passed on, because
// those are durable here.
func TestOlderEntriesAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Leader, 3
		d, s := newSlowDiary(t, &state, &voters)
		mustStore(t, s, command(4))
		mustBeWritten(t, s, 3)
		wantWrites(t, d.diary)
		close(d.free)
	})
}

// TestWhatIsWrittenFirst: three kinds of entries are written before StoreLogs returns. They are those of a leader that
// is a majority by itself, those of a node that does not lead, and configurations.
func TestWhatIsWrittenFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		state   raft.RaftState
		voters  int
		entries []*raft.Log
	}{
		"a follower's":                  {raft.Follower, 3, command(4)},
		"a candidate's":                 {raft.Candidate, 3, command(4)},
		"a single voter's":              {raft.Leader, 1, command(4)},
		"a configuration":               {raft.Leader, 3, config(4)},
		"a configuration behind others": {raft.Leader, 3, slices.Concat(command(4), config(5))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, s := newSlowDiary(t, &tt.state, &tt.voters)
				done := apart(func() { mustStore(t, s, tt.entries) })
				if ended(done) {
					t.Error("it was not written first")
				}
				close(d.free)
				if !ended(done) {
					t.Error("it still waits")
				}
			})
		})
	}
}

// A new leader's own first entry can be read, and so be sent, once it is written with the leader-start.
func TestFirstEntryIsSentWithTheLeaderStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Leader, 3
		d, s := newSlowDiary(t, &state, &voters)
		mustStore(t, s, noop(4))
		var e raft.Log
		if err := s.GetLog(4, &e); err != ErrNoopPending {
			t.Errorf("read before the leader-start: %v", err)
		}
		mustStore(t, s, command(5))
		if err := s.GetLog(4, &e); err != nil {
			t.Errorf("read while it is written: %v", err)
		}
		wantReadable(t, s, 5)
		for index := uint64(4); index < 6; index++ {
			if e, _ := s.inMemory(index); e == nil || e.Term != 6 {
				t.Errorf("entry %d is %+v", index, e)
			}
		}
		done := apart(func() { mustBeWritten(t, s, 4) })
		if ended(done) {
			t.Error("an acknowledgement of the first entry is handed on")
		}
		close(d.free)
		synctest.Wait()
		wantWrites(t, d.diary, "entries [4 5]")
	})
}

// TestFailedWrite_StopsWrites: after a failed write no write follows, and its entries do not read as missing. No
// acknowledgement of them is passed on.
func TestFailedWrite_StopsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Leader, 3
		d, s := newSlowDiary(t, &state, &voters)
		mustStore(t, s, command(4))
		held := apart(func() {
			if s.waitAppended(4) == nil {
				t.Error("an acknowledgement was handed on")
			}
		})
		answer := apart(func() {
			if s.flushBeforeReply() == nil {
				t.Error("an answer may leave")
			}
		})
		d.diary.mu.Lock()
		d.fail = errors.New("input/output error")
		d.diary.mu.Unlock()
		close(d.free)
		synctest.Wait()
		d.diary.mu.Lock()
		d.fail = nil // a later write would succeed
		d.diary.mu.Unlock()
		if s.StoreLogs(command(5)) == nil || s.StoreLogs(config(5)) == nil || s.DeleteRange(1, 4) == nil {
			t.Error("something was written after it")
		}
		state = raft.Follower
		term := apart(func() { setTerm(t, s, 7); t.Error("the term was recorded") })
		cast := apart(func() { vote(t, s, 7, "n2"); t.Error("the vote was recorded") })
		time.Sleep(time.Hour)
		if ended(held) || ended(answer) || ended(term) || ended(cast) {
			t.Error("it did not wait for the end")
		}
		wantReadable(t, s, 4)
		s.close()
		if !ended(held) || !ended(answer) || !ended(term) || !ended(cast) {
			t.Error("it still waits")
		}
		wantWrites(t, d.diary)
	})
}

// When the library is stopped, what waits for a write ends, and the next run of the library begins after the write.
func TestCloseWhileEntriesAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Leader, 3
		d, s := newSlowDiary(t, &state, &voters)
		mustStore(t, s, command(4))
		held := apart(func() {
			if s.waitAppended(4) == nil {
				t.Error("an acknowledgement was handed on")
			}
		})
		s.close()
		if !ended(held) {
			t.Error("an acknowledgement is still held")
		}
		retired := apart(s.stopWrites)
		if ended(retired) {
			t.Error("the next one may begin before the write has ended")
		}
		close(d.free)
		if !ended(retired) {
			t.Error("it never ends")
		}
		if err := s.flushBeforeReply(); err != nil {
			t.Error(err)
		}
		wantWrites(t, d.diary, "entries [4]")
	})
}

// A term that waits is not recorded once the next run of the library may have begun.
func TestNoTermAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, voters := raft.Follower, 3
		d, s := newSlowDiary(t, &state, &voters)
		s.trackVote(true)
		setTerm(t, s, 7)
		if err := s.acquire(); err != nil { // another caller writes
			t.Fatal(err)
		}
		done := apart(func() {
			if s.flushBeforeReply() == nil {
				t.Error("an answer may leave")
			}
		})
		synctest.Wait()
		s.close()
		s.release()
		if !ended(done) {
			t.Error("it still waits")
		}
		s.stopWrites()
		synctest.Wait()
		wantWrites(t, d.diary)
	})
}
