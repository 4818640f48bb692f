package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/transport"
)

// A fault at a step happens when a node comes to the step, on that node, and never otherwise.
func TestFaultWaitsForItsStep(t *testing.T) {
	cfg := DefaultConfig(1, 3)
	cfg.Length = 6 * time.Second
	cfg.Plan = []Fault{
		{Kind: PowerLoss, MessageKind: stepLed, A: StepNode, Bits: 1, At: 2 * time.Second, For: 500 * time.Millisecond},
		{Kind: Isolate, MessageKind: stepRestored, A: StepNode, At: 2 * time.Second, For: time.Second},
		{Kind: Kill, A: AnyLeader, At: 2500 * time.Millisecond, For: 300 * time.Millisecond}, // the first to lead stays
		{Kind: Kill, A: AnyLeader, At: 3500 * time.Millisecond, For: 300 * time.Millisecond},
	}
	res, report := Run(t, cfg)
	want := map[FaultKind]int{Kill: 2, PowerLoss: 1}
	if report != "" || !maps.Equal(res.Faults, want) || res.Injected != 3 || res.Reached["led: power-loss"] != 1 {
		t.Errorf("%d injected, with an effect %v, want %v; %v\n%s", res.Injected, res.Faults, want, res.Reached, report)
	}
}

// The scenarios of this table come to the steps that they are for, and their faults hit there, in a few runs. The
// rarest step comes in every fifth run. make sim counts the same in more of them.
func TestScenariosReachTheirSteps(t *testing.T) {
	const most = 80 // runs; with a step in every fifth run, all of them miss it once in 50 million times
	for scenario, want := range map[string][]string{
		"lease-elections": {"lease read on a leader that is cut off", "rebuild within a lease"},
		"lease-change":    {"lease read on a leader that is cut off"},
		"restore": {
			stepRestoreBegun, stepSnapshotBegun, stepSnapshotStored, stepSnapshotSent, stepEntryStored, stepRestored,
			stepAbandoned, "snapshot-stored: power-loss", "snapshot-stored: kill", "snapshot-stored: partition-node",
		},
		"votepower": {
			"vote-asked: power-loss", "vote-stored: power-loss", "vote-answered: power-loss", "led: power-loss",
			"led-stored: power-loss", "vote-asked: disk-hang", "two candidates in a term",
		},
	} {
		t.Run(scenario, func(t *testing.T) {
			reached := map[string]int{}
			missing := func(what string) bool { return reached[what] == 0 }
			for seed := uint64(0); seed < most && slices.ContainsFunc(want, missing); seed++ {
				cfg, err := NewConfig(scenario, seed, Sizes[seed%2])
				if err != nil {
					t.Fatal(err)
				}
				res, report := Run(t, cfg)
				if report != "" {
					t.Errorf("make chaos-replay SCENARIO=%s NODES=%d SEED=%d\n%s", scenario, cfg.Nodes, seed, report)
				}
				for what, n := range res.Reached {
					reached[what] += n
				}
			}
			if slices.ContainsFunc(want, missing) {
				t.Errorf("only %v, want each of %q", reached, want)
			}
		})
	}
}

// A term that a node has answered in is on its disk, and so is a leader's vote for itself.
func TestAnswersBeforeTheDiskAreFound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sim := NewSimulation(t.Context(), DefaultConfig(1, 3))
		n1, n2 := sim.members[0], sim.members[1]
		found := func() int {
			n := len(sim.violations)
			sim.violations = nil
			return n
		}
		answered := func(wipes int) int {
			sim.answered(transport.Message{Kind: "append", From: n1.id, To: n2.id, Term: 5}, n1, n2, wipes)
			return found()
		}
		if n := answered(0); n != 1 {
			t.Errorf("an answer in term 5, and an empty disk: %d violations", n)
		}
		n2.disk.setStable(keyTerm, 5)
		if n := answered(0); n != 0 {
			t.Errorf("an answer in term 5, and a disk in term 5: %d violations", n)
		}
		n2.disk.Wipe()
		if n := answered(0); n != 0 {
			t.Errorf("the disk was emptied since: %d violations", n)
		}
		sim.checkOwnVote(n1, 5)
		n1.disk.setStable(keyVoteTerm, 5)
		n1.disk.data.stable[keyVoteCand] = []byte(raftAddress(n2.id))
		sim.checkOwnVote(n1, 5)
		if n := found(); n != 2 {
			t.Errorf("no vote, and a vote for another node: %d violations", n)
		}
		n1.disk.data.stable[keyVoteCand] = []byte(raftAddress(n1.id))
		if sim.checkOwnVote(n1, 5); found() != 0 {
			t.Error("a leader with its own vote")
		}
		sim.end()
	})
}

