package transport

import (
	"cmp"
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
// there is another one. If Raft no longer follows the leader, or nothing is heard of it, the rest comes with the
// next append: a leader sends one every 50 to 100 ms at least.
func (s *commitRest) step() (more bool) {
	m := s.m
	heard := m.r.t.lastLeaderContact()
	if !m.senderIsLeader(s.message.Term) || heard.Leader != m.p.id ||
		time.Since(heard.At) > m.r.t.cfg.TimeoutMin/2 {
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
	op := &operation{}
	m.r.busy.enter(op, time.Now())
	defer m.r.busy.leave(op)
	select {
	case answer := <-reply:
		return accepted(answer) && s.passed < s.commit
	case <-m.r.closed:
		return false
	}
}

// accepted reports whether Raft has accepted an append.
func accepted(answer raft.RPCResponse) bool {
	response, ok := answer.Response.(*raft.AppendEntriesResponse)
	return ok && response.Success
}

// newer returns the rest of the later term, or that which commits more; nil if both are.
func newer(a, b *commitRest) *commitRest {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case cmp.Or(cmp.Compare(a.message.Term, b.message.Term), cmp.Compare(a.commit, b.commit)) < 0:
		return b
	}
	return a
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
	s.newest = newer(s.newest, rest)
	run, s.runs = !s.runs, true
	return run
}

// next returns the rest to go on with; nil if there is none, and the run has ended.
func (s *commitSteps) next(current *commitRest) *commitRest {
	s.mu.Lock()
	defer s.mu.Unlock()
	current, s.newest = newer(current, s.newest), nil
	s.runs = current != nil
	return current
}
