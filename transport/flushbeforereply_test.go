package transport

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// slowStorage is an end whose storage takes so long to flush, and fails when told to. It counts the votes inside its
// raft.
type slowStorage struct {
	*end
	took   time.Duration
	fail   atomic.Bool
	voting atomic.Int64
}

func (e *end) withSlowStorage(took time.Duration) *slowStorage {
	s := &slowStorage{end: e, took: took}
	e.raft.Bind(s)
	return s
}

func (s *slowStorage) TrackVote(inside bool) {
	if inside {
		s.voting.Add(1)
	} else {
		s.voting.Add(-1)
	}
}

func (s *slowStorage) FlushBeforeReply() error {
	time.Sleep(s.took)
	if s.fail.Load() {
		return errors.New("input/output error")
	}
	return nil
}

// No answer that shows raft's term leaves a node before its delayed writes are durable, nor if they fail.
func TestFlushBeforeReply(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Millisecond
	asks := map[string]func(from, to *end) (ok bool, err error){
		"vote":      func(a, b *end) (bool, error) { r, err := a.vote(b, 6); return r.Granted, err },
		"pre-vote":  func(a, b *end) (bool, error) { r, err := a.preVote(b, 6); return r.Granted, err },
		"append":    func(a, b *end) (bool, error) { r, err := a.append(b, nil); return r.Success, err },
		"heartbeat": func(a, b *end) (bool, error) { r, err := a.heartbeat(b); return r.Success, err },
		"stale snapshot": func(a, b *end) (bool, error) {
			r, err := a.install(b, 50, nil)
			return r.Success, err
		},
		"refused vote": func(a, b *end) (bool, error) {
			b.mayVote = func() bool { return false }
			r, err := a.vote(b, 6)
			return !r.Granted && r.Term == 5, err
		},
		"refused pre-vote": func(a, b *end) (bool, error) {
			b.mayVote = func() bool { return false }
			r, err := a.preVote(b, 6)
			return !r.Granted && r.Term == 5, err
		},
	}
	for name, ask := range asks {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(t *testing.T, ends []*end) {
				n1, n2 := ends[0], ends[1]
				n2.bind()
				storage := n2.withSlowStorage(takes)
				start := time.Now()
				if ok, err := ask(n1, n2); !ok || err != nil || time.Since(start) < takes {
					t.Errorf("%v, %v after %v", ok, err, time.Since(start))
				}
				storage.fail.Store(true)
				if ok, err := ask(n1, n2); ok || err == nil || !strings.Contains(err.Error(), "input/output") {
					t.Errorf("%v, %v though it could not be made durable", ok, err)
				}
			})
		})
	}
}

// The same for a heartbeat that is answered while raft is busy.
func TestProxyAck_IsFlushed(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		release := makeBusy(n1, n2)
		defer close(release)
		storage := n2.withSlowStorage(0)
		if r, err := n1.heartbeat(n2); err != nil || !r.Success {
			t.Fatalf("%+v, %v", r, err)
		}
		storage.fail.Store(true)
		if r, err := n1.heartbeat(n2); err == nil {
			t.Errorf("%+v though it could not be made durable", r)
		}
	})
}

// A term may be held back only while a vote request is inside raft. Pre-votes are not tracked.
func TestVotesAreCountedWhileRaftHasThem(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		n1, n2 := ends[0], ends[1]
		n2.bindOnly()
		voting := &n2.withSlowStorage(0).voting
		inside := map[string]int64{}
		n2.serve(func(rpc raft.RPC) {
			switch rpc.Command.(type) {
			case *raft.RequestVoteRequest:
				inside["vote"] = voting.Load()
			case *raft.RequestPreVoteRequest:
				inside["pre-vote"] = voting.Load()
			}
			answer(&rpc, 5)
		})
		if _, err := n1.preVote(n2, 6); err != nil {
			t.Fatal(err)
		}
		if _, err := n1.vote(n2, 6); err != nil {
			t.Fatal(err)
		}
		if inside["vote"] != 1 || inside["pre-vote"] != 0 || voting.Load() != 0 {
			t.Errorf("inside raft %v, after it %d", inside, voting.Load())
		}
	})
}