// A process that was killed goes on for a while. It no longer leads anything.
func TestKilledProcessDoesNotLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sim := NewSimulation(t.Context(), DefaultConfig(1, 3))
		n1 := sim.members[0]
		n1.disk.setStable(keyVoteTerm, 2)
		n1.disk.data.stable[keyVoteCand] = []byte(raftAddress(n1.id))
		proc := sim.net.Host(string(n1.id)).Boot()
		faults := processFaults{sim.rpc, proc}
		heartbeat := transport.Message{Kind: "heartbeat", From: n1.id, To: sim.members[1].id, Term: 2}
		faults.Outgoing(heartbeat)
		if proc.Kill(true); sim.safety.Elections() != 1 {
			t.Errorf("%d terms with a leader, want 1", sim.safety.Elections())
		}
		heartbeat.Term = 3
		faults.Outgoing(heartbeat)
		if sim.safety.Elections() != 1 || len(sim.violations) > 0 {
			t.Errorf("after the kill %d terms with a leader, want 1; %v", sim.safety.Elections(), sim.violations)
		}
		sim.end()
	})
}

// After a restored snapshot the log may hold an entry of a deposed leader where the snapshot ends. The next entry
// follows the snapshot, and what is applied may still be undone.
func TestDiskAfterARestore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var prevTerms []uint64
		stored := func(prev uint64, _ []*raft.Log) { prevTerms = append(prevTerms, prev) }
		d := NewDisk("n1", 1, DefaultDiskOptions(), stored)
		var came []string
		d.onStep = func(step string) { came = append(came, step) }
		s, err := d.Attach()
		if err != nil {
			t.Fatal(err)
		}
		entry := func(index, term uint64) {
			if err := s.Log().StoreLog(&raft.Log{Index: index, Term: term}); err != nil {
				t.Fatal(err)
			}
		}
		entry(1, 1)
		sink, err := s.Snapshots().Create(1, 2, 3, raft.Configuration{}, 1, nil)
		if err == nil {
			err = sink.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if !d.restoredTo(1) || !d.restoredTo(2) || d.restoredTo(3) {
			t.Error("the snapshot ends at 2, and the log has no entry 2")
		}
		entry(2, 2)
		if !d.restoredTo(2) {
			t.Error("entry 2 is of another term than the snapshot")
		}
		entry(3, 3)
		if got := prevTerms[2]; got != 3 {
			t.Errorf("entry 3 follows one of term %d, want 3", got)
		}
		if !slices.Equal(came, []string{stepSnapshotBegun, stepSnapshotStored, stepEntryStored}) {
			t.Errorf("steps %q", came)
		}
		older, err := s.Snapshots().Create(1, 1, 1, raft.Configuration{}, 1, nil)
		if err == nil {
			err = older.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, remove := range []struct {
			id    string
			steps int // that have come so far
		}{{older.ID(), 3}, {sink.ID(), 4}} {
			if err := s.Snapshots().(snapshotStore).Remove(remove.id); err != nil || len(came) != remove.steps {
				t.Errorf("removed %s: %v, steps %q", remove.id, err, came)
			}
		}
		if list, _ := s.Snapshots().List(); len(list) != 0 || d.restoredTo(2) || came[3] != stepAbandoned {
			t.Errorf("after its removal: %v, steps %q", list, came)
		}
	})
}
