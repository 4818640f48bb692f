package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

// Node is what a simulation runs: the real node, or so much of it as a test needs.
type Node interface {
	// Run blocks until ctx ends or the node cannot go on. With a ctx that has
	// ended it just gives back what the node holds.
	Run(ctx context.Context) error
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	ReadBarrier(ctx context.Context) error
	LeaseReadBarrier(ctx context.Context) error
	View() *state.View
	Status() cluster.NodeStatus
	TransferTo(ctx context.Context, notice cluster.TransferNotice) error
}

// member is one place in the cluster: a machine and a disk that stay, and the process that runs on them now.
type member struct {
	sim   *Simulation
	id    cluster.NodeID
	disk  *Disk
	log   *trace
	index int

	mu          sync.Mutex
	changed     sync.Cond // down, ending
	down        int       // faults that keep it from running
	ending      bool
	inst        *instance // nil while none runs
	incarnation uint64    // processes started so far

	wiped      atomic.Bool // came back with an empty disk: refused from then on
	diskFaulty int         // faults for which it may stop, in force or shortly before; guarded by Simulation.mu

	sampled     uint64 // entries up to this one were checked when applied
	lastApplied uint64
	view        *state.View // as last seen; nil before
}

// instance is one process of a member.
type instance struct {
	proc   *Proc
	node   Node               // nil while it is being built
	ctx    context.Context    // ends when the process dies
	cancel context.CancelFunc // of ctx

	stopped bool // on its own
}

func newMember(sim *Simulation, i int) *member {
	m := &member{sim: sim, index: i, id: cluster.NodeID(nodeName(i)), log: &trace{}}
	m.changed.L = &m.mu
	m.disk = NewDisk(string(m.id), sim.cfg.Seed, sim.cfg.Disk, m.stored)
	m.disk.digest, m.disk.onStep = sim.digest, m.atStep
	return m
}

// stored is the disk's hook.
func (m *member) stored(prevTerm uint64, entries []*raft.Log) {
	es := make([]check.Entry, len(entries))
	for i, e := range entries {
		es[i] = entryOf(e)
	}
	m.sim.safety.OnEntriesStored(m.id, prevTerm, es)
	m.sim.storedBy(m, es[0].Term)
}

// atStep is the disk's hook for its steps. The peer of a node that does not lead is the leader.
func (m *member) atStep(step string) {
	peer := m.sim.leading()
	if peer == m {
		peer = m.sim.members[(m.index+1)%len(m.sim.members)]
	}
	m.sim.steps.at(step, m, peer)
}

func entryOf(e *raft.Log) check.Entry {
	h := fnv.New64a()
	_, _ = h.Write([]byte{byte(e.Type)})
	_, _ = h.Write(e.Data)
	return check.Entry{Index: e.Index, Term: e.Term, Sum: h.Sum64()}
}

// termAt is the check.TermAt of this member's disk.
func (m *member) termAt(index uint64) (term uint64, ok, compacted bool) {
	e, compacted := m.disk.Entry(index)
	if e == nil {
		return 0, false, compacted
	}
	return e.Term, true, false
}

// supervise runs one process after the other while nothing keeps the member down.
func (m *member) supervise() {
	for {
		m.mu.Lock()
		for m.down > 0 && !m.ending {
			m.changed.Wait()
		}
		if m.ending {
			m.mu.Unlock()
			return
		}
		inst := m.boot()
		m.mu.Unlock()
		m.run(inst)
		<-inst.ctx.Done()
		pause := time.Millisecond // a kill has its own time
		m.mu.Lock()
		if inst.stopped {
			pause = 100 * time.Millisecond // as a service manager has it
		}
		m.mu.Unlock()
		time.Sleep(pause)
	}
}

// boot starts a process that has no node yet. Called with the lock held.
func (m *member) boot() *instance {
	m.incarnation++
	inst := &instance{proc: m.sim.net.Host(string(m.id)).Boot()}
	inst.ctx, inst.cancel = context.WithCancel(m.sim.ctx)
	m.inst = inst
	m.sampled, m.lastApplied = 0, 0
	return inst
}

