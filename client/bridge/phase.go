package bridge

import (
	"fmt"
	"slices"
	"strings"
)

// Phase is how far a process has moved from the lock to the role.
type Phase int

// The phases of a move, in order. Processes of one fleet may be in the same phase or in two neighbouring ones: see
// Exclusive.
const (
	PhaseOld  Phase = iota // acts while it holds the lock
	PhaseBoth              // acts while it holds the role and the lock
	PhaseNew               // acts while it holds the role
)

var phaseNames = []string{"old", "both", "new"}

// ParsePhase returns the phase of a name: old, both or new.
func ParsePhase(name string) (Phase, error) {
	i := slices.Index(phaseNames, name)
	if i < 0 {
		return 0, fmt.Errorf("phase: must be %s (got %q)", strings.Join(phaseNames, ", "), name)
	}
	return Phase(i), nil
}

// String returns the name of the phase.
func (p Phase) String() string {
	if !p.valid() {
		return fmt.Sprintf("phase %d", int(p))
	}
	return phaseNames[p]
}

// MarshalText implements encoding.TextMarshaler, so that flag.TextVar takes a Phase.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Phase) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePhase(string(text))
	return err
}

func (p Phase) valid() bool { return p >= PhaseOld && p <= PhaseNew }

func (p Phase) needsRole() bool { return p != PhaseOld }
func (p Phase) needsLock() bool { return p != PhaseNew }

// Exclusive reports whether at most one process acts at a time in a fleet whose processes are in these phases. That
// holds if any two of them need the same lock or the same role: there are no processes in phase old beside processes
// in phase new.
func Exclusive(phases ...Phase) bool {
	return !slices.Contains(phases, PhaseOld) || !slices.Contains(phases, PhaseNew)
}

// holding is what a process has of a role or a lock.
type holding int

const (
	none holding = iota
	held
	lost // something may remain to be released
)

// state is what a process has.
type state struct {
	role, lock holding
	leaving    bool // it resigns, or the system of the lock does not respond
	acting     bool // its work may be running
}

// step is what a process does next.
type step int

const (
	campaign    step = iota // wait for the role
	acquire                 // wait for the lock
	lead                    // let the work run
	stop                    // end the tenure, and wait until the work has stopped
	releaseLock             // which ends the wait of the next holder of the role
	resign                  // release the role
	over                    // nothing is left to release
)

// next returns what a process in this phase does next. All processes wait for the role first and for the lock second,
// so they cannot wait for each other. They release what they hold only after their work has stopped.
func (p Phase) next(s state) step {
	if s.leaving || s.role == lost || s.lock == lost {
		switch {
		case s.acting:
			return stop
		case s.lock != none:
			return releaseLock
		case s.role != none:
			return resign
		}
		return over
	}
	switch {
	case p.needsRole() && s.role == none:
		return campaign
	case p.needsLock() && s.lock == none:
		return acquire
	}
	return lead
}
