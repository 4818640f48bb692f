package traffic

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
)

// operator makes admin calls, one after the other. Each has a unique reason, which identifies its audit record.
type operator struct {
	user
	name    string
	refused bool // all its calls are refused, with short pauses
	calls   []check.AdminCall
}

// maxCalls is the number of calls of one operator. The audit log must keep the records of all of them.
const maxCalls = 2000

// startOperators starts one operator that makes calls of every kind. The other operators make calls that are refused. A
// node sends the records of refused calls to the log later, so a leader rarely dies while it receives them.
func (t *Traffic) startOperators() {
	for i := range t.cfg.Operators {
		o := &operator{
			user: t.newUser(3000 + uint64(i)), name: fmt.Sprintf("operator %d %d", t.cfg.Seed, i), refused: i > 0,
		}
		t.operators = append(t.operators, o)
		t.running.Go(o.run)
	}
}

func (o *operator) run() {
	longest := 500
	if o.refused {
		longest = 100
	}
	for o.Pause(time.Duration(o.rand.IntN(longest))*time.Millisecond) && len(o.calls) < maxCalls {
		o.call()
	}
}

// call sends one call to any node.
func (o *operator) call() {
	at, target := o.anyNode(), o.anyNode()
	reason := fmt.Sprintf("%s-%d", o.name, len(o.calls))
	body := map[string]any{"reason": reason, "target_leader_id": o.cluster.Nodes()[target].ID}
	q := post(apiv1.PathTransfer, body, nil)
	kind := o.rand.IntN(8)
	if o.refused {
		kind = 7
	}
	switch kind {
	case 0: // a transfer
	case 1, 2: // the plan of one
		body["dry_run"] = true
	case 3, 4, 5: // a command
		q.Path, q.In = apiv1.PathAuto, map[string]any{"reason": reason, "enabled": true}
	default: // refused
		q.Method, q.Path, q.In = http.MethodDelete, apiv1.PathMembers+"/nobody", map[string]any{"reason": reason}
	}
	call := check.AdminCall{Reason: reason, Begin: o.now(), Command: q.Path == apiv1.PathAuto}
	err := o.askNode(at, 2*o.cfg.Timeout, q)
	call.End = o.now()
	e := asProblem(err)
	call.Answered = err == nil || e != nil && e.Status != 0 && e.Code != cluster.CodeOutcomeUnknown
	o.calls = append(o.calls, call)
}

// CheckAudit compares the operators' calls with the audit log. It waits until the log has a record of every answered
// call, or until the timeout. The operators must have ended.
func (t *Traffic) CheckAudit(within time.Duration) (violations []check.Violation) {
	if len(t.operators) == 0 {
		return nil
	}
	m := t.cluster.Machine("audit")
	defer m.Close()
	for _, o := range t.operators {
		o.machine = m
		for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
			log, err := o.records()
			wrong := check.CheckAuditLog(o.calls, log)
			if err != nil {
				wrong = []check.Violation{check.Violationf(check.AuditOnce, "the audit log cannot be read: %v", err)}
			}
			if len(wrong) == 0 || time.Now().After(deadline) {
				violations = append(violations, wrong...)
				break
			}
		}
	}
	return violations
}

// records reads this operator's records from the audit log.
func (o *operator) records() (log []check.AuditEntry, err error) {
	for since := "0"; ; {
		var page apiv1.Audit
		q := get(apiv1.PathAudit, &page)
		q.Query = url.Values{"class": {"operators"}, "limit": {"1000"}, "since": {since}}
		if err := o.askAny(o.cfg.Timeout, q); err != nil {
			return nil, err
		}
		for _, r := range page.Items {
			if strings.HasPrefix(r.Reason, o.name+"-") {
				log = append(log, check.AuditEntry{Reason: r.Reason, Node: r.Node, Result: r.Result})
			}
		}
		if page.Next == since {
			return log, nil
		}
		since = page.Next
	}
}

// roleEvictor is an operator who sometimes revokes the role from its holder, for the next candidate or for a named one.
// The campaigners observe the consequences.
type roleEvictor struct{ user }

const evictLimit = time.Second // for one call: the response may wait for the holder, and need not be read

func (e roleEvictor) run() {
	for e.Pause(e.cfg.EvictInterval.Draw(e.rand)) {
		e.evict()
	}
}

func (e roleEvictor) evict() {
	const path = "/admin/roles/" + Role
	var role apiv1.Role
	if e.askAny(evictLimit, get(apiv1.PathRoles+"/"+Role, &role)) != nil {
		return
	}
	if n := len(role.Candidates); n > 0 && e.rand.IntN(2) == 0 {
		to := role.Candidates[e.rand.IntN(n)].SessionID
		_ = e.askAny(evictLimit, post(path+"/transfer", apiv1.RoleTransfer{ToSessionID: to, Reason: "chaos"}, nil))
		return
	}
	_ = e.askAny(evictLimit, Request{Method: http.MethodDelete, Path: path, In: apiv1.RoleEvict{Reason: "chaos"}})
}
