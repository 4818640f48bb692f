package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/election"
	"northstar/node"
)

// silenceStart is when the first fault of the scenario comes: by then nodes have measured how often they hear a leader.
const silenceStart = startupTime + 4*time.Second

// silence has leaders that are heard late although they live. In even seeds only their appends and heartbeats are late,
// by less than a timeout, and the nodes tolerate much less. But the leader answers when it is asked: no election may
// happen. In odd seeds processes pause and
// starve, disks and links are slow, and messages are late and lost. Then few elections may be needless, because the
// first raises the thresholds.
func silence(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	r := rand.New(rand.NewPCG(seed, 0x73696c65))
	cfg.NoElections, cfg.CheckSilence = seed%2 == 0, true
	if cfg.NoElections {
		cfg.Build = configured(func(c *node.Config) { c.Failover.Silence = node.Silence(45 * time.Millisecond) })
	}
	var end time.Duration
	pause := traffic.Between(20*time.Millisecond, 400*time.Millisecond)
	for at := silenceStart; at < cfg.Length; at = end + pause.Draw(r) {
		f := Fault{
			At: at, For: traffic.Between(20*time.Millisecond, 140*time.Millisecond).Draw(r),
			A: AnyLeader, B: AnyFollower,
			Delay: traffic.Between(5*time.Millisecond, 200*time.Millisecond).Draw(r), Chance: 0.1 + 0.3*r.Float64(),
		}
		end = at + f.For
		if cfg.NoElections {
			f.Kind, f.Chance, f.Delay = Delay, 1, 60*time.Millisecond+f.Delay/4
			for _, kind := range []string{"append", "heartbeat"} {
				f.MessageKind = kind
				cfg.Plan = append(cfg.Plan, f)
			}
			continue
		}
		kinds := []FaultKind{Pause, SlowDisk, Slow, SlowIn, Loss, LossReply, Delay, LateReply}
		if f.Kind = kinds[r.IntN(len(kinds))]; r.IntN(3) == 0 {
			f.A = AnyFollower
		}
		cfg.Plan = append(cfg.Plan, f)
	}
	return cfg
}

// maxNeedless is how many elections of a run may be needless. The first is known after a second; those before that
// are further ones.
const maxNeedless = 4

// sampleSilence checks a node's threshold, and collects the elections that it has found to be needless.
func (sim *Simulation) sampleSilence(id cluster.NodeID, n whole) {
	threshold, _ := n.node.Failover().Silence()
	if threshold.Value < election.MinSilence || threshold.Value > timeoutMin {
		sim.violatedf(check.NoNeedlessElection, "%s tolerates a silence of %v", id, threshold)
	}
	for term, cause := range n.node.Failover().NeedlessElections() {
		if cause == election.NeedlessLate && !slices.Contains(sim.needless, term) {
			sim.needless = append(sim.needless, term)
			sim.reach("needless election")
		}
	}
}

// checkNeedless reports too many needless elections.
func (sim *Simulation) checkNeedless() {
	if len(sim.needless) > maxNeedless {
		sim.violatedf(check.NoNeedlessElection, "the elections of terms %d were needless", sim.needless)
	}
}
