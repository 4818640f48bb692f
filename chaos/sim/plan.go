package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"northstar/chaos/traffic"
)

// FaultKind names a fault.
type FaultKind string

// The kinds of faults. Each ends after Fault.For.
const (
	Kill       FaultKind = "process-kill"           // SIGKILL; the process is started again at the end
	PowerLoss  FaultKind = "power-loss"             // the same, and its connections are not reset
	KillAll    FaultKind = "process-kill-all"       // every process at one moment
	Isolate    FaultKind = "partition-node"         // a node from all others, both ways
	Deafen     FaultKind = "partition-inbound"      // packets to a node are dropped
	Mute       FaultKind = "partition-outbound"     // packets from a node are dropped
	Split      FaultKind = "partition-halves"       // nodes with an even bit in Fault.Bits from those with an odd one
	CutOne     FaultKind = "partition-one-way"      // packets from a node to another are dropped
	Bridge     FaultKind = "partition-bridge"       // as Split, but one node reaches both sides
	Flap       FaultKind = "link-flap"              // a link is cut and healed about every Fault.Delay
	Reject     FaultKind = "network-reject"         // a firewall resets connections and refuses new ones
	Slow       FaultKind = "network-delay-link"     // packets from a node to another, by Fault.Delay
	SlowIn     FaultKind = "network-delay-inbound"  // packets to a node, by Fault.Delay
	Loss       FaultKind = "rpc-drop-request"       // Raft messages and probes, each with Fault.Chance
	LossReply  FaultKind = "rpc-drop-response"      // each with Fault.Chance
	Delay      FaultKind = "rpc-delay-request"      // each with Fault.Chance, by up to Fault.Delay: order changes
	LateReply  FaultKind = "rpc-delay-response"     // each with Fault.Chance, by up to Fault.Delay
	Repeat     FaultKind = "rpc-duplicate"          // each with Fault.Chance
	DropVotes  FaultKind = "rpc-drop-votes"         // every vote request of a node
	Lie        FaultKind = "corrupt-claims"         // of all nodes, each with Fault.Chance
	Pause      FaultKind = "process-pause"          // SIGSTOP
	StallDisk  FaultKind = "disk-hang"              // writes hang
	SlowDisk   FaultKind = "disk-delay"             // each write, by Fault.Delay
	FullDisk   FaultKind = "disk-full"              // less space than the node's reserve is left
	FailDisk   FaultKind = "disk-error"             // every write fails, and the node ends
	Transfer   FaultKind = "leader-transfer"        // by the harness, at a bad moment
	KillVoter  FaultKind = "kill-during-vote-write" // Fault.Delay after the write began, unless the vote is for Fault.B
	WipeRejoin FaultKind = "disk-wipe"              // a node restarts with an empty disk
)

// In the place of a node in a Fault these stand for the node that leads when the fault happens, and for another one.
// AnyFollower-1 stands for a third one, and so on.
const (
	AnyLeader   = -1
	AnyFollower = -2
)

// Fault is one fault, from At on.
type Fault struct {
	Kind        FaultKind
	At, For     time.Duration
	A, B        int // nodes, from 0; or Leading, or Following
	Bits        uint64
	Delay       time.Duration
	Chance      float64
	MessageKind string // of a fault of messages, "": all kinds; of another fault the step at which it happens
}

// String is the fault in one line, for the report of a failed run.
func (f Fault) String() string {
	s := fmt.Sprintf("%v for %v: %s %s", f.At, f.For, f.Kind, nodeName(f.A))
	switch f.Kind {
	case CutOne, Reject, Slow, Flap, Transfer, HandOver, Failover, Emergency:
		s += "→" + nodeName(f.B)
	case Split, Bridge:
		s += fmt.Sprintf(" %b", f.Bits)
	}
	if f.Delay > 0 {
		s += fmt.Sprintf(" by %v", f.Delay)
	}
	if f.Chance > 0 {
		s += fmt.Sprintf(" with %.2f", f.Chance)
	}
	if f.MessageKind != "" {
		s += " of " + f.MessageKind
	}
	return s
}

func nodeName(i int) string {
	switch {
	case i == AnyLeader:
		return "leader"
	case i < 0:
		return "follower"
	}
	return fmt.Sprintf("n%d", i+1)
}

