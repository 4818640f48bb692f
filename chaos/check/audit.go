package check

import (
	"time"
)

// AdminCall is one call of an operator. Calls are sequential, and each has a unique reason.
type AdminCall struct {
	Reason     string
	Begin, End time.Duration
	Answered   bool // the response stated the result
	Command    bool // its record is part of the command, so it is in the log before the response
}

// AuditEntry is a record of the audit log.
type AuditEntry struct {
	Reason string
	Node   string // the node that answered
	Result string
}

// done is the result of a call that was executed.
const done = "ok"

func auditedInCommand(c AdminCall, r AuditEntry) bool { return c.Command && r.Result == done }

// CheckAuditLog compares the calls of one operator with the audit log, which is in log order.
//
// Each answered call has exactly one record. A call with an unknown outcome has a record of that outcome, and a second
// record if it was executed. No two records are equal.
//
// The record of a command precedes the records of all later calls. A record that a node reports to the log may arrive
// after the response, but not after a later record of the same node.
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
			ordered := auditedInCommand(calls[i-1], log[before]) || !auditedInCommand(c, log[after]) &&
				log[before].Node == log[after].Node
			if ordered && after < before {
				broken("%q stands before %q, which was answered at %v, before the other was asked", c.Reason,
					calls[i-1].Reason, calls[i-1].End)
			}
		}
	}
	return violations
}
