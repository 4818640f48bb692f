package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"northstar/cluster"
)

// Space that others leave on a disk. On a full one it is less than the reserve, which the node keeps for itself.
const (
	emptyDisk = 1 << 40
	fullDisk  = 1 << 20
)

// inject makes a fault happen now, or at the step that it names.
func (sim *Simulation) inject(f Fault) {
	if slices.Contains(candidacySteps, f.MessageKind) || slices.Contains(restoreSteps, f.MessageKind) {
		sim.steps.add(f)
		return
	}
	sim.injectNow(f)
}

// injectNow makes a fault happen now, and its end f.For later. It reports whether the fault has had an effect by now.
func (sim *Simulation) injectNow(f Fault) bool {
	f.A, f.B = sim.resolve(f)
	sim.events.at(sim.start, "fault: %v", f)
	sim.timeline.fault(f)
	undo, took := sim.apply(f)
	if took {
		sim.countEffective(f.Kind)
	}
	if undo != nil {
		time.AfterFunc(f.For, undo)
	}
	return took
}

// countEffective counts a fault that has had an effect: one that found nothing to break,
// such as the kill of a node that is down already, does not count.
func (sim *Simulation) countEffective(kind FaultKind) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.faults[kind]++
}

// resolve puts nodes in the places of AnyLeader and AnyFollower, and keeps the two nodes of a fault apart.
func (sim *Simulation) resolve(f Fault) (a, b int) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	one := func(i int) int {
		if i < 0 {
			return (sim.leader + AnyLeader - i) % sim.cfg.Nodes
		}
		return i
	}
	a, b = one(f.A), one(f.B)
	if b == a && (f.A >= 0 || f.A != f.B) { // AnyFollower twice is one node
		b = (a + 1) % sim.cfg.Nodes
	}
	return a, b
}

// apply starts a fault and returns what ends it, and whether it has had an effect;
// what has one later, or never, counts itself then.
func (sim *Simulation) apply(f Fault) (undo func(), took bool) {
	a, b := sim.members[f.A], sim.members[f.B]
	switch f.Kind {
	case Kill, PowerLoss:
		return sim.killNodes(f.Kind == PowerLoss, a)
	case KillAll:
		return sim.killNodes(false, sim.members...)
	case WipeRejoin:
		return sim.wipe(a)
	case KillVoter:
		a.disk.set(func(d *Disk) { d.onVote = func(to string) bool { return sim.killVoter(f, to) } })
		return nil, false
	case Isolate, Deafen, Mute, Split, CutOne, Bridge:
		return sim.cut(f)
	case Flap:
		return sim.flap(f), true
	case Slow:
		sim.net.Slow(string(a.id), string(b.id), f.Delay)
		return func() { sim.net.Slow(string(a.id), string(b.id), 0) }, a.runs() && b.runs()
	case SlowIn:
		return sim.slowIn(a, f.Delay), a.runs()
	case Reject:
		took = sim.net.Reject(string(a.id), string(b.id))
		return func() { sim.net.Admit(string(a.id), string(b.id)) }, took
	case Loss, LossReply, Delay, LateReply, Repeat, Lie, DropVotes:
		return sim.rpc.add(f), false
	case Pause:
		return sim.pause(a)
	case StallDisk, SlowDisk, FullDisk, FailDisk:
		return sim.injectDiskFault(f, a), a.runs()
	case Transfer:
		return nil, sim.transfer(a, b, f.For)
	case Rebuild:
		return nil, sim.rebuild(a)
	case Restore:
		return nil, sim.restore(a)
	}
	return sim.operator.operate(f), false
}

// injectDiskFault starts a fault of a disk.
func (sim *Simulation) injectDiskFault(f Fault, m *member) (undo func()) {
	switch f.Kind {
	case StallDisk:
		m.disk.set((*Disk).stall)
		return sim.whileDiskFaulty(m, func() { m.disk.set((*Disk).unstall) })
	case SlowDisk:
		m.disk.set(func(d *Disk) { d.slow = f.Delay })
		return func() { m.disk.set(func(d *Disk) { d.slow = 0 }) }
	case FullDisk:
		m.disk.set(func(d *Disk) { d.free = fullDisk })
		return sim.whileDiskFaulty(m, func() { m.disk.set(func(d *Disk) { d.free = emptyDisk }) })
	}
	m.disk.set(func(d *Disk) { d.fail = syscall.EIO })
	return sim.whileDiskFaulty(m, func() { m.disk.set(func(d *Disk) { d.fail = nil }) })
}

// killVoter kills the fault's node while it writes a vote, unless that is for Fault.B. It reports whether it does.
func (sim *Simulation) killVoter(f Fault, candidate string) bool {
	if candidate == raftAddress(sim.members[f.B].id) {
		return false
	}
	time.AfterFunc(f.Delay, func() {
		undo, took := sim.killNodes(false, sim.members[f.A])
		if took {
			sim.countEffective(f.Kind)
		}
		time.AfterFunc(f.For, undo)
	})
	return true
}

// killNodes kills processes and keeps them down. It reports whether one of them ran.
func (sim *Simulation) killNodes(powerLoss bool, members ...*member) (undo func(), ran bool) {
	for _, m := range members {
		m.keepDown()
		ran = m.kill(powerLoss) || ran
	}
	return func() {
		for _, m := range members {
			m.release()
		}
	}, ran
}

