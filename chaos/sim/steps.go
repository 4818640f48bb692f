package sim

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Steps are moments inside a node. A fault whose MessageKind is one of them is not injected at Fault.At: it waits from
// then on until a node comes to that step. It lets the first Fault.Bits%4 times pass.
const (
	stepVoteAsked    = "vote-asked"    // a candidate sends the first vote request of a term
	stepVoteStored   = "vote-stored"   // its own vote is durable
	stepVoteAnswered = "vote-answered" // a voter's answer has come
	stepLed          = "led"           // a new leader sends its first message
	stepLedStored    = "led-stored"    // its first entry is durable

	stepRestoreBegun   = "restore-begun"     // a leader has got a backup
	stepSnapshotBegun  = "snapshot-begun"    // a node begins to write a snapshot that ends after its log
	stepSnapshotStored = "snapshot-stored"   // that is durable
	stepSnapshotSent   = "snapshot-sent"     // a leader sends one
	stepEntryStored    = "next-entry"        // the first entry after such a snapshot is durable
	stepRestored       = "restore-answered"  // the call has returned
	stepAbandoned      = "restore-abandoned" // a node removes the snapshot of a restore that was not committed
)

var (
	candidacySteps = []string{stepVoteAsked, stepVoteStored, stepVoteAnswered, stepLed, stepLedStored}
	restoreSteps   = []string{
		stepRestoreBegun, stepSnapshotBegun, stepSnapshotStored, stepSnapshotSent, stepEntryStored, stepRestored,
		stepAbandoned,
	}
)

// In the place of a node in a fault at a step these stand for the node that has come to the step, and for the one to
// which it has just sent something, or from which it has heard.
const (
	StepNode = -100
	StepPeer = -101
)

// stepWait is how long a fault waits for its step.
const stepWait = 3 * time.Second

// stepFaults are faults that wait for a step. They may be used from any goroutine, also with the lock of a disk held.
type stepFaults struct {
	sim *Simulation

	mu      sync.Mutex
	waiting []stepFault
}

type stepFault struct {
	Fault
	times uint64 // that it still lets pass
	until time.Time
}

// add makes a fault wait.
func (s *stepFaults) add(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, stepFault{f, f.Bits % 4, time.Now().Add(stepWait)})
}

// at injects the faults that wait for a step, to which a node has come now.
func (s *stepFaults) at(step string, node, peer *member) {
	s.sim.reach(step)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range s.waiting {
		switch f := &s.waiting[i]; {
		case f.MessageKind != step || now.After(f.until):
		case f.times > 0:
			f.times--
		default:
			s.start(f.Fault, node, peer)
			f.until = time.Time{}
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(f stepFault) bool { return now.After(f.until) })
}

// start injects a fault: in a goroutine of its own, because the caller may hold locks.
func (s *stepFaults) start(f Fault, node, peer *member) {
	place := func(i int) int {
		switch i {
		case StepNode:
			return node.index
		case StepPeer:
			return peer.index
		}
		return i
	}
	f.A, f.B = place(f.A), place(f.B)
	after := f.Delay
	if f.Kind == SlowDisk {
		after = 0
	}
	time.AfterFunc(after, func() {
		if s.sim.unhealed.Err() == nil && s.sim.injectNow(f) {
			s.sim.reach(f.MessageKind + ": " + strings.TrimPrefix(string(f.Kind), "process-"))
		}
	})
}

// reach counts how often the run has come to something that its scenario is for.
func (sim *Simulation) reach(what string) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.reached[what]++
}
