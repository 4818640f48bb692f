package check

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// log is a node's log in a test: the term of each entry from index 1, 0 where
// a snapshot took its place.
type log []uint64

func (l log) at(i uint64) (term uint64, ok, compacted bool) {
	if i == 0 || i > uint64(len(l)) {
		return 0, false, false
	}
	return l[i-1], l[i-1] != 0, l[i-1] == 0
}

func commits(s *Safety, terms ...uint64) {
	for i, t := range terms {
		s.Applied("n1", Entry{Index: uint64(i + 1), Term: t, Sum: t})
	}
}

// TestTransferArrives: a transfer has arrived when its target leads, also if a candidate is in a later term.
func TestTransferArrives(t *testing.T) {
	s := NewSafety(func(v Violation) { t.Error(v) })
	s.OnLeader("n1", 3, log{}.at)
	s.OnLeader("n3", 2, log{}.at)
	toN2, toN3 := s.Transfer("n2"), s.Transfer("n3")
	s.Term("n3", 5) // a candidate
	late := s.Transfer("n2")
	if toN2() || toN3() || late() {
		t.Error("arrived before the target leads; n3 has led before n1")
	}
	s.OnLeader("n2", 4, log{}.at)
	if !toN2() || toN3() || !late() {
		t.Errorf("n2 leads term 4: %v, %v, %v", toN2(), toN3(), late())
	}
}

func TestSafety(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(s *Safety)
		want string // the violated invariant; "" for none
	}{
		"one leader": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			s.OnLeader("n1", 1, log{}.at)
			s.OnLeader("n2", 2, log{}.at)
		}, ""},
		"without what was committed while it stood": {func(s *Safety) {
			s.OnLeader("n1", 2, log{}.at)
			s.Term("n2", 3) // a candidate commits nothing
			s.Applied("n1", Entry{Index: 1, Term: 2})
			s.OnLeader("n2", 3, log{}.at)
		}, LeaderCompleteness},
		"two leaders": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			s.OnLeader("n2", 1, log{}.at)
		}, OneLeader},
		"complete": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.OnLeader("n2", 2, log{1, 1, 1, 1}.at)
		}, ""},
		"compacted": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.OnLeader("n2", 2, log{0, 0, 0}.at)
		}, ""},
		"committed entry missing": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.OnLeader("n2", 2, log{1, 1}.at)
		}, LeaderCompleteness},
		"committed entry replaced": {func(s *Safety) {
			s.OnLeader("n1", 2, log{}.at)
			commits(s, 1, 2)
			s.OnLeader("n2", 3, log{1, 1}.at)
		}, LeaderCompleteness},
		"committed by a later leader": {func(s *Safety) {
			s.OnLeader("n1", 3, log{}.at)
			commits(s, 1, 1, 3)
			s.OnLeader("n2", 2, log{1, 1}.at)
		}, ""},
		"term forward": {func(s *Safety) { s.Term("n1", 1); s.Term("n2", 9); s.Term("n1", 5); s.Term("n1", 5) }, ""},
		"term back":    {func(s *Safety) { s.Term("n1", 5); s.Term("n1", 4) }, TermGrows},
		"wiped":        {func(s *Safety) { s.Term("n1", 5); s.Wiped("n1"); s.Term("n1", 1) }, ""},
		"lost with who had applied it": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.Applied("n2", Entry{Index: 1, Term: 1, Sum: 1})
			s.State("n1", 3, 3, 3)
			s.OnQuorumLost("n2")
			s.OnLeader("n2", 9, log{1, 1}.at)
			s.Applied("n2", Entry{Index: 2, Term: 9, Sum: 9})
			s.State("n2", 3, 9, 9)
		}, ""},
		"lost though one that is left had applied it": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.Applied("n2", Entry{Index: 2, Term: 1, Sum: 1})
			s.OnQuorumLost("n2")
			s.OnLeader("n2", 9, log{1}.at)
		}, LeaderCompleteness},
		"replaced though one that is left had applied it": {func(s *Safety) {
			s.OnLeader("n1", 1, log{}.at)
			commits(s, 1, 1, 1)
			s.Applied("n2", Entry{Index: 2, Term: 1, Sum: 1})
			s.OnQuorumLost("n2")
			s.Applied("n2", Entry{Index: 2, Term: 9, Sum: 9})
		}, StateMachineSafety},
		"logs match": {func(s *Safety) {
			s.OnEntriesStored("n1", 0, []Entry{{1, 1, 10}, {2, 1, 20}, {3, 2, 30}})
			s.OnEntriesStored("n2", 0, []Entry{{1, 1, 10}})
			s.OnEntriesStored("n2", 1, []Entry{{2, 1, 20}, {3, 3, 31}})
			s.OnEntriesStored("n3", 0, []Entry{{3, 2, 30}}) // after a snapshot
			s.OnEntriesStored("n3", 1, []Entry{{3, 2, 30}})
		}, ""},
		"entries differ": {func(s *Safety) {
			s.OnEntriesStored("n1", 0, []Entry{{1, 1, 10}})
			s.OnEntriesStored("n2", 0, []Entry{{1, 1, 11}})
		}, LogMatching},
		"histories differ": {func(s *Safety) {
			s.OnEntriesStored("n1", 1, []Entry{{2, 3, 10}})
			s.OnEntriesStored("n2", 2, []Entry{{2, 3, 10}})
		}, LogMatching},
		"histories differ, the first unknown": {func(s *Safety) {
			s.OnEntriesStored("n0", 0, []Entry{{2, 3, 10}})
			s.OnEntriesStored("n1", 1, []Entry{{2, 3, 10}})
			s.OnEntriesStored("n2", 2, []Entry{{2, 3, 10}})
		}, LogMatching},
		"applied the same": {func(s *Safety) { s.Applied("n1", Entry{1, 1, 1}); s.Applied("n2", Entry{1, 1, 1}) }, ""},
		"applied another": {
			func(s *Safety) { s.Applied("n1", Entry{1, 1, 1}); s.Applied("n2", Entry{1, 2, 1}) },
			StateMachineSafety,
		},
		"equal states": {
			func(s *Safety) { s.State("n1", 7, 3, 1); s.State("n2", 8, 3, 2); s.State("n3", 7, 3, 1) },
			"",
		},
		"states differ":    {func(s *Safety) { s.State("n1", 7, 3, 1); s.State("n2", 7, 3, 2) }, SameState},
		"revisions differ": {func(s *Safety) { s.State("n1", 7, 3, 1); s.State("n2", 7, 4, 1) }, SameState},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := NewSafety(func(v Violation) { got = append(got, v.Invariant) })
			c.run(s)
			if strings.Join(got, ",") != c.want {
				t.Errorf("violations: %q, want %q", got, c.want)
			}
		})
	}
}

