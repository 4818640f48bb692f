package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/state"
	"northstar/transport"
)

// TestWritesGoWithTheLeaderStart has a leader that cannot commit anything yet: the writes that wait for it are in its
// log already, and none is acknowledged before its leader-start is applied.
func TestWritesGoWithTheLeaderStart(t *testing.T) {
	t.Parallel()
	c, old := startCluster(t, 3)
	eventually(t, "the records say what members read",
		func() bool { return old.ReadsVersion() == state.CommandVersion })
	c.write("a", "1")
	c.everywhere("a", "1")
	next, other := c.others(old)[0], c.others(old)[1]
	other.idle.Store(true)
	next.drop(func(m transport.Message) bool { return m.Kind == "append" })
	old.stop()
	eventually(t, "the next one leads", func() bool { return next.Status().Role == cluster.Leader })
	acked := make(chan error, 1)
	go func() { // as the API does it: with its audit record
		put := &state.Put{Key: "b", Value: []byte("2")}
		result, err := next.Propose(within(t, testTimeout), state.Command{
			Kind: state.KindPut, Put: put,
			Audit: &state.AuditRecord{What: "PUT"},
		})
		if err == nil && result.Err != nil {
			err = result.Err
		}
		acked <- err
	}()
	eventually(t, "Raft's own entry, the leader-start and the write are in its log",
		func() bool { return next.Riding() })
	select {
	case err := <-acked:
		t.Errorf("answered before anything of this leadership was committed: %v", err)
	default:
	}
	if next.has("b", "2") {
		t.Error("applied before anything of this leadership was committed")
	}
	next.drop(nil)
	if err := <-acked; err != nil {
		t.Fatal(err)
	}
	if term, node := next.View().LeaderStart(); node != next.id || term != next.Status().Term {
		t.Errorf("acknowledged, and the last leader-start is that of %s in term %d", node, term)
	}
	c.write("c", "3")
}

// TestPiggybackCommandVersion has a follower with entries that it does not know to be committed: only those that are
// about members make it careful.
func TestPiggybackCommandVersion(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	f := c.others(leader)[0]
	eventually(t, "the records say what members read", func() bool { return f.ReadsVersion() == state.CommandVersion })
	c.write("a", "1")
	c.everywhere("a", "1")
	leader.drop(func(m transport.Message) bool { return m.Kind == "append" && m.Size == 0 }) // what is committed
	ahead := func(what string, write func() error, want uint32) {
		t.Helper()
		for range 20 { // of an entry that is sent twice it is told that it is committed
			before := f.Status().LastLogIndex
			if err := write(); err != nil {
				t.Fatal(err)
			}
			eventually(t, what+" is in its log", func() bool { return f.Status().LastLogIndex > before })
			got := f.PiggybackCommandVersion()
			if st := f.Status(); st.LastLogIndex == st.AppliedIndex {
				continue
			}
			if got != want {
				t.Errorf("%s: writes of version %d may go along, want %d", what, got, want)
			}
			return
		}
		t.Errorf("%s: its state was never behind its log", what)
	}
	ahead("a write of a key", func() error { return leader.put("a", "2") }, state.CommandVersion)
	ahead("a member's record", func() error {
		zone := "z"
		_, err := leader.Propose(within(t, testTimeout), state.Command{
			Kind:        state.KindMemberPatch,
			MemberPatch: &state.MemberPatch{ID: f.id, Zone: &zone},
		})
		return err
	}, 1)
}
