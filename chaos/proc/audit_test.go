package proc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"northstar/api/apiv1"
)

// auditLog returns the audit records whose reason or target contains a text.
func auditLog(t *testing.T, n *Node, text string) (records []apiv1.AuditRecord, err error) {
	t.Helper()
	a, err := do(t.Context(), n, http.MethodGet, "/admin/audit?limit=1000", nil)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("audit at %s: %d %s", n.ID, a.Status, a.Body)
	}
	var page apiv1.Audit
	if err := json.Unmarshal(a.Body, &page); err != nil {
		return nil, err
	}
	for _, r := range page.Items {
		if strings.Contains(r.What, text) {
			records = append(records, r)
		}
	}
	return records, nil
}

// awaitAudit waits for exactly one audit record of a call, on the current leader.
func awaitAudit(t *testing.T, c *Cluster, text string) apiv1.AuditRecord {
	t.Helper()
	var found apiv1.AuditRecord
	eventually(t, soon, func() error {
		records, err := auditLog(t, leader(t, c), text)
		if err != nil {
			return err
		}
		if len(records) != 1 {
			return fmt.Errorf("%d records of %s: %+v", len(records), text, records)
		}
		found = records[0]
		return nil
	})
	return found
}

// An answered call is in the audit log even if the leader crashes immediately. A call made without a leader is recorded
// later, exactly once, even if its node crashes too.
func TestAuditOutlivesCrashes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	l := start(t, c)
	var follower *Node
	for _, n := range c.Nodes {
		if n != l {
			follower = n
		}
	}
	eventually(t, soon, func() error { // until every member has reported its command version
		mustPut(t, c, "warm", "up")
		records, err := auditLog(t, l, "warm")
		if err == nil && len(records) == 0 {
			err = fmt.Errorf("nothing is recorded")
		}
		return err
	})
	remove := func(n *Node, id string) answer {
		a, err := do(t.Context(), n, http.MethodDelete, "/admin/members/"+id, []byte(`{"reason":"test"}`), "Content-Type", "application/json")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := remove(follower, "m-unknown"); a.Status != http.StatusNotFound {
		t.Fatalf("removal of nobody: %d %s", a.Status, a.Body)
	}
	if a, err := put(t.Context(), follower, "audited", "v"); err != nil || a.Status != http.StatusOK {
		t.Fatalf("%+v, %v", a, err)
	}
	l.Kill()
	r := awaitAudit(t, c, "/v1/kv/audited")
	if r.Who != "loopback" || r.Result != "ok" || r.Node != l.ID || r.Delayed || r.Status != 200 {
		t.Errorf("of the write: %+v", r)
	}
	r = awaitAudit(t, c, "m-unknown")
	if r.Status != 404 || r.Result != "ERR_NOT_FOUND" || r.Reason != "test" || r.Class != "operators" ||
		r.Request["reason"] != "test" {
		t.Errorf("of the removal: %+v", r)
	}

	c.KillAll()
	if err := c.StartNode(follower); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, func() error {
		_, err := nodeStatus(t.Context(), follower)
		return err
	})
	if a := remove(follower, "m-alone"); a.Code != 4002 {
		t.Fatalf("alone: %d %s", a.Status, a.Body)
	}
	follower.Kill()
	start(t, c)
	if r := awaitAudit(t, c, "m-alone"); !r.Delayed || r.Node != follower.ID || r.Result != "ERR_NO_LEADER" {
		t.Errorf("of the call without a leader: %+v", r)
	}
	for _, n := range c.Nodes {
		awaitApplied(t, c, n)
	}
	awaitAudit(t, c, "m-alone") // once, although it was sent twice
}
