package transport

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// stepper is an end whose Raft applies what appends commit, and keeps their commit indexes.
type stepper struct {
	*end
	commits chan uint64
	before  atomic.Pointer[func(commit uint64) (refuse bool)] // called before an append is answered
}

func newStepper(t *testing.T) (leader *end, follower *stepper) {
	n1 := newEnd(t, "n1")
	patient := func(c *Config, _ *end) { c.TimeoutMin, c.TimeoutMax = time.Minute, 2*time.Minute } // never silent
	n2 := &stepper{end: newEnd(t, "n2", patient), commits: make(chan uint64, 1000)}
	n2.bindOnly()
	n2.applied.Store(10)
	n2.serve(func(rpc raft.RPC) {
		c := rpc.Command.(*raft.AppendEntriesRequest)
		refuse := false
		if f := n2.before.Load(); f != nil {
			refuse = (*f)(c.LeaderCommitIndex)
		}
		n2.commits <- c.LeaderCommitIndex
		if refuse {
			rpc.Respond(&raft.AppendEntriesResponse{Term: c.Term, LastLog: 5}, nil)
			return
		}
		n2.applied.Store(max(n2.applied.Load(), c.LeaderCommitIndex))
		answer(&rpc, n2.term.Load())
	})
	return n1, n2
}

// commit has the leader send an append behind entry prev that commits everything up to there.
func (s *stepper) commit(from *end, prev uint64) {
	s.t.Helper()
	resp, err := from.append(s.end, func(c *raft.AppendEntriesRequest) {
		c.PrevLogEntry, c.PrevLogTerm, c.LeaderCommitIndex, c.Entries = prev, 5, prev, nil
	})
	if err != nil || !resp.Success {
		s.t.Errorf("the append was answered with %+v, %v", resp, err)
	}
}

// ended waits until nothing more is passed to Raft, and returns the commit indexes that it got.
func (s *stepper) ended() (got []uint64) {
	s.t.Helper()
	eventually(s.t, "the steps have ended", func() bool {
		s.raft.commits.mu.Lock()
		defer s.raft.commits.mu.Unlock()
		return !s.raft.commits.runs
	})
	for len(s.commits) > 0 {
		got = append(got, <-s.commits)
	}
	return got
}

// TestCommitSteps: a node that lacks much of what is committed gets the commit index in steps, so that its Raft handles
// vote requests in between. It gets all of it without another message of the leader.
func TestCommitSteps(t *testing.T) {
	t.Parallel()
	n1, n2 := newStepper(t)
	n2.commit(n1, 1000)
	eventually(t, "all is committed", func() bool { return n2.applied.Load() == 1000 })
	got, last := n2.ended(), uint64(10)
	for _, c := range got {
		if c > last+64 {
			t.Errorf("one message commits %d entries, from %d to %d", c-last, last, c)
		}
		last = c
	}
	if !slices.IsSorted(got) {
		t.Errorf("the commit index goes back: %d", got)
	}
	n2.commit(n1, 1000+commitStep)
	if got := n2.ended(); len(got) != 1 || got[0] != 1000+commitStep {
		t.Errorf("an append that commits one step is passed as %d", got)
	}
}

// TestCommitSteps_NewerAppend: what a later append commits follows, in the same run.
func TestCommitSteps_NewerAppend(t *testing.T) {
	t.Parallel()
	n1, n2 := newStepper(t)
	begun, sent := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) }) // the later append may begin with the same step
	hold := func(commit uint64) bool {
		if commit == 10+2*commitStep { // the first step after that of the append
			begin()
			<-sent
		}
		return false
	}
	n2.before.Store(&hold)
	n2.commit(n1, 1000)
	<-begun
	answered := make(chan struct{})
	n2.background(func() { defer close(answered); n2.commit(n1, 2000) })
	close(sent)
	<-answered
	eventually(t, "all is committed", func() bool { return n2.applied.Load() == 2000 })
	n2.ended()
}

