// Package check holds the invariants of a cluster, as functions over observations. Safety checks logs, terms and
// leaders, Revisions checks revisions, Linearizable checks histories, and Converged checks the final state. The package
// has no clock and no node, so simulations and real processes share it.
package check

import (
	"fmt"
	"maps"
	"sync"

	"northstar/cluster"
)

// The invariants, as a Violation names them.
const (
	OneLeader             = "one leader per term"
	TermGrows             = "terms never go back"
	LogMatching           = "log matching"
	LeaderCompleteness    = "leader completeness"
	StateMachineSafety    = "state machine safety"
	SameState             = "equal states at equal index"
	RevisionsGrow         = "revisions only grow"
	FreshReads            = "no stale reads"
	Linearizability       = "linearizability"
	Decided               = "linearizability is decided"
	Convergence           = "convergence after healing"
	Idempotency           = "an idempotent write happens once"
	WatchOrder            = "a watch shows each change once, in order"
	OneHolder             = "mutual exclusion and increasing fencing tokens"
	Fencing               = "stale fencing tokens are rejected"
	SessionsLive          = "renewed sessions stay alive"
	TransferReachesTarget = "successful transfer reaches its target"
	CutOffLeaderStepsDown = "partitioned leader steps down"
	Liveness              = "liveness: an electable majority elects a leader"
	NoUnexpectedExit      = "no unexpected node exit"
	OnlyDocumentedErrors  = "only documented errors"
	NoNeedlessElection    = "no needless election"
	OneLease              = "no two leases at the same time"
	TakeoverBound         = "role takeover within TTL + 1 s"
	AuditOnce             = "exactly one audit record per admin call, in order"
	AttachedSessionEnds   = "attached session ends on disconnect"
	OldGenerationExcluded = "old generation is excluded after recovery"
	DurableAnswers        = "no answer before the term is durable"
	AtomicTransactions    = "a transaction changes all of its keys or none"
	OneHistory            = "all reads and watches show one history"
	LeasesLive            = "renewed leases live for their TTL"
	CompactedIsRefused    = "compacted revisions are refused, and no others"
)

// Invariants lists all invariants.
var Invariants = []string{
	OneLeader, TermGrows, LogMatching, LeaderCompleteness, StateMachineSafety, SameState, RevisionsGrow,
	FreshReads, Linearizability, Decided, Convergence, Idempotency, WatchOrder, OneHolder, Fencing, SessionsLive,
	TransferReachesTarget,
	CutOffLeaderStepsDown, Liveness, NoNeedlessElection, OneLease, TakeoverBound, AuditOnce, AttachedSessionEnds,
	OldGenerationExcluded, NoUnexpectedExit, OnlyDocumentedErrors, DurableAnswers, AtomicTransactions, OneHistory,
	LeasesLive, CompactedIsRefused,
}

// Violation is one violated invariant.
type Violation struct {
	Invariant string // one of the constants above
	Detail    string // nodes, term and index
	Ops       []Op   // the operations that show it, if any
}

// Violationf is a violation of an invariant, with a formatted detail.
func Violationf(invariant, format string, args ...any) Violation {
	return Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
}

// Error names the invariant and the detail.
func (v Violation) Error() string { return v.Invariant + " violated: " + v.Detail }

// Entry is a log entry, reduced to what the invariants need.
type Entry struct {
	Index, Term uint64
	Sum         uint64 // hash of type and data
}

// TermAt returns the term of a node's entry at index. ok is false if its log has no such entry; compacted reports
// whether a snapshot replaced the entry.
type TermAt func(index uint64) (term uint64, ok, compacted bool)

// completenessDepth is the number of newest committed entries that a new leader's log is checked for. Log matching
// covers the older ones.
const completenessDepth = 64

// Safety checks Raft's own properties over observations of all nodes. Its methods may be called from any goroutine and
// do not block. OnLeader calls its TermAt without holding the checker's lock.
type Safety struct {
	onViolation func(Violation)

	mu         sync.Mutex
	leaders    map[uint64]cluster.NodeID // by term
	terms      map[cluster.NodeID]uint64
	maxTerm    uint64
	leaderTerm uint64 // the newest term with a leader
	written    map[place]written
	committed  map[uint64]commit // by index
	maxCommit  uint64
	applied    map[cluster.NodeID]uint64 // the highest applied index
	states     map[uint64]stateAt        // by applied index
}

type place struct{ index, term uint64 }

type written struct {
	sum, prevTerm uint64
	prevKnown     bool
	by            cluster.NodeID
}

type commit struct {
	index, term, sum uint64
	seenIn           uint64 // the newest term with a leader when the commit was observed
	by               cluster.NodeID
}

type stateAt struct {
	revision, sum uint64
	by            cluster.NodeID
}

// NewSafety returns a checker that calls report for each violation. report must not block or call the checker, and may
// be called concurrently.
func NewSafety(report func(Violation)) *Safety {
	return &Safety{
		onViolation: report,
		leaders:     map[uint64]cluster.NodeID{}, terms: map[cluster.NodeID]uint64{},
		written: map[place]written{}, committed: map[uint64]commit{}, applied: map[cluster.NodeID]uint64{},
		states: map[uint64]stateAt{},
	}
}

func (s *Safety) report(invariant, format string, args ...any) {
	s.onViolation(Violationf(invariant, format, args...))
}

