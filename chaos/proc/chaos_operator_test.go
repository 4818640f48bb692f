package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
)

// chaosOperator makes one call after the other, each under a reason of its own, by
// which its audit record is found.
type chaosOperator struct {
	c     *chaosClients
	rand  *rand.Rand
	name  string
	hasty bool // makes calls that are refused, with hardly a pause
	calls []check.AdminCall
}

const (
	hastyOperators = 2
	hastyCalls     = 50 // of each for each fault: the audit log must keep those of a segment
)

// startOperators starts one that makes calls of all kinds, and hasty ones: a node brings
// the records of refused calls to the log on its own, and a leader that dies right
// between taking some and saying so is rare.
func (c *chaosClients) startOperators() {
	first := c.s.key
	for i := range 1 + hastyOperators {
		o := &chaosOperator{c: c, rand: rand.New(rand.NewPCG(c.s.seed, uint64(3000+1000*i+first))), name: fmt.Sprintf("chaos %d %d", first, i), hasty: i > 0}
		c.operators = append(c.operators, o)
		longest := 500
		if o.hasty {
			longest = 40
		}
		c.Go(func() {
			for c.Pause(time.Duration(o.rand.IntN(longest)) * time.Millisecond) {
				if !o.hasty || len(o.calls) < hastyCalls*(c.s.fault()-first+1) {
					o.call()
				}
			}
		})
	}
}

// fault is the number of the present one.
func (s *suite) fault() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// call makes one call at any node.
func (o *chaosOperator) call() {
	nodes := o.c.s.cluster.Nodes
	at, target := nodes[o.rand.IntN(len(nodes))], nodes[o.rand.IntN(len(nodes))]
	reason := fmt.Sprintf("%s-%d", o.name, len(o.calls))
	method, path := http.MethodPost, apiv1.PathTransfer
	body := map[string]any{"reason": reason, "target_leader_id": target.ID}
	kind := o.rand.IntN(8)
	if o.hasty {
		kind = 7
	}
	switch kind {
	case 0: // leadership moves
	case 1, 2: // it would
		body["dry_run"] = true
	case 3, 4, 5: // a command
		path, body = apiv1.PathAuto, map[string]any{"reason": reason, "enabled": true}
	default: // refused
		method, path, body = http.MethodDelete, apiv1.PathMembers+"/nobody", map[string]any{"reason": reason}
	}
	text, err := json.Marshal(body)
	if err != nil {
		o.c.s.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(o.c.ctx, 2*opLimit)
	defer cancel()
	call := check.AdminCall{Reason: reason, Begin: o.c.s.now(), Command: path == apiv1.PathAuto}
	a, err := do(ctx, at, method, path, text, "Content-Type", apiv1.TypeJSON)
	call.End = o.c.s.now()
	call.Answered = err == nil && cluster.Code(a.Code) != cluster.CodeOutcomeUnknown
	o.calls = append(o.calls, call)
}

// check compares the calls with the audit log, once it has all that was answered.
func (o *chaosOperator) check() []check.Violation {
	var violations []check.Violation
	for deadline := time.Now().Add(soon); ; pause(100 * time.Millisecond) {
		log, err := o.records()
		if err == nil {
			if violations = check.CheckAuditLog(o.calls, log); len(violations) == 0 {
				return nil
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				o.c.s.t.Errorf("the audit log: %v", err)
			}
			return violations
		}
	}
}

// records reads this operator's part of the audit log.
func (o *chaosOperator) records() (log []check.AuditEntry, err error) {
	nodes := o.c.s.cluster.Nodes
	for since := "0"; ; {
		ctx, cancel := context.WithTimeout(o.c.s.t.Context(), opLimit)
		a, err := do(ctx, nodes[o.rand.IntN(len(nodes))], http.MethodGet, apiv1.PathAudit+"?class=operators&limit=1000&since="+since, nil)
		cancel()
		if err != nil {
			return nil, err
		}
		var page apiv1.Audit
		if err := json.Unmarshal(a.Body, &page); err != nil || a.Status != http.StatusOK {
			return nil, fmt.Errorf("%d %s %v", a.Status, a.Body, err)
		}
		for _, r := range page.Items {
			if strings.HasPrefix(r.Reason, o.name+"-") {
				log = append(log, check.AuditEntry{Reason: r.Reason, Node: r.Node, Result: r.Result})
			}
		}
		if page.Next == since {
			return slices.Clip(log), nil
		}
		since = page.Next
	}
}
