package transport

import (
	"strings"
	"testing"

	"northstar/cluster"
)

// No Raft message counts from a node that is not a member, as far as this node and others know. They count as soon as
// another member confirms it. The vote requests here do not ask the outsider's own guards.
func TestOutsiderReachesNotRaft(t *testing.T) {
	t.Parallel()
	for name, rec := range map[string]cluster.Record{
		"never a member": {Unknown: true}, "not a member any more": {Incarnation: "inc-n2", Superseded: true},
	} {
		outsider, n1 := newEnd(t, "n2"), newEnd(t, "n1")
		n1.leader.Store(cluster.NodeID("n2"))
		n1.remember("n2", rec)
		got := n1.bind()
		_, appended := outsider.append(n1, nil)
		_, beat := outsider.heartbeat(n1)
		_, installed := outsider.install(n1, 500, nil)
		for what, err := range map[string]error{"entries": appended, "heartbeat": beat, "snapshot": installed} {
			if err == nil || !strings.Contains(err.Error(), errNotMember.Error()) {
				t.Errorf("%s: its %s: %v", name, what, err)
			}
		}
		if v, err := outsider.vote(n1, 99); err != nil || v.Granted || v.Term != 5 {
			t.Errorf("%s: its vote: %+v, %v; want a refusal in term 5", name, v, err)
		}
		if v, err := outsider.preVote(n1, 99); err != nil || v.Granted || v.Term != 5 {
			t.Errorf("%s: its pre-vote: %+v, %v; want a refusal in term 5", name, v, err)
		}
		if err := outsider.timeoutNow(n1); err == nil {
			t.Errorf("%s: its TimeoutNow was accepted", name)
		}
		if n := reached(got); n != 0 {
			t.Errorf("%s: %d messages reached raft", name, n)
		}
		rec.Confirmed, rec.Superseded = outsider.peer().Incarnation, false
		n1.remember("n2", rec)
		if r, err := outsider.append(n1, nil); err != nil || !r.Success {
			t.Errorf("%s: confirmed, its entries: %+v, %v", name, r, err)
		}
	}
}
