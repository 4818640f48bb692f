package sim

import (
	"context"
	"math/rand/v2"
	"syscall"
	"time"
)

// fullDisk is what others leave on a full disk: less than the reserve, which
// the node keeps for itself.
const fullDisk = 1 << 20

// inject makes a fault happen now, and its end f.For later.
func (w *World) inject(f Fault) {
	f.A, f.B = w.resolve(f)
	w.events.at(w.start, "fault: %v", f)
	w.timeline.fault(f)
	w.mu.Lock()
	w.injected++
	w.hit(f)
	w.mu.Unlock()
	undo, took := w.apply(f)
	if took {
		w.took(f.Kind)
	}
	if undo != nil {
		time.AfterFunc(f.For, undo)
	}
}

// took counts a fault that has had an effect: one that found nothing to break,
// such as the kill of a node that is down already, does not count.
func (w *World) took(kind FaultKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[kind]++
}

// resolve puts nodes in the places of Leading and Following, and keeps the two
// nodes of a fault apart.
func (w *World) resolve(f Fault) (a, b int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := func(i int) int {
		switch i {
		case Leading:
			return w.leader
		case Following:
			return (w.leader + 1) % w.cfg.Nodes
		}
		return i
	}
	a, b = one(f.A), one(f.B)
	if b == a {
		b = (a + 1) % w.cfg.Nodes
	}
	return a, b
}

// apply starts a fault and gives what ends it, and whether it has had an effect;
// what has one later, or never, counts itself then.
func (w *World) apply(f Fault) (undo func(), took bool) {
	a, b := w.members[f.A], w.members[f.B]
	switch f.Kind {
	case Kill, PowerLoss:
		return w.down(f.Kind == PowerLoss, a)
	case KillAll:
		return w.down(false, w.members...)
	case WipeRejoin:
		return w.wipe(a)
	case KillVoter:
		a.disk.OnVote(func(candidate string) bool { return w.killVoter(f, candidate) })
		return nil, false
	case Isolate, Deafen, Mute, Split, CutOne, Bridge:
		return w.cut(f)
	case Flap:
		return w.flap(f), true
	case Slow:
		w.net.Slow(string(a.id), string(b.id), f.Delay)
		return func() { w.net.Slow(string(a.id), string(b.id), 0) }, a.runs() && b.runs()
	case SlowIn:
		return w.slowIn(a, f.Delay), a.runs()
	case Reject:
		took = w.net.Reject(string(a.id), string(b.id))
		return func() { w.net.Admit(string(a.id), string(b.id)) }, took
	case Loss, LossReply, Delay, LateReply, Repeat, Lie, Hush:
		return w.rpc.add(f), false
	case Pause:
		return w.pause(a)
	case StallDisk, SlowDisk, FullDisk, FailDisk:
		return w.spoil(f, a), a.runs()
	case Transfer:
		return nil, w.transfer(a, b, f.For)
	}
	return w.operator.operate(f), false
}

// spoil starts a fault of a disk.
func (w *World) spoil(f Fault, m *member) (undo func()) {
	switch f.Kind {
	case StallDisk:
		m.disk.Stall()
		return w.whileDiskFaulty(m, m.disk.Unstall)
	case SlowDisk:
		m.disk.Slow(f.Delay)
		return func() { m.disk.Slow(0) }
	case FullDisk:
		m.disk.SetFree(fullDisk)
		return w.whileDiskFaulty(m, func() { m.disk.SetFree(1 << 40) })
	}
	m.disk.Fail(syscall.EIO)
	return w.whileDiskFaulty(m, func() { m.disk.Fail(nil) })
}

// killVoter kills the fault's node while it writes a vote, unless that is for
// Fault.B. It says whether it does.
func (w *World) killVoter(f Fault, candidate string) bool {
	if candidate == raftAddress(w.members[f.B].id) {
		return false
	}
	time.AfterFunc(f.Delay, func() {
		undo, took := w.down(false, w.members[f.A])
		if took {
			w.took(f.Kind)
		}
		time.AfterFunc(f.For, undo)
	})
	return true
}

// down kills processes and keeps them down. It says whether one of them ran.
func (w *World) down(powerLoss bool, members ...*member) (undo func(), ran bool) {
	for _, m := range members {
		m.hold()
		ran = m.kill(powerLoss) || ran
	}
	return func() {
		for _, m := range members {
			m.release()
		}
	}, ran
}

