package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/check"
	"northstar/state"
)

// singleFaultSLO has one node that fails at a time, for a second or so, and now and then
// all of them: how soon somebody leads and takes writes is measured.
func singleFaultSLO(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 30 * time.Second
	cfg.Clients, cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.AvailabilityWriters = 1, 0, 0, 0, true
	r := rand.New(rand.NewPCG(seed, 0x73696e67))
	for at := measureFrom + time.Second; at < cfg.Length-2*time.Second; {
		f := Fault{Kind: singleNodeFaults[r.IntN(len(singleNodeFaults))], A: AnyLeader, At: at, For: DurationRange{200 * time.Millisecond, 2 * time.Second}.draw(r)}
		if r.IntN(3) == 0 {
			f.A = r.IntN(nodes)
		}
		if r.IntN(12) == 0 {
			f.Kind = KillAll
		}
		cfg.Plan = append(cfg.Plan, f)
		at += f.For + DurationRange{time.Second, 2 * time.Second}.draw(r)
	}
	return cfg
}

// measureFrom is when a new cluster has elected, and is measured from then on.
const measureFrom = 2 * time.Second

// singleNodeFaults take one node out.
var singleNodeFaults = []FaultKind{Kill, Kill, PowerLoss, Isolate, Isolate, Deafen, Mute, Pause, StallDisk}

// recordDowntime records when a fault keeps a node, or all, from taking part. Called
// with the lock held.
func (sim *Simulation) recordDowntime(f Fault) {
	now := time.Since(sim.start)
	h := check.FaultInterval{Node: nodeName(f.A), From: now, To: now + f.For}
	if f.Kind == KillAll {
		h.Node = ""
	} else if !slices.Contains(singleNodeFaults, f.Kind) {
		return
	}
	sim.downtimes = append(sim.downtimes, h)
}

const writePause = 20 * time.Millisecond

// startAvailabilityWriters starts a writer at each node, which asks for one write after the
// other there.
func (cs *clients) startAvailabilityWriters() {
	for _, m := range cs.sim.members {
		remote := cs.newRemote()
		cs.done.Go(func() {
			for n := 0; cs.pause(writePause); n++ {
				ctx, cancel := context.WithTimeout(cs.sim.ctx, cs.sim.cfg.OpTimeout)
				res, err := httpNode{remote, m.id}.Propose(ctx, state.Command{Kind: state.KindPut, Put: &state.Put{Key: "probe-" + string(m.id), Value: fmt.Append(nil, n)}})
				cancel()
				if err == nil && res.Err == nil {
					cs.sim.mu.Lock()
					cs.sim.writeAcks = append(cs.sim.writeAcks, time.Since(cs.sim.start))
					cs.sim.mu.Unlock()
				}
			}
		})
	}
}

// measureSLO measures what the probes saw until now.
func (sim *Simulation) measureSLO() *check.SLOReport {
	if !sim.cfg.AvailabilityWriters {
		return nil
	}
	run := check.Run{Nodes: sim.cfg.Nodes, End: time.Since(sim.start)}
	sim.timeline.mu.Lock()
	for _, r := range sim.timeline.leaderships {
		if run.Leaderships = append(run.Leaderships, check.Leadership(r)); r.To < measureFrom { // the cluster was being made
			run.Leaderships = run.Leaderships[:0]
		}
	}
	sim.timeline.mu.Unlock()
	sim.mu.Lock()
	run.Faults, run.WriteAcks = slices.Clone(sim.downtimes), slices.Clone(sim.writeAcks)
	sim.mu.Unlock()
	f := check.MeasureSLO(run)
	return &f
}
