package node

import (
	"fmt"
	"testing"
	"time"

	"northstar/state"
)

// TestAuditOfAFastClock: records are kept for 90 days before the newest one. A node whose clock is a year ahead does
// not end those of the others.
func TestAuditOfAFastClock(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil)[0]
	startAll(t, []*testNode{n})
	now := time.Now()
	for i, at := range []time.Time{now, now.AddDate(1, 0, 0), now} {
		batch, err := state.EncodeBatch([]state.Command{{Kind: state.KindAudit, AuditBatch: &state.AuditBatch{
			Producer: fmt.Sprint("n", i), First: 1, Records: []state.AuditRecord{{
				Class: state.AuditOperators, At: at.UnixNano(), Who: fmt.Sprint("operator", i),
			}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.receiveAuditBatch(t.Context(), "n2", batch); err != nil {
			t.Fatal(err)
		}
	}
	counts := n.Consensus().View().AuditCounts()
	if counts.Records[state.AuditOperators] != 3 || counts.Dropped[state.AuditOperators] != 0 {
		t.Errorf("%+v", counts)
	}
	for r := range n.Consensus().View().AuditAfter(0) {
		if at := time.Unix(0, r.At); at.Before(now) || at.After(time.Now()) {
			t.Errorf("%s: %v", r.Who, at)
		}
	}
}