// wipe kills a process and empties its disk. It happens to one member at most: the others must remain a majority that
// knows what it had voted. Should one of them hold nothing yet, they remain safe, but may wait for ever.
func (sim *Simulation) wipe(m *member) (undo func(), took bool) {
	for _, other := range sim.members {
		if other.wiped.Load() {
			return nil, false
		}
	}
	for _, other := range sim.members {
		if e, compacted := other.disk.Entry(1); other != m && e == nil && !compacted {
			sim.tooFew.Store(true)
		}
	}
	undo, _ = sim.killNodes(false, m)
	m.wiped.Store(true)
	m.disk.Wipe()
	sim.safety.Wiped(m.id)
	return undo, true
}

// cut interrupts the ways that a fault names. It reports whether one of them was not cut already.
func (sim *Simulation) cut(f Fault) (undo func(), took bool) {
	type way struct{ from, to string }
	var ways []way
	for i, from := range sim.members {
		for j, to := range sim.members {
			if i != j && cuts(f, i, j) {
				ways = append(ways, way{string(from.id), string(to.id)})
				took = sim.net.Cut(string(from.id), string(to.id)) || took
			}
		}
	}
	return func() {
		for _, c := range ways {
			sim.net.Heal(c.from, c.to)
		}
	}, took
}

// flap cuts what two nodes say to one another, heals it, and so on.
func (sim *Simulation) flap(f Fault) (undo func()) {
	a, b := string(sim.members[f.A].id), string(sim.members[f.B].id)
	r := rand.New(rand.NewPCG(sim.cfg.Seed, uint64(f.At)))
	heal := func() {
		sim.net.Heal(a, b)
		sim.net.Heal(b, a)
	}
	ctx, stop := context.WithCancel(sim.unhealed)
	sim.running.Go(func() {
		defer heal()
		for cut := true; ctx.Err() == nil; cut = !cut {
			if cut {
				sim.net.Cut(a, b)
				sim.net.Cut(b, a)
			} else {
				heal()
			}
			select {
			case <-time.After(f.Delay/2 + time.Duration(r.Int64N(int64(f.Delay)))):
			case <-ctx.Done():
			}
		}
	})
	return stop
}

// cuts reports whether a fault cuts the way from node i to node j.
func cuts(f Fault, i, j int) bool {
	switch f.Kind {
	case Isolate:
		return i == f.A || j == f.A
	case Deafen:
		return j == f.A
	case Mute:
		return i == f.A
	case Split:
		return (f.Bits>>i)&1 != (f.Bits>>j)&1
	case Bridge:
		return i != f.A && j != f.A && (f.Bits>>i)&1 != (f.Bits>>j)&1
	}
	return i == f.A && j == f.B
}

// slowIn slows all that is sent to a node.
func (sim *Simulation) slowIn(m *member, by time.Duration) (undo func()) {
	slow := func(by time.Duration) {
		for _, other := range sim.members {
			if other != m {
				sim.net.Slow(string(other.id), string(m.id), by)
			}
		}
	}
	slow(by)
	return func() { slow(0) }
}

// pause holds all that a process does with the network and the disk, like a
// SIGSTOP, but for its timers, which no bubble can hold for one node alone.
func (sim *Simulation) pause(m *member) (undo func(), took bool) {
	inst, _ := m.current()
	if inst == nil {
		return nil, false
	}
	inst.proc.Freeze()
	m.disk.set((*Disk).stall)
	return sim.whileDiskFaulty(m, func() {
		inst.proc.Thaw()
		m.disk.set((*Disk).unstall)
	}), true
}

// diskFaultGrace is how long after its disk's fault a node may still stop for
// it: the storage holds up a start that cannot record its term for ten seconds.
const diskFaultGrace = 11 * time.Second

// whileDiskFaulty counts a fault for which a node may stop until its end, and a while longer.
func (sim *Simulation) whileDiskFaulty(m *member, undo func()) func() {
	count := func(by int) {
		sim.mu.Lock()
		defer sim.mu.Unlock()
		m.diskFaulty += by
	}
	count(1)
	return func() {
		undo()
		time.AfterFunc(diskFaultGrace, func() { count(-1) })
	}
}

// transfer asks a node to transfer leadership to another. It reports whether there was a node to ask.
func (sim *Simulation) transfer(from, to *member, limit time.Duration) bool {
	inst, node := from.current()
	if node == nil {
		return false
	}
	sim.running.Go(func() {
		ctx, cancel := context.WithTimeout(inst.ctx, limit)
		defer cancel()
		err := node.TransferTo(ctx, cluster.TransferNotice{
			To: to.id, Trigger: "transfer", Reason: "the simulation",
		})
		sim.events.at(sim.start, "transfer %s to %s: %v", from.id, to.id, err)
	})
	return true
}

// heal ends every fault. The ends of the single faults may still come: they find nothing to do, but for the processes
// that they hold down: it waits for those.
func (sim *Simulation) heal() {
	sim.events.at(sim.start, "healed")
	sim.healing()
	sim.net.HealAll()
	sim.rpc.clear()
	for _, m := range sim.members {
		m.disk.set(func(d *Disk) {
			d.unstall()
			d.slow, d.fail, d.onVote, d.free = 0, nil, nil, emptyDisk
		})
		if inst, _ := m.current(); inst != nil {
			inst.proc.Thaw()
		}
	}
	for _, m := range sim.members {
		for m.isHeld() && !sim.isLost(m) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
