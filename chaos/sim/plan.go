package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"northstar/chaos/traffic"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	Kill       FaultKind = "process-kill"          // a process, as kill -9; started again at the end
	PowerLoss  FaultKind = "power-loss"            // the same, without a word to its peers
	KillAll    FaultKind = "process-kill-all"      // at one moment
	Isolate    FaultKind = "partition-node"        // a node from all others, both ways
	Deafen     FaultKind = "partition-inbound"     // a node hears nobody, but is heard
	Mute       FaultKind = "partition-outbound"    // a node is heard by nobody, but hears
	Split      FaultKind = "partition-halves"      // the nodes with an even bit from those with an odd one in Fault.Bits
	CutOne     FaultKind = "partition-one-way"     // from a node to another
	Bridge     FaultKind = "partition-bridge"      // as Split, but a node is heard on both sides, and hears both
	Flap       FaultKind = "link-flap"             // what two nodes say to one another, cut and healed every Fault.Delay or so
	Reject     FaultKind = "network-reject"        // a firewall resets what two nodes have open and refuses what the first dials
	Slow       FaultKind = "network-delay-link"    // from a node to another, by Fault.Delay
	SlowIn     FaultKind = "network-delay-inbound" // all that is sent to a node, by Fault.Delay: answers come late
	Loss       FaultKind = "rpc-drop-request"      // of Raft messages and probes, each with Fault.Chance
	LossReply  FaultKind = "rpc-drop-response"
	Delay      FaultKind = "rpc-delay-request"  // of Raft messages and probes, each with Fault.Chance, by up to Fault.Delay: some overtake others
	LateReply  FaultKind = "rpc-delay-response" // each with Fault.Chance, by up to Fault.Delay
	Repeat     FaultKind = "rpc-duplicate"      // each message with Fault.Chance arrives twice
	Hush       FaultKind = "rpc-drop-votes"     // none of a node's requests for votes arrives
	Lie        FaultKind = "corrupt-claims"     // of all nodes, in their claims, each with Fault.Chance
	Pause      FaultKind = "process-pause"
	StallDisk  FaultKind = "disk-hang"
	SlowDisk   FaultKind = "disk-delay"             // by Fault.Delay each write
	FullDisk   FaultKind = "disk-full"              // less than the reserve is left
	FailDisk   FaultKind = "disk-error"             // every write is an error, by which a node ends
	Transfer   FaultKind = "leader-transfer"        // of leadership, at a bad moment
	KillVoter  FaultKind = "kill-during-vote-write" // a node, Fault.Delay after it has begun to write its next vote, unless that is for Fault.B
	WipeRejoin FaultKind = "disk-wipe"              // a node comes back with an empty disk
)

// As a Fault's node, Leading stands for whichever node leads when it happens,
// and Following for one that does not.
const (
	AnyLeader   = -1
	AnyFollower = -2
)

// Fault is one thing that goes wrong, from At for a while.
type Fault struct {
	Kind        FaultKind
	At, For     time.Duration
	A, B        int // nodes, from 0; or Leading, or Following
	Bits        uint64
	Delay       time.Duration
	Chance      float64
	MessageKind string // the kind of messages, of a fault of messages; "": all
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
	switch i {
	case AnyLeader:
		return "leader"
	case AnyFollower:
		return "follower"
	}
	return fmt.Sprintf("n%d", i+1)
}

// faultOrder lists every kind in the order in which Plan draws from a mix. It is
// fixed: another order gives another plan for each seed.
var faultOrder = []FaultKind{
	Bridge, CutOne, Deafen, Delay, Demote, Drain, Emergency, FailDisk, Flap, FullDisk, HandOver, Hush,
	Isolate, Kill, KillAll, KillVoter, LateReply, Lie, Loss, LossReply, Failover, Mute, Pause, PauseAuto,
	PowerLoss, Prefer, Recover, Reject, Remove, Repeat, SlowDisk, SlowIn, Slow, Split, StallDisk, Transfer,
	WipeRejoin,
}

// FaultWeights reports how often which kind of fault comes: by weight.
type FaultWeights map[FaultKind]int

// DefaultFaults holds every fault that a cluster must survive without an
// operator.
func DefaultFaults() FaultWeights {
	return FaultWeights{
		Kill: 10, PowerLoss: 6, KillAll: 1, Isolate: 10, Deafen: 5, Mute: 5, Split: 6, CutOne: 8, Slow: 8, SlowIn: 4,
		Reject: 6, Loss: 5, LossReply: 4, Delay: 6, LateReply: 4, Repeat: 3, Lie: 4, Pause: 5, StallDisk: 4, SlowDisk: 4, FullDisk: 1, FailDisk: 2, Transfer: 4, KillVoter: 5,
	}
}

// Add returns this mix with more kinds, or other weights.
func (m FaultWeights) Add(more FaultWeights) FaultWeights {
	sum := maps.Clone(m)
	maps.Copy(sum, more)
	return sum
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
		f.Delay, f.Chance, f.MessageKind = traffic.Between(time.Millisecond, 400*time.Millisecond).Draw(r), 0.1+0.8*r.Float64(), drawMessages(r)
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
