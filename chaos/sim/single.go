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

// single has one node that fails at a time, for a second or so, and now and then
// all of them: how soon somebody leads and takes writes is measured.
func single(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length = 30 * time.Second
	cfg.Clients, cfg.Remotes, cfg.Watchers, cfg.Campaigners, cfg.Probes = 1, 0, 0, 0, true
	r := rand.New(rand.NewPCG(seed, 0x73696e67))
	for at := probesFrom + time.Second; at < cfg.Length-2*time.Second; {
		f := Fault{Kind: singleFaults[r.IntN(len(singleFaults))], A: Leading, At: at, For: Spell{200 * time.Millisecond, 2 * time.Second}.draw(r)}
		if r.IntN(3) == 0 {
			f.A = r.IntN(nodes)
		}
		if r.IntN(12) == 0 {
			f.Kind = KillAll
		}
		cfg.Plan = append(cfg.Plan, f)
		at += f.For + Spell{time.Second, 2 * time.Second}.draw(r)
	}
	return cfg
}

// probesFrom is when a new cluster has elected, and is measured from then on.
const probesFrom = 2 * time.Second

// singleFaults take one node out.
var singleFaults = []FaultKind{Kill, Kill, PowerLoss, Isolate, Isolate, Deafen, Mute, Pause, StallDisk}

// hit takes note of when a fault keeps a node, or all, from taking part. Called
// with the lock held.
func (w *World) hit(f Fault) {
	now := time.Since(w.start)
	h := check.Hit{Node: nodeName(f.A), From: now, To: now + f.For}
	if f.Kind == KillAll {
		h.Node = ""
	} else if !slices.Contains(singleFaults, f.Kind) {
		return
	}
	w.hits = append(w.hits, h)
}

const probePause = 20 * time.Millisecond

// startProbes starts a writer at each node, which asks for one write after the
// other there.
func (cs *clients) startProbes() {
	for _, m := range cs.w.members {
		remote := cs.newRemote()
		cs.done.Go(func() {
			for n := 0; cs.pause(probePause); n++ {
				ctx, cancel := context.WithTimeout(cs.w.ctx, cs.w.cfg.OpTimeout)
				res, err := remoteNode{remote, m.id}.Propose(ctx, state.Command{Kind: state.KindPut, Put: &state.Put{Key: "probe-" + string(m.id), Value: fmt.Append(nil, n)}})
				cancel()
				if err == nil && res.Err == nil {
					cs.w.mu.Lock()
					cs.w.probed = append(cs.w.probed, time.Since(cs.w.start))
					cs.w.mu.Unlock()
				}
			}
		})
	}
}

// figures measures what the probes saw until now.
func (w *World) figures() *check.Figures {
	if !w.cfg.Probes {
		return nil
	}
	run := check.Run{Nodes: w.cfg.Nodes, End: time.Since(w.start)}
	w.timeline.mu.Lock()
	for _, r := range w.timeline.reigns {
		if run.Reigns = append(run.Reigns, check.Reign(r)); r.To < probesFrom { // the cluster was being made
			run.Reigns = run.Reigns[:0]
		}
	}
	w.timeline.mu.Unlock()
	w.mu.Lock()
	run.Hits, run.Acks = slices.Clone(w.hits), slices.Clone(w.probed)
	w.mu.Unlock()
	f := check.Measure(run)
	return &f
}