// OnLeader records that a node acts as the leader of a term, and reports whether this was the first observation. At the
// first observation it checks that the leader's log holds what was committed before.
func (s *Safety) OnLeader(node cluster.NodeID, term uint64, log TermAt) bool {
	s.mu.Lock()
	other, known := s.leaders[term]
	if !known {
		s.leaders[term] = node
		s.maxTerm, s.leaderTerm = max(s.maxTerm, term), max(s.leaderTerm, term)
	}
	must := s.committedBefore(term, known)
	s.mu.Unlock()

	if known && other != node {
		s.report(OneLeader, "%s and %s both lead term %d", other, node, term)
	}
	for _, c := range must {
		got, ok, compacted := log(c.index)
		if compacted {
			break
		}
		if !ok || got != c.term {
			s.report(LeaderCompleteness,
				"%s leads term %d, and where %s had applied entry %d of term %d it has one of term %d (0: none)", node,
				term, c.by, c.index, c.term, got)
			break
		}
	}
	return !known
}

// committedBefore returns the newest entries that a leader of that term must hold, newest first. An entry first
// observed in or after the term may have been committed by a later leader. An earlier leader need not have it. A
// candidate commits nothing, so its term does not count.
func (s *Safety) committedBefore(term uint64, known bool) (must []commit) {
	if known {
		return nil
	}
	for i := s.maxCommit; i > 0 && i+completenessDepth > s.maxCommit; i-- {
		if c, known := s.committed[i]; known && c.seenIn < term {
			must = append(must, c)
		}
	}
	return must
}

// Term records which term a node is in.
func (s *Safety) Term(node cluster.NodeID, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.terms[node]; term < last {
		s.report(TermGrows, "%s was in term %d and is in term %d", node, last, term)
	}
	s.terms[node] = term
	s.maxTerm = max(s.maxTerm, term)
}

// Wiped forgets all observations of a node that lost its disk.
func (s *Safety) Wiped(node cluster.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.terms, node)
	delete(s.applied, node)
}

// OnQuorumLost records that only these nodes are left, permanently. Entries that none of them has applied may be lost
// and replaced. Entries that one of them has applied must stay.
func (s *Safety) OnQuorumLost(left ...cluster.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keep uint64
	for _, id := range left {
		keep = max(keep, s.applied[id])
	}
	maps.DeleteFunc(s.committed, func(i uint64, _ commit) bool { return i > keep })
	maps.DeleteFunc(s.states, func(i uint64, _ stateAt) bool { return i > keep })
	s.maxCommit = min(s.maxCommit, keep)
}

// OnEntriesStored records that entries with consecutive indexes have become durable on a node. prevTerm is the term of
// the entry before the first, 0 if unknown. Two entries with the same index and term must be equal and follow entries
// of equal terms. By induction, all entries before them are equal too.
func (s *Safety) OnEntriesStored(node cluster.NodeID, prevTerm uint64, entries []Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		p := place{e.Index, e.Term}
		w, known := s.written[p]
		switch {
		case !known:
			w = written{sum: e.Sum, prevTerm: prevTerm, prevKnown: prevTerm != 0, by: node}
		case w.sum != e.Sum:
			s.report(LogMatching, "%s and %s have different entries %d of term %d", w.by, node, e.Index, e.Term)
		case w.prevKnown && prevTerm != 0 && w.prevTerm != prevTerm:
			s.report(LogMatching, "entry %d of term %d follows one of term %d on %s and one of term %d on %s", e.Index,
				e.Term, w.prevTerm, w.by, prevTerm, node)
		case !w.prevKnown && prevTerm != 0:
			w.prevTerm, w.prevKnown = prevTerm, true
		}
		s.written[p] = w
		prevTerm = e.Term
	}
}

// Applied records that a node has applied an entry of its log.
func (s *Safety) Applied(node cluster.NodeID, e Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied[node] = max(s.applied[node], e.Index)
	c, known := s.committed[e.Index]
	if !known {
		s.committed[e.Index] = commit{index: e.Index, term: e.Term, sum: e.Sum, seenIn: s.leaderTerm, by: node}
		s.maxCommit = max(s.maxCommit, e.Index)
		return
	}
	if c.term != e.Term || c.sum != e.Sum {
		s.report(StateMachineSafety, "entry %d: %s applied that of term %d, %s that of term %d", e.Index, c.by, c.term,
			node, e.Term)
	}
}

// State records the content of a node's state machine after it applied index.
func (s *Safety) State(node cluster.NodeID, index, revision, sum uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got, known := s.states[index]
	if !known {
		s.states[index] = stateAt{revision: revision, sum: sum, by: node}
		return
	}
	if got.revision != revision || got.sum != sum {
		s.report(SameState, "at index %d %s is at revision %d (%x), %s at revision %d (%x)", index, got.by,
			got.revision, got.sum, node, revision, sum)
	}
}

// Elections returns the number of terms that had a leader.
func (s *Safety) Elections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leaders)
}

// MaxTerm returns the newest term observed on any node.
func (s *Safety) MaxTerm() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxTerm
}

// Transfer begins to watch a transfer. arrived reports whether the target has led since: in the newest term that had a
// leader by now, or in a later one. A candidate may be in a newer term already, whose election it does not win.
func (s *Safety) Transfer(target cluster.NodeID) (arrived func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.leaderTerm
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for term, leader := range s.leaders {
			if term >= since && leader == target {
				return true
			}
		}
		return false
	}
}

// MaxCommit returns the highest index observed as committed.
func (s *Safety) MaxCommit() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxCommit
}