// faultOrder lists every kind in the order in which Plan draws from a mix. It is
// fixed: another order gives another plan for each seed.
var faultOrder = []FaultKind{
	Bridge, CutOne, Deafen, Delay, Demote, Drain, Emergency, FailDisk, Flap, FullDisk, HandOver, DropVotes,
	Isolate, Kill, KillAll, KillVoter, LateReply, Lie, Loss, LossReply, Failover, Mute, Pause, PauseAuto,
	PowerLoss, Prefer, Recover, Reject, Remove, Repeat, SlowDisk, SlowIn, Slow, Split, StallDisk, Transfer,
	WipeRejoin, Rebuild, Restore,
}

// FaultWeights is how often each kind of fault comes, relative to the others.
type FaultWeights map[FaultKind]int

// DefaultFaults holds every fault that a cluster must survive without an operator.
func DefaultFaults() FaultWeights {
	return FaultWeights{
		Kill: 10, PowerLoss: 6, KillAll: 1, Isolate: 10, Deafen: 5, Mute: 5, Split: 6, CutOne: 8, Slow: 8, SlowIn: 4,
		Reject: 6, Loss: 5, LossReply: 4, Delay: 6, LateReply: 4, Repeat: 3, Lie: 4, Pause: 5, StallDisk: 4,
		SlowDisk: 4, FullDisk: 1, FailDisk: 2, Transfer: 4, KillVoter: 5,
	}
}

// Add returns this mix with more kinds, or other weights.
func (m FaultWeights) Add(more FaultWeights) FaultWeights {
	sum := maps.Clone(m)
	maps.Copy(sum, more)
	return sum
}

// faults is the plan, or what the seed makes of it.
func (c Config) faults() []Fault {
	if c.Plan != nil {
		return c.Plan
	}
	return Plan(c.Seed, c.Nodes, c.Length, c.Weights, c.FaultInterval, c.FaultDuration)
}

// Plan draws the faults of a run: the same seed gives the same plan.
func Plan(seed uint64, nodes int, length time.Duration, mix FaultWeights, gap, spell traffic.Range) []Fault {
	r := rand.New(rand.NewPCG(seed, 0x706c616e))
	total := 0
	for _, w := range mix {
		total += w
	}
	var faults []Fault
	for at := gap.Draw(r); at < length && total > 0; at += gap.Draw(r) {
		pick := r.IntN(total)
		var kind FaultKind
		for _, kind = range faultOrder {
			if pick -= mix[kind]; pick < 0 {
				break
			}
		}
		faults = append(faults, drawFault(r, kind, nodes, at, spell))
	}
	return faults
}

func drawFault(r *rand.Rand, kind FaultKind, nodes int, at time.Duration, spell traffic.Range) Fault {
	f := Fault{Kind: kind, At: at, For: spell.Draw(r), A: r.IntN(nodes), Bits: r.Uint64()}
	f.B = (f.A + 1 + r.IntN(nodes-1)) % nodes
	if r.IntN(2) == 0 && kind != KillVoter { // a leader does not vote
		f.A = AnyLeader
	}
	switch kind {
	case Slow, SlowIn:
		f.Delay = traffic.Between(time.Millisecond, 500*time.Millisecond).Draw(r)
	case Delay, LateReply:
		f.Delay = traffic.Between(time.Millisecond, 400*time.Millisecond).Draw(r)
		f.Chance, f.MessageKind = 0.1+0.8*r.Float64(), drawMessages(r)
	case Loss, LossReply, Repeat:
		f.Chance, f.MessageKind = 0.05+0.5*r.Float64(), drawMessages(r)
	case Lie:
		f.Chance = 0.05 + 0.5*r.Float64()
	case Flap:
		f.Delay = traffic.Between(time.Millisecond, 150*time.Millisecond).Draw(r)
	case SlowDisk:
		f.Delay = traffic.Between(time.Millisecond, 100*time.Millisecond).Draw(r)
	case KillVoter:
		f.Delay = traffic.Between(0, 2*time.Millisecond).Draw(r)
	}
	return f
}

// drawMessages draws a kind of messages, or all.
func drawMessages(r *rand.Rand) string {
	kinds := []string{"append", "heartbeat", "vote", "prevote", "timeout_now", "snapshot", "probe"}
	if i := r.IntN(2 * len(kinds)); i < len(kinds) {
		return kinds[i]
	}
	return ""
}
