package transport

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

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

// A node that is not a member gets no command into the log: this node takes neither its calls nor its relayed messages,
// also on a connection from before its removal. It takes those of a member.
func TestOutsider_CallsAreRefused(t *testing.T) {
	t.Parallel()
	served := make(chan cluster.NodeID, 32)
	n1 := newEnd(t, "n1", func(_ *Config, e *end) {
		e.called = func(_ context.Context, from cluster.NodeID, _ []byte) []byte {
			served <- from
			return nil
		}
		e.relayed = func(from cluster.NodeID, _ []byte) error {
			served <- from
			return nil
		}
	})
	outsider := newEnd(t, "n2")
	knows(outsider, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	use := func() (called, relayed error) {
		_, called = outsider.tr.Call(ctx, "n1", []byte("x"))
		return called, outsider.tr.Relay(ctx, "n1", []byte("x"))
	}
	if called, relayed := use(); called != nil || relayed != nil || len(served) != 2 {
		t.Fatalf("of a member: call %v, relayed message %v, %d handled", called, relayed, len(served))
	}
	for name, rec := range map[string]cluster.Record{
		"never a member": {Unknown: true}, "not a member any more": {Incarnation: "inc-n2", Superseded: true},
		"says that it has no cluster ID": {Unknown: true},
	} {
		n1.remember("n2", rec)
		outsider.mu.Lock()
		if outsider.self.ClusterID = "c1"; strings.HasPrefix(name, "says") {
			outsider.self.ClusterID, outsider.keepsID = "", true
		}
		outsider.mu.Unlock()
		for range 2 { // on the connection from before, and on a new one
			if called, relayed := use(); called == nil || relayed == nil || len(served) != 2 {
				t.Errorf("%s: call %v, relayed message %v, %d handled", name, called, relayed, len(served)-2)
			}
		}
	}
}

// The claims of a node that is not a member count for nothing, also if it says that it has no cluster ID.
func TestOutsiderClaimsNothing(t *testing.T) {
	t.Parallel()
	for _, clusterID := range []string{"", "c1"} {
		var heard atomic.Int64
		n1 := newEnd(t, "n1", func(_ *Config, e *end) {
			e.records["n0"] = cluster.Record{Unknown: true}
			e.onHeard = func(claim *cluster.Claim) {
				if claim != nil {
					heard.Add(1)
				}
			}
		})
		outsider := newEnd(t, "n0", func(_ *Config, e *end) { e.self.ClusterID, e.keepsID = clusterID, true })
		knows(outsider, n1) // the node with the lower ID dials
		answered := func() bool { return !outsider.tr.Claims()["n1"].At.IsZero() }
		eventually(t, "n1 has answered the outsider's claim", answered)
		if _, counts := n1.tr.Claims()["n0"]; counts || heard.Load() != 0 {
			t.Errorf("cluster ID %q: its claim counts: %v; %d were heard", clusterID, counts, heard.Load())
		}
		n1.remember("n0", cluster.Record{})
		eventually(t, "its claims count once it is a member", func() bool {
			_, counts := n1.tr.Claims()["n0"]
			return counts && heard.Load() > 0
		})
	}
}

// A certificate of no member makes a node hold no large messages. Those of a member are as large as before.
func TestOutsidersSendNoLargeMessages(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.leader.Store(cluster.NodeID("n2"))
	got := n1.bind()
	large := func(r *raft.AppendEntriesRequest) { r.Entries[0].Data = make([]byte, 2*maxOutsiderMessage) }
	n1.remember("n2", cluster.Record{Unknown: true})
	for i, id := range []string{"", "c1"} {
		n2.set(func(p *cluster.Peer) { p.ClusterID = id })
		if err := n2.appendUnchecked(n1, large); err == nil || n1.rejected("message/malformed") != i+1 {
			t.Errorf("an outsider, cluster ID %q: %v, %d messages were refused as too large", id, err,
				n1.rejected("message/malformed"))
		}
	}
	n1.remember("n2", cluster.Record{Incarnation: "inc-n2"})
	if _, err := n2.append(n1, large); err != nil {
		t.Errorf("a member: %v", err)
	}
	if n := reached(got); n != 1 {
		t.Errorf("%d messages reached raft", n)
	}
}

// appendUnchecked sends an append without asking this end's own guards.
func (e *end) appendUnchecked(to *end, change func(*raft.AppendEntriesRequest)) error {
	req := raft.AppendEntriesRequest{RPCHeader: e.header(), Term: 5, Entries: []*raft.Log{{Index: 11, Term: 5}}}
	change(&req)
	p, err := e.raft.peer(to.id)
	if err != nil {
		return err
	}
	out, err := p.outbound()
	if err != nil {
		return err
	}
	return out.AppendEntries(raft.ServerID(to.id), raft.ServerAddress(to.addr), &req, new(raft.AppendEntriesResponse))
}
