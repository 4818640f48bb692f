package node

import (
	"fmt"
	"strings"
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
		if err := (peerMessages{n.Node}).Relayed(t.Context(), "n2", batch); err != nil {
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

// A member that was added and never started stops no audit log: every node goes on recording.
func TestAuditWithAMemberThatNeverStarted(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	first := startAll(t, nodes)
	url := "http://" + first.httpAddr
	eventually(t, "the log has a version with the audit log", func() bool {
		return first.Consensus().View().CommandVersion() >= state.RolesVersion
	})
	want(t, plain, "POST", url+"/admin/members",
		`{"id":"n4","raft_address":"127.0.0.1:1","http_address":"127.0.0.1:2","suffrage":"nonvoter"}`, 200, "n4")
	eventually(t, "n4 is a member of which little is known", func() bool {
		return first.Consensus().ReadsVersion() == 1
	})
	for i, n := range nodes {
		reason := fmt.Sprint("recorded by node ", i)
		want(t, plain, "POST", "http://"+n.httpAddr+"/admin/members", `{"id":"n1","reason":"`+reason+`"}`, 400, "4400")
		eventually(t, reason, func() bool {
			_, text, err := request(plain, "GET", url+"/admin/audit?limit=100", "")
			return err == nil && strings.Contains(text, reason)
		})
	}
}