// run builds the process's node and starts it.
func (m *member) run(inst *instance) {
	store, err := m.disk.Attach()
	if err != nil {
		panic(fmt.Sprintf("sim: %s: %v", m.id, err)) // the simulation's own mistake
	}
	if store.archived {
		m.sim.safety.Wiped(m.id)
	}
	node, err := m.sim.cfg.Build(Env{
		ID: m.id, Members: idsOf(m.sim.members), Proc: inst.proc, Store: store,
		Faults:  processFaults{m.sim.rpc, inst.proc},
		Clock:   drifting(m.sim.cfg.Seed, m.id),
		Entropy: newEntropy(m.sim.cfg.Seed, string(m.id), m.incarnation),
		Logger: hclog.New(&hclog.LoggerOptions{
			Name: string(m.id), Level: hclog.Info, Output: m.log,
			TimeFormat: "04:05.000000",
		}),
	})
	if err != nil {
		m.exited(inst, fmt.Errorf("build: %w", err))
		return
	}
	m.mu.Lock()
	inst.node = node
	m.mu.Unlock()
	m.sim.running.Go(func() { m.exited(inst, node.Run(inst.ctx)) })
}

// exited deals with a node that stopped on its own; one that was killed is gone already.
func (m *member) exited(inst *instance, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inst != inst {
		return
	}
	if !m.ending {
		inst.stopped = true
		m.sim.exited(m, err)
	}
	m.crash(false)
}

// kill ends the process at this moment, and reports whether one ran.
func (m *member) kill(powerLoss bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ran := m.inst != nil
	m.crash(powerLoss)
	return ran
}

// restartEmpty replaces the process by one with an empty disk.
func (m *member) restartEmpty() {
	m.keepDown()
	m.kill(false)
	m.disk.Wipe()
	m.sim.safety.Wiped(m.id)
	m.release()
}

// crash cuts the network immediately and takes the durable contents of the disk. The
// rest of the process stops afterwards. The caller holds the lock.
func (m *member) crash(powerLoss bool) {
	if m.inst == nil {
		return
	}
	inst := m.inst
	m.inst = nil
	inst.proc.Kill(powerLoss)
	m.disk.Crash()
	inst.cancel()
}

// keepDown keeps the member down until release; one more fault each.
func (m *member) keepDown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down++
}

func (m *member) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down--
	m.changed.Broadcast()
}

func (m *member) isHeld() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down > 0
}

// end stops supervising and lets the process stop in its own time.
func (m *member) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ending = true
	m.changed.Broadcast()
	if m.inst != nil {
		m.inst.cancel()
	}
}

// current returns the process that runs now and its node; nil when there is none.
func (m *member) current() (*instance, Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inst == nil || m.inst.node == nil {
		return nil, nil
	}
	return m.inst, m.inst.node
}

func (m *member) runs() bool {
	inst, _ := m.current()
	return inst != nil
}

// sample looks at the member's term, log and state.
func (m *member) sample() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inst == nil || m.inst.node == nil {
		return
	}
	m.sim.safety.Term(m.id, m.disk.CurrentTerm())
	if m.sim.hasOldGeneration(m.inst.node) {
		m.sim.checkOldGenerationIdle(m, m.inst.node)
		return // nothing else that it has counts any more
	}
	view := m.inst.node.View()
	if g := view.Generation().Number; g > firstNumber && view.Revision() < (g-firstNumber)<<40 {
		m.sim.violated(check.Violationf(check.RevisionsGrow,
			"%s is in generation %d with revision %d, which may have been given before", m.id, g, view.Revision()))
	}
	applied := view.AppliedIndex()
	if m.disk.restoredTo(applied) {
		return // it may be a restore that is never committed
	}
	for i := m.sampled + 1; i <= applied; i++ {
		if e, _ := m.disk.Entry(i); e != nil {
			m.sim.safety.Applied(m.id, entryOf(e))
		}
	}
	m.sampled = max(m.sampled, applied)
	if applied != m.lastApplied {
		m.lastApplied, m.view = applied, view
		m.sim.safety.State(m.id, applied, view.Revision(), fingerprint(view))
	}
}

// final is the member's part of check.Converged; false while it does not run.
func (m *member) final() (check.NodeState, bool) {
	_, node := m.current()
	if node == nil {
		return check.NodeState{Node: m.id}, false
	}
	view, status := node.View(), node.Status()
	whole := view.Fingerprint()
	return check.NodeState{
		Node: m.id, Leader: status.LeaderID, Applied: view.AppliedIndex(), Revision: view.Revision(),
		StateHash: binary.BigEndian.Uint64(whole[:]),
	}, true
}

// fingerprint is a hash of every key with its value and revisions: that of the whole
// state, which is compared in the end, takes too long for every sample.
func fingerprint(v *state.View) uint64 {
	h := fnv.New64a()
	items, _ := v.List("", "", 0)
	for _, it := range items {
		_, _ = fmt.Fprintf(h, "%q %q %d %d %d\n", it.Key, it.Value, it.Revision, it.CreateRevision, it.Version)
	}
	return h.Sum64()
}
