package bridge

import (
	"flag"
	"fmt"
	"testing"
)

const processes = 3

// process is one process of the model.
type process struct {
	phase Phase
	state state
}

// fleetState is a fleet with its role and its lock. Owners are indexes from 1; 0: free.
type fleetState struct {
	processes  [processes]process
	role, lock int
}

// model explores all orders of steps and faults of a fleet.
type model struct {
	next      func(p Phase, s state) step
	mayMix    func(phases ...Phase) bool
	weakLock  bool // the system may free the lock while its holder does not know
	lockFirst bool // the first process waits in the wrong order
	seen      map[fleetState]bool
	todo      []fleetState
	before    map[fleetState][]fleetState // by steps of processes, without faults
	twoActing []fleetState
}

// explore returns all states that can be reached from a fleet in one phase.
func (m *model) explore() {
	m.seen, m.before = map[fleetState]bool{}, map[fleetState][]fleetState{}
	var start fleetState
	m.add(start)
	for len(m.todo) > 0 {
		w := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		acting := 0
		for i := range w.processes {
			if w.processes[i].state.acting {
				acting++
			}
			if after, ok := m.step(w, i); ok {
				m.before[after] = append(m.before[after], w)
				m.add(after)
			}
			m.faults(w, i)
		}
		if acting > 1 {
			m.twoActing = append(m.twoActing, w)
		}
	}
}

func (m *model) add(w fleetState) {
	if !m.seen[w] {
		m.seen[w] = true
		m.todo = append(m.todo, w)
	}
}

// step returns the fleetState after the next step of a process; false if it waits.
func (m *model) step(w fleetState, i int) (fleetState, bool) {
	p := &w.processes[i]
	next := m.next(p.phase, p.state)
	if m.lockFirst && i == 0 && p.phase == PhaseBoth && next == campaign && p.state.lock == none {
		next = acquire
	}
	switch next {
	case campaign:
		if w.role != 0 {
			return w, false
		}
		w.role, p.state.role = i+1, held
	case acquire:
		if w.lock != 0 {
			return w, false
		}
		w.lock, p.state.lock = i+1, held
	case lead:
		p.state.acting = true
	case stop:
		p.state.acting = false
	case releaseLock:
		p.state.lock = none
		free(&w.lock, i)
	case resign:
		p.state.role = none
		free(&w.role, i)
	case over:
		p.state.leaving = false
	}
	return w, true
}

func free(owner *int, i int) {
	if *owner == i+1 {
		*owner = 0
	}
}

// faults adds the states after each fault of a process, and after its restart in another phase.
func (m *model) faults(w fleetState, i int) {
	change := func(f func(w *fleetState, p *process)) {
		after := w
		f(&after, &after.processes[i])
		m.add(after)
	}
	s := w.processes[i].state
	if s.role == held { // revoked, or renewals were late
		change(func(_ *fleetState, p *process) { p.state.role = lost })
	}
	if s.lock == held {
		change(func(_ *fleetState, p *process) { p.state.lock = lost })
	}
	if s.role == lost && !s.acting { // expired: the holder's deadline has ended its work before
		change(func(w *fleetState, _ *process) { free(&w.role, i) })
	}
	if s.lock == lost && !s.acting || s.lock == held && m.weakLock {
		change(func(w *fleetState, _ *process) { free(&w.lock, i) })
	}
	if !s.leaving { // it resigns, or its database is away
		change(func(_ *fleetState, p *process) { p.state.leaving = true })
	}
	for p := PhaseOld; p <= PhaseNew; p++ {
		var phases []Phase
		after := w
		after.processes[i] = process{phase: p}
		free(&after.role, i)
		free(&after.lock, i)
		for _, p := range after.processes {
			phases = append(phases, p.phase)
		}
		if m.mayMix(phases...) {
			m.add(after)
		}
	}
}

