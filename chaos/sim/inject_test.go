package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"northstar/transport"
)

// Only faults that found something to break are counted, those of messages and
// operators when they meet one.
func TestFaultsWithAnEffect(t *testing.T) {
	at := func(s float64, f Fault) Fault {
		f.At = time.Duration(s * float64(time.Second))
		if f.For == 0 {
			f.For = time.Second
		}
		return f
	}
	cfg := DefaultConfig(1, 3)
	cfg.Length = 12 * time.Second
	cfg.Plan = []Fault{
		at(2, Fault{Kind: Kill, A: 1}),
		at(2.1, Fault{Kind: PowerLoss, A: 1}), // it is down already
		at(2.2, Fault{Kind: Pause, A: 1}),
		at(2.3, Fault{Kind: SlowDisk, A: 1, Delay: time.Millisecond}),
		at(4, Fault{Kind: Isolate, A: 1}),
		at(4.1, Fault{Kind: CutOne, A: 1, B: 0}), // that way is cut already
		at(4.2, Fault{Kind: Mute, A: 0}),         // the other way is not
		at(6, Fault{Kind: Bridge, A: 0, Bits: 0}),
		at(6.1, Fault{Kind: Bridge, A: 0, Bits: 2}),
		at(6.2, Fault{Kind: Flap, A: 0, B: 1, Delay: 50 * time.Millisecond}),
		at(8, Fault{Kind: Loss, Chance: 1, MessageKind: "timeout_now"}), // no node sends any
		at(8.1, Fault{Kind: Delay, Chance: 1, MessageKind: "heartbeat", Delay: time.Millisecond}),
		at(8.2, Fault{Kind: DropVotes, A: 2, For: time.Millisecond}),
		at(8.3, Fault{Kind: Repeat, Chance: 1, MessageKind: "probe"}),                             // a frame arrives once
		at(8.4, Fault{Kind: LateReply, Chance: 1, MessageKind: "probe", Delay: time.Millisecond}), // and has no response
		at(9.5, Fault{Kind: WipeRejoin, A: 2, For: 100 * time.Millisecond}),
		at(9.7, Fault{Kind: WipeRejoin, A: 1}), // one at most
		at(10.5, Fault{Kind: Prefer, A: 0, B: 1, Bits: 9}),
		at(10.6, Fault{Kind: KillAll}),
	}
	res, report := Run(t, cfg)
	want := map[FaultKind]int{
		Kill: 1, Isolate: 1, Mute: 1, Bridge: 1, Flap: 1, Delay: 1, WipeRejoin: 1, Prefer: 1,
		KillAll: 1,
	}
	if report != "" || res.Injected != len(cfg.Plan) || !maps.Equal(res.Faults, want) {
		t.Errorf("%d injected; with an effect %v, want %v\n%s", res.Injected, res.Faults, want, report)
	}
}

// A fault of a message has no effect where another one hides it, or the message has no such part.
func TestFaultsThatAreHidden(t *testing.T) {
	all := []FaultKind{Loss, LossReply, Delay, LateReply, Repeat}
	for _, tt := range []struct {
		message      string
		kinds, count []FaultKind
	}{
		{"append", all[:1], all[:1]},
		{"append", all[1:2], all[1:2]},
		{"append", all[3:4], all[3:4]},
		{"append", all[4:], all[4:]},
		{"append", all, []FaultKind{Loss, Delay}},
		{"append", all[1:], []FaultKind{LossReply, Delay, Repeat}},
		{"snapshot", all[2:], []FaultKind{Delay, LateReply}},
		{"probe", all[1:], []FaultKind{LossReply, Delay}},
	} {
		for range 2 { // in both orders
			sim := &Simulation{faults: map[FaultKind]int{}}
			sim.rpc = &rpcFaults{sim: sim, seq: map[linkKey]uint64{}}
			for _, kind := range tt.kinds {
				sim.rpc.add(Fault{Kind: kind, Chance: 1, Delay: time.Millisecond})
			}
			fault := sim.rpc.decide(transport.Message{Kind: tt.message, From: "n1", To: "n2"})
			if got := slices.Sorted(maps.Keys(sim.faults)); !slices.Equal(got, slices.Sorted(slices.Values(tt.count))) {
				t.Errorf("%v of %s: those with an effect: %v, want %v", tt.kinds, tt.message, got, tt.count)
			}
			if fault.Twice != slices.Contains(tt.count, Repeat) {
				t.Errorf("%v of %s: it arrives twice: %v", tt.kinds, tt.message, fault.Twice)
			}
			tt.kinds = slices.Clone(tt.kinds)
			slices.Reverse(tt.kinds)
		}
	}
}

// Faults of the same messages do not begin at one moment: they would draw the same numbers.
func TestFaultsOfMessagesDrawTheirOwnNumbers(t *testing.T) {
	drawn := []FaultKind{Loss, LossReply, Delay, LateReply, Repeat, Lie}
	for _, kind := range Scenarios() {
		for seed := range uint64(8) {
			cfg, err := NewConfig(kind, seed, 3)
			if err != nil {
				t.Fatal(err)
			}
			plan := slices.Clone(cfg.faults())
			plan = slices.DeleteFunc(plan, func(f Fault) bool { return !slices.Contains(drawn, f.Kind) })
			for i, a := range plan {
				for _, b := range plan[i+1:] {
					if a.At == b.At && (a.MessageKind == b.MessageKind || a.MessageKind == "" || b.MessageKind == "") {
						t.Errorf("%s, seed %d: %v; %v", kind, seed, a, b)
					}
				}
			}
		}
	}
}

// Over four seeds, high-fault-rate draws every fault of an operator, and wiped disks, bridges and flapping links.
func TestHighFaultRate_DrawsEveryFault(t *testing.T) {
	dense := FaultWeights{}
	for seed := range uint64(4) {
		cfg, err := NewConfig("high-fault-rate", seed, 3)
		if err != nil {
			t.Fatal(err)
		}
		dense = dense.Add(cfg.Weights)
	}
	for kind := range AdminFaults().Add(FaultWeights{WipeRejoin: 1, Bridge: 1, Flap: 1}) {
		if dense[kind] == 0 {
			t.Errorf("never %s", kind)
		}
	}
}
