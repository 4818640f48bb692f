package sim

import (
	"context"
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
	w.faults++
	w.mu.Unlock()
	if undo := w.apply(f); undo != nil {
		time.AfterFunc(f.For, undo)
	}
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

// apply starts a fault and gives what ends it.
func (w *World) apply(f Fault) (undo func()) {
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
		return nil
	case Isolate, Deafen, Mute, Split, CutOne:
		return w.cut(f)
	case Slow:
		w.net.Slow(string(a.id), string(b.id), f.Delay)
		return func() { w.net.Slow(string(a.id), string(b.id), 0) }
	case SlowIn:
		return w.slowIn(a, f.Delay)
	case Reject:
		w.net.Reject(string(a.id), string(b.id))
		return func() { w.net.Admit(string(a.id), string(b.id)) }
	case Loss, LossReply, Delay, LateReply, Repeat, Lie, Hush:
		return w.rpc.add(f)
	case Pause:
		return w.pause(a)
	case StallDisk:
		a.disk.Stall()
		return w.whileDiskFaulty(a, a.disk.Unstall)
	case SlowDisk:
		a.disk.Slow(f.Delay)
		return func() { a.disk.Slow(0) }
	case FullDisk:
		a.disk.SetFree(fullDisk)
		return w.whileDiskFaulty(a, func() { a.disk.SetFree(1 << 40) })
	case FailDisk:
		a.disk.Fail(syscall.EIO)
		return w.whileDiskFaulty(a, func() { a.disk.Fail(nil) })
	case Transfer:
		return w.transfer(a, b, f.For)
	}
	return w.operator.operate(f)
}

// killVoter kills the fault's node while it writes a vote, unless that is for
// Fault.B. It says whether it does.
func (w *World) killVoter(f Fault, candidate string) bool {
	if candidate == raftAddress(w.members[f.B].id) {
		return false
	}
	time.AfterFunc(f.Delay, func() {
		undo := w.down(false, w.members[f.A])
		time.AfterFunc(f.For, undo)
	})
	return true
}

// down kills processes and keeps them down.
func (w *World) down(powerLoss bool, members ...*member) (undo func()) {
	for _, m := range members {
		m.hold()
		m.kill(powerLoss)
	}
	return func() {
		for _, m := range members {
			m.release()
		}
	}
}

// wipe kills a process and empties its disk. It happens to one member at most:
// the others must remain a majority that knows what it had voted. Should one of
// them hold nothing yet, they remain safe, but may wait for ever.
func (w *World) wipe(m *member) (undo func()) {
	for _, other := range w.members {
		if other.wasWiped() {
			return nil
		}
	}
	for _, other := range w.members {
		if e, compacted := other.disk.Entry(1); other != m && e == nil && !compacted {
			w.mu.Lock()
			w.tooFew = true
			w.mu.Unlock()
		}
	}
	undo = w.down(false, m)
	m.mu.Lock()
	m.wiped = true
	m.mu.Unlock()
	m.disk.Wipe()
	w.safety.Wiped(m.id)
	return undo
}

func (m *member) wasWiped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wiped
}

// cut interrupts the ways that a fault names.
func (w *World) cut(f Fault) (undo func()) {
	type way struct{ from, to string }
	var ways []way
	for i, from := range w.members {
		for j, to := range w.members {
			if i != j && cuts(f, i, j) {
				ways = append(ways, way{string(from.id), string(to.id)})
				w.net.Cut(string(from.id), string(to.id))
			}
		}
	}
	return func() {
		for _, c := range ways {
			w.net.Heal(c.from, c.to)
		}
	}
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
func (w *World) pause(m *member) (undo func()) {
	inst, _ := m.current()
	if inst == nil {
		return nil
	}
	inst.proc.Freeze()
	m.disk.Stall()
	return w.whileDiskFaulty(m, func() {
		inst.proc.Thaw()
		m.disk.Unstall()
	})
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

// transfer asks a node to hand leadership to another.
func (w *World) transfer(from, to *member, limit time.Duration) (undo func()) {
	inst, node := from.current()
	if node == nil {
		return nil
	}
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(inst.ctx, limit)
		defer cancel()
		err := node.TransferTo(ctx, to.id)
		w.events.at(w.start, "transfer %s to %s: %v", from.id, to.id, err)
	})
	return nil
}

// heal ends every fault. The ends of the single faults may still come: they
// find nothing to do, but for the processes that they hold down: it waits for
// those.
func (w *World) heal() {
	w.events.at(w.start, "healed")
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
		for m.isHeld() {
			time.Sleep(5 * time.Millisecond)
		}
	}
}