// stuck returns the states from which no process can come to act without a fault.
func (m *model) stuck() (states []fleetState) {
	alive := map[fleetState]bool{}
	var todo []fleetState
	for w := range m.seen {
		for _, p := range w.processes {
			if p.state.acting && !alive[w] {
				alive[w] = true
				todo = append(todo, w)
			}
		}
	}
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, b := range m.before[w] {
			if !alive[b] {
				alive[b] = true
				todo = append(todo, b)
			}
		}
	}
	for w := range m.seen {
		if !alive[w] {
			states = append(states, w)
		}
	}
	return states
}

func run(change func(m *model)) *model {
	m := &model{next: Phase.next, mayMix: Exclusive}
	change(m)
	m.explore()
	return m
}

func contains(w fleetState, p Phase) bool {
	for i := range w.processes {
		if w.processes[i].phase == p {
			return true
		}
	}
	return false
}

// In a fleet that moves forward and back through neighbouring phases, no two processes ever act, and none waits
// forever.
func TestModel_OneActs(t *testing.T) {
	t.Parallel()
	m := run(func(*model) {})
	t.Logf("%d states", len(m.seen))
	if len(m.seen) < 10000 {
		t.Errorf("only %d states", len(m.seen))
	}
	for _, w := range m.twoActing {
		t.Fatalf("two act: %+v", w)
	}
	for _, w := range m.stuck() {
		t.Fatalf("no process can act: %+v", w)
	}
}

// A lock that is freed before its holder knows endangers a fleet only while it has processes in phase old.
func TestModel_WeakLock(t *testing.T) {
	t.Parallel()
	m := run(func(m *model) { m.weakLock = true })
	if len(m.twoActing) == 0 {
		t.Error("the model does not see a lock that is freed too early")
	}
	for _, w := range m.twoActing {
		acting := w
		for i := range acting.processes {
			if !acting.processes[i].state.acting {
				acting.processes[i].phase = PhaseBoth
			}
		}
		if !contains(acting, PhaseOld) {
			t.Fatalf("two act, none of them in phase old: %+v", w)
		}
	}
}

// The model finds each of these mistakes.
func TestModel_FindsMistakes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *model){
		"a fleet skips a phase": func(m *model) { m.mayMix = func(...Phase) bool { return true } },
		"release before the work has stopped": func(m *model) {
			m.next = func(p Phase, s state) step {
				s.acting = false
				return p.next(s)
			}
		},
		"both needs the role alone": func(m *model) {
			m.next = func(p Phase, s state) step {
				if p == PhaseBoth && s.role == held && s.lock == none && !s.leaving {
					return lead
				}
				return p.next(s)
			}
		},
	} {
		if m := run(change); len(m.twoActing) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
	m := run(func(m *model) { m.lockFirst = true })
	if len(m.stuck()) == 0 {
		t.Error("processes that wait in different orders: not found")
	}
}

func TestExclusive(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phases []Phase
		want   bool
	}{
		{nil, true},
		{[]Phase{PhaseOld}, true},
		{[]Phase{PhaseBoth}, true},
		{[]Phase{PhaseNew, PhaseNew}, true},
		{[]Phase{PhaseOld, PhaseBoth, PhaseOld}, true},
		{[]Phase{PhaseNew, PhaseBoth}, true},
		{[]Phase{PhaseOld, PhaseNew}, false},
		{[]Phase{PhaseNew, PhaseBoth, PhaseOld}, false},
	} {
		if got := Exclusive(c.phases...); got != c.want {
			t.Errorf("%v: %v", c.phases, got)
		}
	}
}

func TestPhase_IsAFlag(t *testing.T) {
	t.Parallel()
	for _, p := range []Phase{PhaseOld, PhaseBoth, PhaseNew} {
		var got Phase
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		fs.TextVar(&got, "election", PhaseOld, "")
		if err := fs.Parse([]string{"-election", p.String()}); err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	if _, err := ParsePhase("half"); err == nil {
		t.Error("a phase that does not exist")
	}
	if s := fmt.Sprint(Phase(7)); s != "phase 7" {
		t.Error(s)
	}
}
