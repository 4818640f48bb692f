package raftnode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

type testFSM struct {
	*FSM
	halted  []error
	forgot  []cluster.NodeID
	changes int
	index   uint64
}

func newTestFSM() *testFSM {
	f := &testFSM{}
	f.FSM = NewFSM(FSMConfig{
		State:              state.New(state.Options{}),
		Halt:               func(err error) { f.halted = append(f.halted, err) },
		MembersChanged:     func() { f.changes++ },
		IncarnationCleared: func(id cluster.NodeID, _ uint64) { f.forgot = append(f.forgot, id) },
	})
	return f
}

func (f *testFSM) entry(t *testing.T, cmds ...state.Command) *raft.Log {
	t.Helper()
	data, err := state.EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	f.index++
	return &raft.Log{Index: f.index, Term: 2, Type: raft.LogCommand, Data: data}
}

func putCommand(key string) state.Command {
	return state.Command{Kind: state.KindPut, Put: &state.Put{Key: key, Value: []byte("v")}}
}

func TestFSMAppliesOnce(t *testing.T) {
	f := newTestFSM()
	logs := []*raft.Log{f.entry(t, putCommand("a")), f.entry(t, putCommand("a"))}
	f.ApplyBatch(logs)
	before := f.cfg.State.View().Fingerprint()
	f.restarted() // a new Raft node replays
	if _, err := f.Snapshot(); !errors.Is(err, errReplaying) {
		t.Errorf("a snapshot at the start of a replay: %v", err)
	}
	f.ApplyBatch(logs)
	if f.cfg.State.View().Fingerprint() != before {
		t.Error("a replay was applied again")
	}
	if _, err := f.Snapshot(); err != nil {
		t.Errorf("after the replay: %v", err)
	}
}

func TestFSMStopsAtWhatItCannotRead(t *testing.T) {
	f := newTestFSM()
	good := f.entry(t, putCommand("a"))
	bad := &raft.Log{Index: 2, Term: 2, Type: raft.LogCommand, Data: []byte("\xff?")}
	f.index++
	after := f.entry(t, putCommand("b"))
	answers := f.ApplyBatch([]*raft.Log{good, bad, after})
	if a := answers[0].(ApplyResult); a.Err != nil || len(a.Results) != 1 {
		t.Errorf("before it: %+v", a)
	}
	for _, i := range []int{1, 2} {
		if a := answers[i].(ApplyResult); !errors.Is(a.Err, errHalted) {
			t.Errorf("entry %d: %+v", i, a)
		}
	}
	if _, ok := f.cfg.State.View().Get("b"); ok || f.Applied() != 1 {
		t.Error("it went on")
	}
	if len(f.halted) != 1 {
		t.Errorf("told %d times to stop", len(f.halted))
	}
	if _, err := f.Snapshot(); !errors.Is(err, errHalted) {
		t.Errorf("a snapshot: %v", err)
	}
	if err := f.Restore(io.NopCloser(bytes.NewReader(nil))); !errors.Is(err, errHalted) {
		t.Errorf("a restore: %v", err)
	}
}

// TestFSMForgets re-admits a member: what it said before must be dropped before the state shows that its data directory
// is unknown.
func TestFSMForgets(t *testing.T) {
	f := newTestFSM()
	known, none := "i1", ""
	member := state.Command{Kind: state.KindMember, Member: &cluster.Member{
		ID: "n2", Incarnation: known,
		Lifecycle: cluster.Active,
	}}
	f.ApplyBatch([]*raft.Log{f.entry(t, member)})
	if len(f.forgot) != 0 || f.changes != 1 {
		t.Fatalf("forgot %v, %d changes", f.forgot, f.changes)
	}
	f.cfg.IncarnationCleared = func(id cluster.NodeID, _ uint64) {
		f.forgot = append(f.forgot, id)
		if f.cfg.State.View().Record(id).Incarnation != known {
			t.Error("the state shows it before what was said is dropped")
		}
	}
	readmit := state.Command{Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{ID: "n2", Incarnation: &none}}
	f.ApplyBatch([]*raft.Log{f.entry(t, readmit)})
	if len(f.forgot) != 1 || f.cfg.State.View().Record("n2").Incarnation != "" {
		t.Errorf("forgot %v", f.forgot)
	}
	f.ApplyBatch([]*raft.Log{f.entry(t, putCommand("a"))})
	if f.changes != 2 {
		t.Error("told of a change of members when only a key changed")
	}
}

// TestFSMForgets_Snapshot: a member is re-admitted while this node is away. The snapshot that it gets shows that its
// data directory is unknown. This node may have met the old one without ever having recorded it.
func TestFSMForgets_Snapshot(t *testing.T) {
	from := newTestFSM()
	add := func(id cluster.NodeID, incarnation string) state.Command {
		return state.Command{Kind: state.KindMember, Member: &cluster.Member{
			ID: id, Incarnation: incarnation, Lifecycle: cluster.Joining,
		}}
	}
	from.ApplyBatch([]*raft.Log{from.entry(t, add("n2", ""), add("n3", "i3"))})
	to := newTestFSM()
	if err := to.Reset(from.cfg.State.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if len(to.forgot) != 1 || to.forgot[0] != "n2" {
		t.Errorf("forgot %v", to.forgot)
	}
}

func TestFSMWait(t *testing.T) {
	f := newTestFSM()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Wait(gone, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("ended without the entry: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- f.Wait(context.Background(), 2) }()
	f.ApplyBatch([]*raft.Log{f.entry(t, putCommand("a"))})
	f.ApplyBatch([]*raft.Log{{Index: 2, Term: 2, Type: raft.LogConfiguration}})
	if err := <-done; err != nil || f.LastConfiguration() != 2 {
		t.Errorf("%v, configuration %d", err, f.LastConfiguration())
	}
}
