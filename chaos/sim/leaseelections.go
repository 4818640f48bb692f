package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/traffic"
	"northstar/node"
)

// Rebuild replaces the Raft instance in a node's process, as the watchdog of a transfer does.
const Rebuild FaultKind = "raft-rebuild"

// rebuild replaces a node's Raft instance, and reports whether there was one.
func (sim *Simulation) rebuild(m *member) bool {
	_, n := m.current()
	raft, ok := n.(interface{ RestartRaft(why string) })
	if !ok {
		return false
	}
	if sim.cfg.Leases && sim.leaseOf(sim.leading()) > 0 {
		sim.reach("rebuild within a lease")
	}
	raft.RestartRaft("the simulation")
	return true
}

// leaseOf returns how long a node's lease lasts.
func (sim *Simulation) leaseOf(m *member) time.Duration {
	if _, n := m.current(); n != nil {
		return n.Status().LeaseRemaining
	}
	return 0
}

// cutOff reports whether nothing that a node sends arrives anywhere.
func (sim *Simulation) cutOff(m *member) bool {
	return !slices.ContainsFunc(sim.members, func(other *member) bool {
		return other != m && !sim.net.IsCut(string(m.id), string(other.id))
	})
}

// leaseElections has nodes with leases. At the moment at which the leader is cut off, voters replace their Raft
// instances, and an operator requests an election, perhaps of a node whose log is behind. There are few writes:
// otherwise no node that has lost its leader before could be elected.
func leaseElections(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 10 * time.Second
	cfg.Clients, cfg.Readers, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners = 1, 4, 0, 0, 0
	cfg.EvictInterval, cfg.ThinkTime = traffic.Range{}, traffic.Between(0, 1200*time.Millisecond)
	cfg.ReadPause = traffic.Between(0, 30*time.Millisecond)
	cfg.Build, cfg.Leases = configured(func(c *node.Config) { c.Election.Lease = true }), true
	r := rand.New(rand.NewPCG(seed, 0x6c656173))
	for at := 2500 * time.Millisecond; at < cfg.Length-500*time.Millisecond; at += 1600 * time.Millisecond {
		cfg.Plan = append(cfg.Plan, leaseBurst(r, nodes, at+time.Duration(r.IntN(300))*time.Millisecond)...)
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

// leaseBurst cuts the leader off at that time. One of the others may lack entries, and another one may have lost its
// leader: it is a candidate by itself, and is refused until then.
func leaseBurst(r *rand.Rand, nodes int, at time.Duration) (plan []Fault) {
	const behindFor, lostFor, after = 900 * time.Millisecond, 400 * time.Millisecond, 50 * time.Millisecond
	behind, lost := AnyFollower, -nodes
	if nodes > 3 && r.IntN(2) == 0 {
		plan = append(plan, Fault{Kind: CutOne, A: AnyLeader, B: behind, At: at - behindFor, For: behindFor + after})
	}
	if r.IntN(4) > 0 {
		plan = append(plan, Fault{Kind: CutOne, A: AnyLeader, B: lost, At: at - lostFor, For: lostFor + after})
	}
	cut := Fault{
		Kind: Isolate, A: AnyLeader, At: at,
		For: traffic.Between(200*time.Millisecond, 700*time.Millisecond).Draw(r),
	}
	if r.IntN(4) == 0 {
		cut.Kind = Mute
	}
	plan = append(plan, cut)
	for i := AnyFollower; i > lost; i-- {
		if r.IntN(4) > 0 {
			plan = append(plan, Fault{Kind: Rebuild, A: i, At: at + time.Duration(r.IntN(8)-2)*time.Millisecond})
		}
	}
	if order := r.IntN(4); order < 3 {
		f := Fault{
			Kind: []FaultKind{Failover, Emergency, Emergency}[order], A: behind, B: behind,
			At: at + time.Duration(r.IntN(40)-10)*time.Millisecond,
		}
		if r.IntN(3) == 0 {
			f.B = AnyFollower - r.IntN(nodes-1)
		}
		plan = append(plan, f)
	}
	return plan
}
