package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
	"northstar/chaos/traffic"
)

// singleFaultSLO makes one node at a time fail for about a second, and sometimes all of
// them. The run measures how soon a leader is elected and accepts writes.
func singleFaultSLO(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 30 * time.Second
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.AvailabilityWriters = 1, 0, 0, 0, true
	r := rand.New(rand.NewPCG(seed, 0x73696e67))
	for at := measureFrom + time.Second; at < cfg.Length-2*time.Second; {
		f := Fault{
			Kind: singleNodeFaults[r.IntN(len(singleNodeFaults))], A: AnyLeader, At: at,
			For: traffic.Between(200*time.Millisecond, 2*time.Second).Draw(r),
		}
		if r.IntN(3) == 0 {
			f.A = r.IntN(nodes)
		}
		if r.IntN(12) == 0 {
			f.Kind = KillAll
		}
		cfg.Plan = append(cfg.Plan, f)
		at += f.For + traffic.Between(time.Second, 2*time.Second).Draw(r)
	}
	return cfg
}

// measureFrom is when a new cluster has elected, and is measured from then on.
const measureFrom = 2 * time.Second

// singleNodeFaults take one node out.
var singleNodeFaults = []FaultKind{Kill, Kill, PowerLoss, Isolate, Isolate, Deafen, Mute, Pause, StallDisk}

// attachedSessions has the faults of singleFaultSLO, and clients that keep sessions by connections. No node loses
// power: its clients would not notice that their connections are gone.
func attachedSessions(seed uint64, nodes int) Config {
	cfg := singleFaultSLO(seed, nodes)
	cfg.AvailabilityWriters, cfg.Attachers = false, 2
	for i, f := range cfg.Plan {
		if f.Kind == PowerLoss {
			cfg.Plan[i].Kind = Kill
		}
	}
	return cfg
}

// checkAttached checks which sessions outlived their connections.
func (sim *Simulation) checkAttached() []check.Violation {
	sim.timeline.mu.Lock()
	faults, gaps := slices.Clone(sim.timeline.downtimes), report.GapsOf(sim.timeline.acks, sim.cfg.Length)
	sim.timeline.mu.Unlock()
	return sim.traffic.CheckAttached(faults, gaps, reportTimeout)
}

// measureSLO measures what the probes saw until now.
func (sim *Simulation) measureSLO() *check.SLOReport {
	if !sim.cfg.AvailabilityWriters {
		return nil
	}
	run := check.Run{Nodes: sim.cfg.Nodes, WriteAcks: sim.traffic.WriteAcks(), End: time.Since(sim.start)}
	sim.timeline.mu.Lock()
	defer sim.timeline.mu.Unlock()
	run.Faults = sim.timeline.downtimes
	for _, r := range sim.timeline.leaderships {
		// the cluster was being made
		if run.Leaderships = append(run.Leaderships, r); r.To < measureFrom {
			run.Leaderships = run.Leaderships[:0]
		}
	}
	f := check.MeasureSLO(run)
	return &f
}
