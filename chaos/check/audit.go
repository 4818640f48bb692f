package check

import (
	"time"
)

// AdminCall is what an operator asked for, one after the other, under a reason of its
// own.
type AdminCall struct {
	Reason     string
	Begin, End time.Duration
	Answered   bool // and its answer said what came of it
	Command    bool // when it happens its record is in the command: in the log when it is answered
}

// AuditEntry is a record of the audit log.
type AuditEntry struct {
	Reason string
	Node   string // that answered
	Result string
}

// done is the result of a call that happened.
const done = "ok"

func auditedInCommand(c AdminCall, r AuditEntry) bool { return c.Command && r.Result == done }

// CheckAuditLog compares the calls of one operator with the audit log, which is in its
// own order. Each call that was answered has its record, and one only; none has
// the same twice: one whose outcome was not known when it was answered has a
// record of that, and another one if it happened. The record of a command stands before those of all later
// calls. One that its node brings to the log may come there after the answer,
// but not after a later one of that node.
func CheckAuditLog(calls []AdminCall, log []AuditEntry) (violations []Violation) {
	broken := func(format string, args ...any) {
		violations = append(violations, Violationf(AuditOnce, format, args...))
	}
	places := map[string][]int{}
	for i, r := range log {
		places[r.Reason] = append(places[r.Reason], i)
	}
	for i, c := range calls {
		at := places[c.Reason]
		if c.Answered && len(at) != 1 {
			broken("%q, answered at %v, has %d records", c.Reason, c.End, len(at))
			continue
		}
		seen := map[AuditEntry]bool{}
		for _, p := range at {
			if seen[log[p]] {
				broken("%q has two records of %s with %s", c.Reason, log[p].Node, log[p].Result)
			}
			seen[log[p]] = true
		}
		if i > 0 && c.Answered && calls[i-1].Answered && len(places[calls[i-1].Reason]) == 1 {
			before, after := places[calls[i-1].Reason][0], at[0]
			ordered := auditedInCommand(calls[i-1], log[before]) || !auditedInCommand(c, log[after]) && log[before].Node == log[after].Node
			if ordered && after < before {
				broken("%q stands before %q, which was answered at %v, before the other was asked", c.Reason, calls[i-1].Reason, calls[i-1].End)
			}
		}
	}
	return violations
}
