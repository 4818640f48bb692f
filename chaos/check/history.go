package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what an operation does to its key.
type Kind string

// The kinds of operations.
const (
	Get    Kind = "get"
	Put    Kind = "put"
	Create Kind = "create" // put if absent
	CAS    Kind = "cas"    // put if the key still holds Expect
	Delete Kind = "delete" // if the key still holds Expect, when that is not ""
)

// Outcome is what a client knows of its operation.
type Outcome string

// The outcomes. An operation that certainly did not happen is not part of a history. If it did happen, reads of its
// value reveal it.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // its condition did not hold, or there was nothing to delete
	Unknown Outcome = "unknown"
)

// Op is one operation on one key. Every value written in a history is different from all others, so that a value
// stands for one revision of its key.
type Op struct {
	Client     int
	Kind       Kind
	Key        string
	Value      string // written or read; "" means absent
	Expect     string // for CAS and Delete
	Outcome    Outcome
	Revision   uint64        // of a completed write; 0: unknown
	Begin, End time.Duration // since the start of the history; End has no meaning if the outcome is unknown
	Node       string        // the node that answered, for reports
	Note       string        // the error, for reports
}

// String is the operation on one line.
func (o Op) String() string {
	sign := ":="
	if o.Kind == Get {
		sign = "="
	}
	s := fmt.Sprintf("%v..%v client %d %s %s %s %q", o.Begin, o.End, o.Client, o.Kind, o.Key, sign, o.Value)
	if o.Expect != "" {
		s += fmt.Sprintf(" if %q", o.Expect)
	}
	return strings.TrimSpace(s + " " + string(o.Outcome) + " " + o.Node + " " + o.Note)
}

// History collects operations from any goroutine.
type History struct {
	mu  sync.Mutex
	ops []Op
}

// Add adds a finished operation.
func (h *History) Add(o Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// Ops returns the operations so far, sorted by start time.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := slices.Clone(h.ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.Begin - b.Begin) })
	return ops
}

// noEnd is the end of an operation whose outcome is unknown: it may still take effect.
const noEnd = int64(1) << 62

// Limits of real time for one key.
const (
	// DecisionLimit is how long a key may take where no test may fail by chance, on a machine that is not slow. A key
	// takes milliseconds. Much longer, and the check would need more memory than a machine has.
	DecisionLimit = time.Minute
	// searchLimit bounds each step of the search for the first violation, which only makes a report clearer.
	searchLimit = 10 * time.Second
)

// Linearizable checks each key's operations as those of one register. A key that is not decided within the limit is a
// violation, too: of Decided. The limit is real time for each key: do not call it in a synctest bubble, where that time
// never passes.
func Linearizable(ops []Op, limit time.Duration) (violations []Violation) {
	byKey := map[string][]Op{}
	for _, o := range ops {
		byKey[o.Key] = append(byKey[o.Key], o)
	}
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		switch checkKey(byKey[k], limit) {
		case porcupine.Illegal:
			violations = append(violations, firstViolation(byKey[k]))
		case porcupine.Unknown:
			violations = append(violations, Violationf(Decided, "%d operations on %s take more than %v to check",
				len(byKey[k]), k, limit))
		}
	}
	return violations
}

// checkKey reports whether some order of one key's operations explains them.
func checkKey(ops []Op, limit time.Duration) porcupine.CheckResult {
	var history []porcupine.Operation
	for _, o := range ops {
		end := int64(o.End)
		if o.Outcome == Unknown {
			if o.Kind == Get {
				continue
			}
			end = noEnd
		}
		history = append(history, porcupine.Operation{
			ClientId: o.Client, Input: o, Call: int64(o.Begin), Output: o,
			Return: end,
		})
	}
	return porcupine.CheckOperationsTimeout(registerModel, history, limit)
}

// shownOps is the number of operations that are shown before an unexplained one.
const shownOps = 12

// firstViolation finds the first response that no order explains. Some order explains all responses before it, together
// with the operations in flight.
func firstViolation(ops []Op) Violation {
	answered := slices.DeleteFunc(slices.Clone(ops), func(o Op) bool { return o.Outcome == Unknown })
	slices.SortStableFunc(answered, func(a, b Op) int { return cmp.Compare(a.End, b.End) })
	first := sort.Search(len(answered),
		func(i int) bool { return checkKey(until(ops, answered[i].End), searchLimit) == porcupine.Illegal })
	if first == len(answered) { // some were not decided in time
		first--
	}
	culprit := answered[first]
	v := Violationf(Linearizability, "no order of the operations on %s explains: %v", culprit.Key, culprit)
	known := until(ops, culprit.End)
	v.Ops = known[max(0, len(known)-shownOps):]
	return v
}

// until returns what was known at a time: operations that end later have an unknown outcome.
func until(ops []Op, end time.Duration) (known []Op) {
	for _, o := range ops {
		if o.Begin > end {
			continue
		}
		if o.Outcome != Unknown && o.End > end {
			o.Outcome, o.Revision = Unknown, 0
		}
		known = append(known, o)
	}
	return known
}

// registerModel is the model of one key. Its state is the value, "" when absent.
var registerModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) { return applyOp(state.(string), input.(Op)) },
}

// applyOp reports whether an operation can have had its outcome on a key with that value. It also returns the value
// after the operation.
func applyOp(value string, o Op) (bool, any) {
	var holds bool
	switch o.Kind {
	case Get:
		return o.Value == value, value
	case Put:
		holds = true
	case Create:
		holds = value == ""
	case CAS:
		holds = value == o.Expect
	case Delete:
		holds = value != "" && (o.Expect == "" || value == o.Expect)
	}
	after := o.Value
	if o.Kind == Delete {
		after = ""
	}
	switch {
	case o.Outcome == Unknown && !holds:
		return true, value
	case o.Outcome == Refused:
		return !holds, value
	}
	return holds, after
}
