package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/node"
	"northstar/state"
)

// Restore restores a backup on a node, which is taken just before.
const Restore FaultKind = "admin-restore"

const (
	restoreLimit  = 3 * time.Second // for a backup and its restore
	restoreClient = 3000            // number of the first one that restores, in the history
)

// restorer is a node that restores backups.
type restorer interface {
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, backup io.Reader) error
}

// restore has a node restore a backup, and reports whether there was one to ask.
func (sim *Simulation) restore(m *member) bool {
	inst, node := m.current()
	n, ok := node.(restorer)
	if ok {
		sim.operator.later(func() { sim.restoreOn(m, inst, n) })
	}
	return ok
}

// restoreOn takes a backup and restores it. To each key that is a write of its value in the backup.
func (sim *Simulation) restoreOn(m *member, inst *instance, n restorer) {
	ctx, cancel := context.WithTimeout(inst.ctx, restoreLimit)
	defer cancel()
	var backup bytes.Buffer
	if n.Backup(ctx, &backup) != nil {
		return
	}
	ops, err := sim.restoreOps(backup.Bytes())
	if err != nil {
		sim.violatedf(check.OnlyDocumentedErrors, "a backup of %s: %v", m.id, err)
		return
	}
	time.Sleep(restorePause)
	begin := time.Since(sim.start)
	next := sim.members[(m.index+1)%len(sim.members)]
	sim.steps.at(stepRestoreBegun, m, next)
	err = n.Restore(ctx, &backup)
	sim.events.at(sim.start, "restore on %s: %v", m.id, err)
	if e, ok := errors.AsType[*cluster.Error](err); ok && e.Code != cluster.CodeOutcomeUnknown {
		return // it has not begun
	}
	sim.steps.at(stepRestored, m, next)
	outcome, what := check.Done, "restore done"
	if err != nil || inst.ctx.Err() != nil {
		outcome, what = check.Unknown, "restore with an unknown outcome"
	}
	sim.reach(what)
	for _, op := range ops {
		op.Begin, op.End, op.Node, op.Outcome = begin, time.Since(sim.start), string(m.id), outcome
		sim.traffic.History.Add(op)
	}
}

// restorePause is the time between a backup and its restore, which undoes what is written meanwhile.
const restorePause = 20 * time.Millisecond

// restoreOps returns what the restore of a backup does to each key in use.
func (sim *Simulation) restoreOps(backup []byte) (ops []check.Op, err error) {
	s := state.New(state.Options{})
	if _, err := s.ReadFrom(bytes.NewReader(backup)); err != nil {
		return nil, err
	}
	sim.mu.Lock()
	sim.restores++
	client := restoreClient + sim.restores
	sim.mu.Unlock()
	for i := range sim.cfg.Keys {
		key := users{sim}.Key(i)
		item, _ := s.View().Get(key)
		ops = append(ops, check.Op{
			Client: client, Kind: check.Put, Key: key, Value: string(item.Value), Note: "restore",
		})
	}
	return ops, nil
}

// restoreFaults has an operator that restores backups again and again, while faults hit nodes at a step of it. In the
// runs with an odd seed nodes take no snapshots of their own, and clients write more entries between two restores than
// logs keep. There a node that installs a snapshot compacts entries that no other snapshot has.
func restoreFaults(seed uint64, nodes int) Config {
	cfg := DefaultConfig(seed, nodes)
	cfg.Length, cfg.Clients, cfg.Keys, cfg.ThinkTime = 9*time.Second, 2, 4, traffic.Between(0, 12*time.Millisecond)
	cfg.HTTPClients, cfg.Watchers, cfg.Campaigners, cfg.EvictInterval = 0, 0, 0, traffic.Range{}
	first, gap := 2*time.Second, 1300*time.Millisecond
	if seed%2 == 1 {
		cfg.Clients, cfg.ThinkTime, cfg.Disk.FsyncMax = 6, traffic.Between(0, time.Millisecond), 150*time.Microsecond
		cfg.Build = configured(func(c *node.Config) { c.Snapshot.Threshold, c.Snapshot.Interval = 1<<20, time.Minute })
		first, gap = 2700*time.Millisecond, 2500*time.Millisecond
	}
	r, undo := rand.New(rand.NewPCG(seed, 0x72657374)), rand.New(rand.NewPCG(seed, 0x756e646f))
	for at := first; at < cfg.Length-500*time.Millisecond; at += gap {
		cfg.Plan = append(cfg.Plan, Fault{Kind: Restore, A: AnyLeader, At: at})
		if r.IntN(2) == 0 {
			cfg.Plan = append(append(cfg.Plan, abandonFaults(r, nodes, at)...), undoFault(undo, at))
			continue
		}
		for range 1 + r.IntN(2) {
			cfg.Plan = append(cfg.Plan, restoreFault(r, at))
		}
	}
	slices.SortStableFunc(cfg.Plan, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return cfg
}

var restoreFaultKinds = []FaultKind{Kill, PowerLoss, Isolate, SlowDisk}

// restoreFault hits the leader, or the node that has come to a step of a restore.
func restoreFault(r *rand.Rand, at time.Duration) Fault {
	f := Fault{
		Kind: restoreFaultKinds[r.IntN(len(restoreFaultKinds))], At: at, A: StepNode, Bits: r.Uint64() & 3,
		MessageKind: restoreSteps[r.IntN(len(restoreSteps))],
		For:         traffic.Between(20*time.Millisecond, 900*time.Millisecond).Draw(r),
		Delay:       traffic.Between(0, 4*time.Millisecond).Draw(r),
	}
	if r.IntN(2) == 0 {
		f.A = AnyLeader
	}
	if f.Kind == SlowDisk {
		f.Delay = traffic.Between(10*time.Millisecond, 150*time.Millisecond).Draw(r)
	}
	return f
}

// undoFault hits a node that undoes the restore of abandonFaults: between its log and its snapshot, or soon after.
func undoFault(r *rand.Rand, at time.Duration) Fault {
	f := restoreFault(r, at)
	f.A, f.MessageKind, f.Bits = StepNode, stepAbandoned, r.Uint64()&1
	if r.IntN(2) == 0 && f.Kind != SlowDisk {
		f.Delay = 0
	}
	return f
}

// abandonFaults lets the leader alone have the snapshot, or one follower too, and then takes them away: the others go
// on without the restore.
func abandonFaults(r *rand.Rand, nodes int, at time.Duration) (plan []Fault) {
	first, alone := AnyFollower-r.IntN(nodes-1), r.IntN(nodes-1) == 0
	for i := AnyFollower; i >= -nodes; i-- {
		if i != first || alone {
			plan = append(plan, Fault{
				Kind: CutOne, MessageKind: stepSnapshotBegun, A: AnyLeader, B: i, At: at, For: 300 * time.Millisecond,
			})
		}
	}
	lost := func(node int, times uint64) {
		f := restoreFault(r, at)
		f.Kind, f.A, f.MessageKind = restoreFaultKinds[r.IntN(3)], node, stepSnapshotStored
		f.Bits, f.For = times, f.For+300*time.Millisecond
		plan = append(plan, f)
	}
	if alone {
		lost(StepNode, 0)
	} else { // the leader's own snapshot is the first
		lost(AnyLeader, 1)
		lost(StepNode, 1)
	}
	return plan
}