// wipe kills a process and empties its disk. It happens to one member at most:
// the others must remain a majority that knows what it had voted. Should one of
// them hold nothing yet, they remain safe, but may wait for ever.
func (w *World) wipe(m *member) (undo func(), took bool) {
	for _, other := range w.members {
		if other.wasWiped() {
			return nil, false
		}
	}
	for _, other := range w.members {
		if e, compacted := other.disk.Entry(1); other != m && e == nil && !compacted {
			w.mu.Lock()
			w.tooFew = true
			w.mu.Unlock()
		}
	}
	undo, _ = w.down(false, m)
	m.mu.Lock()
	m.wiped = true
	m.mu.Unlock()
	m.disk.Wipe()
	w.safety.Wiped(m.id)
	return undo, true
}

func (m *member) wasWiped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wiped
}

// cut interrupts the ways that a fault names. It says whether one of them was
// not cut already.
func (w *World) cut(f Fault) (undo func(), took bool) {
	type way struct{ from, to string }
	var ways []way
	for i, from := range w.members {
		for j, to := range w.members {
			if i != j && cuts(f, i, j) {
				ways = append(ways, way{string(from.id), string(to.id)})
				took = w.net.Cut(string(from.id), string(to.id)) || took
			}
		}
	}
	return func() {
		for _, c := range ways {
			w.net.Heal(c.from, c.to)
		}
	}, took
}

// flap cuts what two nodes say to one another, heals it, and so on.
func (w *World) flap(f Fault) (undo func()) {
	a, b := string(w.members[f.A].id), string(w.members[f.B].id)
	r := rand.New(rand.NewPCG(w.cfg.Seed, uint64(f.At)))
	ctx, stop := context.WithCancel(w.unhealed)
	w.running.Go(func() {
		for cut := true; ctx.Err() == nil; cut = !cut {
			if cut {
				w.net.Cut(a, b)
				w.net.Cut(b, a)
			} else {
				w.net.Heal(a, b)
				w.net.Heal(b, a)
			}
			select {
			case <-time.After(f.Delay/2 + time.Duration(r.Int64N(int64(f.Delay)))):
			case <-ctx.Done():
			}
		}
		w.net.Heal(a, b)
		w.net.Heal(b, a)
	})
	return stop
}

// cuts says whether a fault cuts the way from node i to node j.
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
func (w *World) slowIn(m *member, by time.Duration) (undo func()) {
	slow := func(by time.Duration) {
		for _, other := range w.members {
			if other != m {
				w.net.Slow(string(other.id), string(m.id), by)
			}
		}
	}
	slow(by)
	return func() { slow(0) }
}

// pause holds all that a process does with the network and the disk, like a
// SIGSTOP, but for its timers, which no bubble can hold for one node alone.
func (w *World) pause(m *member) (undo func(), took bool) {
	inst, _ := m.current()
	if inst == nil {
		return nil, false
	}
	inst.proc.Freeze()
	m.disk.Stall()
	return w.whileDiskFaulty(m, func() {
		inst.proc.Thaw()
		m.disk.Unstall()
	}), true
}

// diskAftermath is how long after its disk's fault a node may still stop for
// it: the storage holds up a start that cannot record its term for ten seconds.
const diskAftermath = 11 * time.Second

// whileDiskFaulty counts a fault for which a node may stop until its end, and
// a while longer.
func (w *World) whileDiskFaulty(m *member, undo func()) func() {
	count := func(by int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		m.diskFaulty += by
	}
	count(1)
	return func() {
		undo()
		time.AfterFunc(diskAftermath, func() { count(-1) })
	}
}

// transfer asks a node to hand leadership to another. It says whether there was
// a node to ask.
func (w *World) transfer(from, to *member, limit time.Duration) bool {
	inst, node := from.current()
	if node == nil {
		return false
	}
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(inst.ctx, limit)
		defer cancel()
		err := node.TransferTo(ctx, to.id)
		w.events.at(w.start, "transfer %s to %s: %v", from.id, to.id, err)
	})
	return true
}

// heal ends every fault. The ends of the single faults may still come: they
// find nothing to do, but for the processes that they hold down: it waits for
// those.
func (w *World) heal() {
	w.events.at(w.start, "healed")
	w.healing()
	w.net.HealAll()
	w.rpc.clear()
	for _, m := range w.members {
		m.disk.Unstall()
		m.disk.Slow(0)
		m.disk.Fail(nil)
		m.disk.OnVote(nil)
		m.disk.SetFree(1 << 40)
		if inst, _ := m.current(); inst != nil {
			inst.proc.Thaw()
		}
	}
	for _, m := range w.members {
		for m.isHeld() && !w.isAway(m) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
