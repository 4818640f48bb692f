package transport

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// commitStep is how many entries Raft applies for one message at most, some milliseconds' work. The library applies all
// that a message commits before it handles the next one: a node that started with a long log would not vote meanwhile.
const commitStep = 64

// commitRest is what a leader has committed beyond the step that Raft got with an append.
type commitRest struct {
	m       incoming
	message raft.AppendEntriesRequest // without entries; it follows the append's last one
	passed  uint64                    // the commit index that Raft has
	commit  uint64                    // the one of the append
}

// firstCommitStep lowers the commit index of an append to one step beyond what Raft has applied. It returns the rest;
// nil if there is none.
func (m incoming) firstCommitStep(c *raft.AppendEntriesRequest) *commitRest {
	applied, _ := m.local.Progress()
	if c.LeaderCommitIndex <= applied+commitStep {
		return nil
	}
	rest := &commitRest{m: m, message: *c, passed: applied + commitStep, commit: c.LeaderCommitIndex}
	if n := len(c.Entries); n > 0 {
		rest.message.PrevLogEntry, rest.message.PrevLogTerm = c.Entries[n-1].Index, c.Entries[n-1].Term
	}
	rest.message.Entries = nil
	c.LeaderCommitIndex = rest.passed
	return rest
}

// step passes the next step to Raft, as an append without entries that the leader could have sent. It reports whether
// there is another one. If Raft no longer follows the leader, or nothing is heard of it, the rest comes from the next
// leader.
func (s *commitRest) step() (more bool) {
	m := s.m
	if !m.senderIsLeader(s.message.Term) || time.Since(m.p.lastContact()) > m.r.t.cfg.TimeoutMin {
		return false
	}
	s.passed = min(s.commit, s.passed+commitStep)
	message := s.message
	message.LeaderCommitIndex = s.passed
	reply := make(chan raft.RPCResponse, 1)
	select {
	case m.r.consumer <- raft.RPC{Command: &message, RespChan: reply}:
	case <-m.r.closed:
		return false
	}
	select {
	case answer := <-reply:
		response, ok := answer.Response.(*raft.AppendEntriesResponse)
		return ok && response.Success && s.passed < s.commit
	case <-m.r.closed:
		return false
	}
}

// commitSteps passes to Raft what appends have committed beyond their first step. The zero value is ready.
type commitSteps struct {
	mu     sync.Mutex
	newest *commitRest // has come since run looked last; nil: none
	runs   bool
}

// run passes a rest to Raft, unless another call does already. That one goes on with the newest rest then.
func (s *commitSteps) run(rest *commitRest) {
	if !s.put(rest) {
		return
	}
	for rest = s.next(nil); rest != nil; rest = s.next(rest) {
		if !rest.step() {
			rest = nil
		}
	}
}

// put notes a rest. It reports whether the caller has to run.
func (s *commitSteps) put(rest *commitRest) (run bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil || s.newest.message.Term < rest.message.Term || s.newest.commit < rest.commit {
		s.newest = rest
	}
	run, s.runs = !s.runs, true
	return run
}

// next returns the rest to go on with; nil if there is none, and the run has ended.
func (s *commitSteps) next(current *commitRest) *commitRest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest != nil {
		current, s.newest = s.newest, nil
	}
	s.runs = current != nil
	return current
}
