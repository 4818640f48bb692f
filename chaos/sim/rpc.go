package sim

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"northstar/cluster"
	"northstar/transport"
)

// rpcFaults loses and delays Raft messages, and is where the run sees who
// acts as a leader. It is the transport.Faults of all nodes.
type rpcFaults struct {
	sim *Simulation

	mu     sync.Mutex
	active []*activeFault
	seq    map[linkKey]uint64
	hits   atomic.Int64
	sent   messages
}

// activeFault is a fault of messages that lasts.
type activeFault struct {
	Fault
	hit bool // it has hit a message
}

// countHit counts a message that a fault has hit. Called with the lock held.
func (r *rpcFaults) countHit(f *activeFault) {
	r.hits.Add(1)
	if !f.hit {
		f.hit = true
		r.sim.countEffective(f.Kind)
	}
}

// add makes a fault count until the function it returns is called.
func (r *rpcFaults) add(f Fault) (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	added := &activeFault{Fault: f}
	r.active = append(r.active, added)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.active = slices.DeleteFunc(r.active, func(other *activeFault) bool { return other == added })
	}
}

func (r *rpcFaults) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active = nil
}

// processFaults is rpcFaults for one process. A process that was killed goes on for a while: what it does then does not
// happen.
type processFaults struct {
	*rpcFaults
	proc *Proc
}

// Outgoing decides on one message.
func (p processFaults) Outgoing(m transport.Message) transport.Fault {
	if p.proc.gone() {
		return p.draw(m)
	}
	from, to := p.sim.memberOf(m.From), p.sim.memberOf(m.To)
	switch m.Kind {
	case "append", "heartbeat", "snapshot":
		p.sim.leads(m.From, m.To, m.Term)
	}
	switch m.Kind {
	case "vote":
		p.sim.voteRequested(from, to, m.Term, p.proc)
	case "snapshot":
		p.sim.steps.at(stepSnapshotSent, from, to)
	}
	fault := p.draw(m)
	wipes := to.disk.Wipes()
	fault.Answered = func() {
		if !p.proc.gone() {
			p.sim.answered(m, from, to, wipes)
		}
	}
	return fault
}

// draw draws what happens to a message.
func (r *rpcFaults) draw(m transport.Message) transport.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	fault := r.decide(m)
	r.sent.add(sent{at: time.Since(r.sim.start), kind: m.Kind, from: m.From, to: m.To, term: m.Term, fault: fault})
	return fault
}

// decide draws what happens to a message. Faults that begin at one moment draw the same number. Called with the lock
// held.
func (r *rpcFaults) decide(m transport.Message) (fault transport.Fault) {
	if len(r.active) == 0 {
		return fault
	}
	key := linkKey{string(m.From), string(m.To)}
	r.seq[key]++
	var hit []*activeFault
	for _, f := range r.active {
		if f.Kind == DropVotes {
			if m.From == r.sim.members[f.A].id && (m.Kind == "vote" || m.Kind == "prevote") {
				fault.Drop = true
				hit = append(hit, f)
			}
			continue
		}
		h := hash(r.sim.cfg.Seed+uint64(f.At), key.from, key.to, r.seq[key])
		if f.Kind == Lie || f.MessageKind != "" && f.MessageKind != m.Kind || float64(h>>11)/(1<<53) >= f.Chance {
			continue
		}
		hit = append(hit, f)
		switch f.Kind {
		case Loss:
			fault.Drop = true
		case LossReply:
			fault.DropReply = true
		case Delay:
			fault.Delay += time.Duration(mix(h) % uint64(f.Delay))
		case LateReply:
			fault.Late = delayReply(time.Duration(mix(h) % uint64(f.Delay)))
		case Repeat:
			fault.Twice = true
		}
	}
	if fault.Drop || m.Kind == "snapshot" || m.Kind == "probe" {
		fault.Twice = false
	}
	if m.Kind == "probe" {
		fault.Late = nil // a frame of a monitor connection has no response
	}
	for _, f := range hit {
		if hasEffect(f.Kind, fault) {
			r.countHit(f)
		}
	}
	return fault
}

// hasEffect reports whether a fault of this kind has changed what happens to a message: what else has hit the message
// may hide it.
func hasEffect(kind FaultKind, all transport.Fault) bool {
	switch kind {
	case LossReply:
		return !all.Drop
	case LateReply:
		return all.Late != nil && !all.Drop && !all.DropReply
	case Repeat:
		return all.Twice
	}
	return true
}

// delayReply holds an answer up for so long.
func delayReply(d time.Duration) func(gone <-chan struct{}) {
	return func(gone <-chan struct{}) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-gone:
		}
	}
}

// Claim reports lies in the place of some claims: anything, but for who says it, which the transport would not let
// pass. From the loss of a majority to its recovery nodes do not lie about their logs: a recovery chooses among the
// survivors by that, and no vote checks it.
func (r *rpcFaults) Claim(to cluster.NodeID, c cluster.Claim) cluster.Claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.active {
		if f.Kind != Lie {
			continue
		}
		key := linkKey{string(c.NodeID), string(to)}
		r.seq[key]++
		h := hash(r.sim.cfg.Seed+uint64(f.At), key.from, key.to, r.seq[key])
		if float64(h>>11)/(1<<53) < f.Chance {
			r.countHit(f)
			lie := corruptClaim(c, mix(h), len(r.sim.members))
			if r.sim.loss.epoch.Load() > 0 && !r.sim.loss.recovered.Load() {
				lie.LastLogTerm, lie.LastLogIndex = c.LastLogTerm, c.LastLogIndex
			}
			return lie
		}
	}
	return c
}

// corruptClaim changes about half of what a claim says.
func corruptClaim(c cluster.Claim, h uint64, nodes int) cluster.Claim {
	draw := func(n uint64) uint64 {
		h = mix(h)
		return h % n
	}
	if draw(2) == 0 {
		c.Term += draw(5) - min(2, c.Term)
	}
	if draw(2) == 0 {
		c.Role = []cluster.Role{cluster.Follower, cluster.Candidate, cluster.Leader}[draw(3)]
	}
	if draw(2) == 0 {
		c.LeaderID, c.LeaderBootID = cluster.NodeID(nodeName(int(draw(uint64(nodes))))), ""
	}
	if draw(2) == 0 {
		c.LeaderContactAge, c.LeaderSilence = time.Duration(draw(2e9)), time.Duration(draw(2e9))
	}
	if draw(2) == 0 {
		c.LeaderProcessDead = !c.LeaderProcessDead
	}
	if draw(2) == 0 {
		c.LastLogTerm, c.LastLogIndex = draw(c.LastLogTerm+2), draw(2*c.LastLogIndex+2)
	}
	if draw(2) == 0 {
		c.Priority, c.Eligible = int(draw(256)), draw(2) == 0
	}
	if draw(4) == 0 {
		c.IsVoter, c.Paused, c.Draining, c.Disk.Stalled = draw(2) == 0, draw(2) == 0, draw(2) == 0, draw(2) == 0
	}
	return c
}