func TestRevisions(t *testing.T) {
	var got []string
	r := NewRevisions(func(v Violation) { got = append(got, v.Invariant) })
	w1, w2, read := r.Begin(), r.Begin(), r.Begin()
	r.Wrote("w1", w1, 5)
	r.Wrote("w2", w2, 4)  // the two writes were concurrent
	r.Read("r1", read, 0) // it began before both writes
	if len(got) > 0 {
		t.Fatalf("violations: %q", got)
	}
	r.Read("r2", r.Begin(), 4)
	r.Wrote("w3", r.Begin(), 5)
	if want := FreshReads + "," + RevisionsGrow; strings.Join(got, ",") != want {
		t.Errorf("violations: %q, want %q", got, want)
	}
	if r.Acknowledged() != 5 {
		t.Errorf("acknowledged %d", r.Acknowledged())
	}
}

func TestConverged(t *testing.T) {
	good := []NodeState{{"n1", "n1", 9, 4, 7}, {"n2", "n1", 9, 4, 7}}
	if why := Converged(good, 4); why != "" {
		t.Error(why)
	}
	for name, spoil := range map[string]func(f []NodeState){
		"no leader":     func(f []NodeState) { f[1].Leader = "" },
		"two leaders":   func(f []NodeState) { f[1].Leader = "n2" },
		"lag":           func(f []NodeState) { f[1].Applied = 8 },
		"other state":   func(f []NodeState) { f[1].StateHash = 8 },
		"lost the last": func(f []NodeState) { f[0].Revision, f[1].Revision = 3, 3 },
	} {
		f := append([]NodeState(nil), good...)
		spoil(f)
		if Converged(f, 4) == "" {
			t.Errorf("%s: taken for converged", name)
		}
	}
}

