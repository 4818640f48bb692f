package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/traffic"
)

// votePower has candidates that lose power at a step of their candidacy and are back soon, while the voter that has
// answered is cut off. So they take other entries, and are candidates in the same term again, or another node is.
func votePower(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 10 * time.Second
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.EvictInterval = 2, 0, 0, 0, traffic.Range{}
	r := rand.New(rand.NewPCG(seed, 0x766f7465))
	for at := 2 * time.Second; at < cfg.Length-500*time.Millisecond; at += 1400 * time.Millisecond {
		cfg.Plan = append(cfg.Plan, voteBurst(r, nodes, at+time.Duration(r.IntN(300))*time.Millisecond)...)
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// voteBurst takes the leader away at that time. The first candidate after that writes slowly, and loses power.
func voteBurst(r *rand.Rand, nodes int, at time.Duration) (plan []Fault) {
	ms := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from)) * time.Millisecond }
	step := []string{
		stepVoteAsked, stepVoteStored, stepVoteAnswered, stepVoteAnswered, stepLed, stepLed, stepLedStored,
	}[r.IntN(7)]
	plan = append(plan, Fault{
		Kind: PowerLoss, MessageKind: step, A: StepNode, At: at, For: ms(1, 60),
		Delay: traffic.Between(0, 5*time.Millisecond).Draw(r),
	})
	stall := Fault{Kind: StallDisk, MessageKind: stepVoteAsked, A: StepNode, At: at, For: ms(8, 80)}
	emergency := func(i int, at time.Duration) Fault { return Fault{Kind: Emergency, A: i, B: i, At: at} }
	candidate, requested := AnyFollower-r.IntN(nodes-1), at+ms(1, 60)
	if r.IntN(3) == 0 { // no node hears its requests, and another one wins the same term
		rival := AnyFollower - (AnyFollower-candidate+1+r.IntN(nodes-2))%(nodes-1)
		stall.A = candidate
		return append(plan, stall, Fault{Kind: DropVotes, A: candidate, At: at, For: ms(100, 200)},
			emergency(candidate, requested), emergency(rival, requested+ms(0, 4)))
	}
	if r.IntN(4) > 0 {
		plan = append(plan, stall)
	}
	if r.IntN(4) > 0 {
		plan = append(plan, Fault{Kind: Isolate, MessageKind: step, A: StepPeer, At: at, For: ms(100, 900)})
	}
	gone := Fault{Kind: Isolate, A: AnyLeader, At: at, For: ms(20, 450)}
	if r.IntN(2) == 0 { // it never hears of the candidate, and is back soon after it
		gone.Kind, gone.For = Kill, ms(10, 150)
	}
	plan = append(plan, gone)
	if r.IntN(2) == 0 { // it is a candidate soon
		plan = append(plan, emergency(candidate, requested))
	}
	for i := AnyFollower; i >= -nodes; i-- { // only some hear of it
		if i != candidate && r.IntN(3) == 0 {
			plan = append(plan, Fault{Kind: CutOne, A: candidate, B: i, At: at, For: ms(50, 300)})
		}
	}
	if r.IntN(2) == 0 {
		plan = append(plan, Fault{Kind: Isolate, A: AnyLeader, At: at + ms(250, 700), For: ms(100, 400)})
	}
	return plan
}
