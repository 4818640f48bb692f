package explore

import (
	"io"
	"strings"
	"testing"

	"northstar/chaos/testenv"
)

// Every model holds its properties up to the depth that takes seconds, and every kind of step happens in some model.
func TestModels(t *testing.T) {
	var happened [lastVerb + 1]int
	ran := 0 // fewer than all with -run
	for _, m := range Models() {
		t.Run(m.Name, func(t *testing.T) {
			depth := m.Depth
			if depth > 0 && testenv.Repeats(3) < 3 {
				depth-- // the last step has most of the states
			}
			r, err := Run(t.Context(), m, Limit{Depth: depth})
			if err != nil {
				t.Fatal(err)
			}
			if r.Print(t.Output()); r.Violated != "" || r.Overfull > 0 {
				t.Error("violated, or not every state was continued")
			}
			if r.Complete != (m.Depth == 0) || m.FairEvery > 0 && r.Fair == 0 || m.Name != m.find(t).Name {
				t.Errorf("%+v", r)
			}
			ran++
			for verb, n := range r.happened {
				happened[verb] += n
			}
		})
	}
	for verb := deliver; verb <= lastVerb; verb++ {
		if ran == len(Models()) && happened[verb] == 0 {
			t.Errorf("step %d never happens", verb)
		}
	}
}

func (m *Model) find(t *testing.T) Model {
	t.Helper()
	found, err := Find(m.Name)
	if err != nil {
		t.Error(err)
	}
	return found
}

// small is a model with few states, in which the nodes are alike.
func small() Model {
	return Model{Name: "small", MaxTerm: 2, Crashes: 1, Priorities: equal}
}

// A state and the same one with other names are one state: the search finds as many as there are without the names.
func TestSymmetry(t *testing.T) {
	t.Parallel()
	timed := Model{MaxTerm: 2, Requests: 1, TicksPerTimeout: 1, Lease: true, Leaderless: true, Priorities: equal}
	for depth, m := range map[int]Model{100: small(), 6: timed} {
		first := m.start()
		named, unnamed := map[key]bool{first.key(false): true}, map[key]bool{first.key(true): true}
		level := []state{first}
		for range depth {
			var next []state
			for i := range level {
				m.next(&level[i], func(_ action, s *state) {
					if k := s.key(false); !named[k] {
						named[k], unnamed[s.key(true)] = true, true
						next = append(next, *s)
					}
				})
			}
			level = next
		}
		r, err := Run(t.Context(), m, Limit{Depth: depth})
		if err != nil || r.States != len(unnamed) || 2*len(named) < 3*len(unnamed) {
			t.Errorf("%v, %v; %d states, %d without names", r, err, len(named), len(unnamed))
		}
	}
}

// The steps to a state lead to that state again.
func TestReplay(t *testing.T) {
	t.Parallel()
	r := search{m: small(), seen: map[key]struct{}{}, origins: []origin{{-1, action{}}}}
	level := []found{{r.m.start(), 0}}
	for range 5 {
		var err error
		if level, err = r.expand(t.Context(), level); err != nil {
			t.Fatal(err)
		}
		for _, f := range level {
			states := r.m.replay(r.path(f.index))
			if last := states[len(states)-1]; last != f.state {
				t.Fatalf("another state: %s", strings.Join(r.trace(f.index), "\n"))
			}
			for _, line := range r.trace(f.index) {
				if strings.Contains(line, "  ,") || strings.HasPrefix(line, " ") {
					t.Errorf("%q", line)
				}
			}
		}
	}
}

// A limit of states ends the search after the step that reaches it.
func TestLimit(t *testing.T) {
	t.Parallel()
	r, err := Run(t.Context(), small(), Limit{States: 100})
	if err != nil || r.Complete || r.States < 100 || r.States > 2000 {
		t.Errorf("%v, %v", r, err)
	}
	r.Print(io.Discard)
}

// Each property can be broken.
func TestProperties(t *testing.T) {
	t.Parallel()
	for want, breaks := range map[broken]func(*Model, *state){
		twoLeaders: func(_ *Model, s *state) { s.ghost.elected(2, s.node(2)) },
		twoVotes: func(_ *Model, s *state) {
			s.ghost.left(&message{kind: voteResponse, from: 3, to: 2, ok: true, index: 1})
		},
		committedLost: func(_ *Model, s *state) {
			s.node(2).term, s.node(2).last = 2, 0
			clear(s.node(2).log[:])
			s.ghost.elected(2, s.node(2))
		},
		leaseOverlap: func(m *Model, s *state) {
			m.Lease, m.TicksPerTimeout = true, 1
			n := s.node(2)
			n.role, n.term, n.log[1], n.last, n.commit = leader, 2, 2, 2, 2
		},
		noLeader: func(m *Model, s *state) {
			m.Idle = 1
			for i := range s.nodes {
				s.nodes[i].stepDown()
				s.nodes[i].wiped = i > 0
			}
			s.ghost.broken = m.continues(*s)
		},
	} {
		m := small()
		s := m.start()
		if got := m.check(&s); got != intact {
			t.Errorf("the first state: %s", properties[got])
		}
		if breaks(&m, &s); m.check(&s) != want {
			t.Errorf("%s, want %s", properties[m.check(&s)], properties[want])
		}
	}
}