// TestCommitSteps_End: the steps end when Raft refuses one, or follows another leader. The next append begins again.
func TestCommitSteps_End(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*stepper) (refuse bool){
		"refused":        func(*stepper) bool { return true },
		"another leader": func(s *stepper) bool { s.leader.Store(cluster.NodeID("n3")); return false },
		"no leader":      func(s *stepper) bool { s.leader.Store(cluster.NodeID("")); return false },
		"a newer term":   func(s *stepper) bool { s.term.Store(6); return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newStepper(t)
			stop := func(commit uint64) bool { return commit == 10+3*commitStep && end(n2) }
			n2.before.Store(&stop)
			n2.commit(n1, 1000)
			eventually(t, "three messages have come", func() bool { return len(n2.commits) >= 3 })
			got := n2.ended()
			if want := []uint64{10 + commitStep, 10 + 2*commitStep, 10 + 3*commitStep}; !slices.Equal(got, want) {
				t.Errorf("raft gets the commit indexes %d, want %d", got, want)
			}
			n2.before.Store(nil)
			n2.leader.Store(cluster.NodeID("n1"))
			n2.term.Store(5)
			n2.commit(n1, 1000)
			eventually(t, "all is committed", func() bool { return n2.applied.Load() == 1000 })
			n2.ended()
		})
	}
}

// TestCommitSteps_RefusedAppend: what a refused append has committed is not passed to Raft.
func TestCommitSteps_RefusedAppend(t *testing.T) {
	t.Parallel()
	n1, n2 := newStepper(t)
	refuse := func(uint64) bool { return true }
	n2.before.Store(&refuse)
	resp, err := n1.append(n2.end, func(c *raft.AppendEntriesRequest) {
		c.PrevLogEntry, c.PrevLogTerm, c.LeaderCommitIndex, c.Entries = 1000, 5, 1000, nil
	})
	if err != nil || resp.Success {
		t.Errorf("the append was answered with %+v, %v", resp, err)
	}
	n2.before.Store(nil)
	n2.commit(n1, 10+commitStep)
	if got, want := n2.ended(), []uint64{10 + commitStep, 10 + commitStep}; !slices.Equal(got, want) {
		t.Errorf("raft gets the commit indexes %d, want %d", got, want)
	}
}

// TestCommitSteps_Busy: the leader's heartbeats are answered while Raft is busy with a step, as with an append.
func TestCommitSteps_Busy(t *testing.T) {
	t.Parallel()
	n1, n2 := newStepper(t)
	hold := func(commit uint64) bool {
		if commit == 10+2*commitStep {
			eventually(t, "raft counts as busy", func() bool {
				inside, _, _ := n2.raft.busy.status(time.Now(), 0, n2.raft.t.params)
				return inside
			})
		}
		return false
	}
	n2.before.Store(&hold)
	n2.commit(n1, 1000)
	eventually(t, "all is committed", func() bool { return n2.applied.Load() == 1000 })
	n2.ended()
}

// TestNewerRest: what a deposed leader has committed does not replace what its successor has, nor a late append the one
// that was sent after it.
func TestNewerRest(t *testing.T) {
	t.Parallel()
	rest := func(term, commit uint64) *commitRest {
		return &commitRest{message: raft.AppendEntriesRequest{Term: term}, commit: commit}
	}
	for _, tt := range []struct{ older, newer *commitRest }{
		{nil, rest(5, 10)}, {rest(5, 10), rest(5, 11)}, {rest(5, 20), rest(6, 10)},
	} {
		if newer(tt.older, tt.newer) != tt.newer || newer(tt.newer, tt.older) != tt.newer {
			t.Errorf("%+v is taken for newer than %+v", tt.older, tt.newer)
		}
	}
	if newer(nil, nil) != nil {
		t.Error("of none, one is the newer")
	}
}