func TestLinearizable(t *testing.T) {
	op := func(begin, end int, kind Kind, value, expect string, outcome Outcome) Op {
		return Op{
			Client: begin, Kind: kind, Key: "k", Value: value, Expect: expect, Outcome: outcome,
			Begin: time.Duration(begin), End: time.Duration(end),
		}
	}
	for name, c := range map[string]struct {
		ops  []Op
		want bool
	}{
		"write and read": {[]Op{op(1, 2, Put, "a", "", Done), op(3, 4, Get, "a", "", Done)}, true},
		"stale read": {[]Op{
			op(1, 2, Put, "a", "", Done), op(3, 4, Put, "b", "", Done),
			op(5, 6, Get, "a", "", Done),
		}, false},
		"read during the write": {[]Op{
			op(1, 2, Put, "a", "", Done), op(3, 9, Put, "b", "", Done),
			op(5, 6, Get, "a", "", Done),
		}, true},
		"lost write":        {[]Op{op(1, 2, Put, "a", "", Done), op(3, 4, Get, "", "", Done)}, false},
		"unknown, happened": {[]Op{op(1, 0, Put, "a", "", Unknown), op(3, 4, Get, "a", "", Done)}, true},
		"unknown, did not":  {[]Op{op(1, 0, Put, "a", "", Unknown), op(3, 4, Get, "", "", Done)}, true},
		"unknown, came and went": {[]Op{
			op(1, 0, Put, "a", "", Unknown), op(3, 4, Get, "a", "", Done),
			op(5, 6, Get, "", "", Done),
		}, false},
		"a failed one happened": {[]Op{op(3, 4, Get, "x", "", Done)}, false},
		"cas": {[]Op{
			op(1, 2, Put, "a", "", Done), op(3, 4, CAS, "b", "a", Done),
			op(5, 6, CAS, "c", "a", Refused), op(7, 8, Get, "b", "", Done),
		}, true},
		"cas on another value": {[]Op{op(1, 2, Put, "a", "", Done), op(3, 4, CAS, "b", "z", Done)}, false},
		"cas wrongly refused":  {[]Op{op(1, 2, Put, "a", "", Done), op(3, 4, CAS, "b", "a", Refused)}, false},
		"unknown cas without success": {[]Op{
			op(1, 2, Put, "a", "", Done), op(3, 0, CAS, "b", "z", Unknown),
			op(5, 6, Get, "b", "", Done),
		}, false},
		"two creations": {[]Op{op(1, 9, Create, "a", "", Done), op(2, 8, Create, "b", "", Done)}, false},
		"delete": {[]Op{
			op(1, 2, Create, "a", "", Done), op(3, 4, Delete, "", "a", Done),
			op(5, 6, Get, "", "", Done), op(7, 8, Delete, "", "", Refused),
		}, true},
		"delete of nothing":  {[]Op{op(1, 2, Delete, "", "", Done)}, false},
		"a read that failed": {[]Op{op(1, 2, Put, "a", "", Done), op(3, 4, Get, "zzz", "", Unknown)}, true},
	} {
		var h History
		for i := len(c.ops) - 1; i >= 0; i-- {
			h.Add(c.ops[i])
		}
		v := Linearizable(h.Ops(), DecisionLimit)
		if (len(v) == 0) != c.want || len(v) > 0 && v[0].Invariant != Linearizability {
			t.Errorf("%s: violations %v", name, v)
		}
	}
}

// A key whose operations take too long to check is a violation.
func TestLinearizable_Undecided(t *testing.T) {
	t.Parallel()
	ops := []Op{{Client: 99, Kind: Get, Key: "k", Value: "never written", Outcome: Done, Begin: 3, End: 4}}
	for i := range 64 { // any order of them is possible, and none explains the read
		ops = append(ops, Op{Client: i, Kind: Put, Key: "k", Value: fmt.Sprint(i), Outcome: Done, Begin: 1, End: 2})
	}
	if v := Linearizable(ops, time.Nanosecond); len(v) != 1 || v[0].Invariant != Decided {
		t.Errorf("violations %v", v)
	}
}
