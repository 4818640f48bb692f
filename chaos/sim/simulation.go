package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/chaos/check"
	"northstar/chaos/report"
	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/node"
	"northstar/state"
	"northstar/transport"
)

// Config describes a run and what happens in it.
type Config struct {
	Seed          uint64
	Nodes         int
	Length        time.Duration // of the faults, in virtual time
	Weights       FaultWeights
	FaultInterval traffic.Range // between the beginnings of faults
	FaultDuration traffic.Range // of a fault's length
	Plan          []Fault

	Clients             int
	Readers             int           // further clients that only read, from any node
	HTTPClients         int           // further clients, over HTTP
	Watchers            int           // of all changes, over HTTP
	Campaigners         int           // clients with sessions, for one role, over HTTP
	EvictInterval       traffic.Range // between two times that an operator takes the role from its holder; the zero Spell: nobody does
	AvailabilityWriters bool          // a writer at each node: what it sees is measured
	Keys                int
	ClockDrift          float64       // a node's lease and session clock runs at a rate drawn from 1 ± this
	ThinkTime           traffic.Range // of a client's pause between operations
	OpTimeout           time.Duration // of one attempt of an operation
	AnyNodeRatio        float64       // so many of the operations go to any node, the others to the leader

	Net  NetOptions
	Disk DiskOptions

	// Leases is set when the nodes have leases. No two may be valid at the same time.
	Leases bool
	// NoElections reports that no fault is a reason for another leader than that of
	// startupTime.
	NoElections bool
	// MaxGap is how long no write may be acknowledged before the faults are healed,
	// after the first was. 0: as long as it takes.
	MaxGap time.Duration
	// CampaignWait is how long a candidate waits for a role at most; 0: not long.
	CampaignWait time.Duration

	// ConvergeTimeout is how long, after the last fault is healed, the cluster may take
	// to have a leader, to take a write, and to agree. 0: that is not waited for.
	ConvergeTimeout time.Duration

	Timeline bool // a report is wanted also when nothing is violated
	Build    func(Env) (Node, error)
	LogLevel hclog.Level
}

// DefaultConfig is a run of 20 s of virtual time with a fault every 150 ms or
// so on a local network.
func DefaultConfig(seed uint64, nodes int) Config {
	return Config{
		Seed: seed, Nodes: nodes, Length: 20 * time.Second, Weights: DefaultFaults(),
		FaultInterval: traffic.Between(10*time.Millisecond, 500*time.Millisecond), FaultDuration: traffic.Between(5*time.Millisecond, 900*time.Millisecond),
		Clients: 2, HTTPClients: 1, Watchers: 1, Campaigners: 2, EvictInterval: traffic.Between(100*time.Millisecond, 4*time.Second), Keys: 3, ClockDrift: 0.05, ThinkTime: traffic.Between(0, 30*time.Millisecond), OpTimeout: time.Second, AnyNodeRatio: 0.2,
		Net: DefaultNetOptions(), Disk: DefaultDiskOptions(), ConvergeTimeout: 30 * time.Second,
		Build: BuildNode, LogLevel: hclog.Info,
	}
}

// Env is what a node gets in place of the real world.
type Env struct {
	ID      cluster.NodeID
	Members []cluster.NodeID // the first members of the cluster, this one included
	Proc    *Proc            // listens and dials
	Store   *Store
	Faults  transport.Faults
	Clock   func() time.Duration // for leases and sessions: runs on while the machine is suspended
	Entropy io.Reader
	Logger  hclog.Logger
}

// Result is what came of a run.
type Result struct {
	Seed           uint64
	Violations     []check.Violation
	History        []check.Op
	Injected       int               // faults
	Faults         map[FaultKind]int // of these, those that had an effect
	Messages       int               // lost, delayed or left unanswered beside that
	Elections      int               // terms that had a leader
	Commits        uint64            // highest index committed
	Digest         uint64            // of all that happened, in its order
	Undecided      int               // keys whose linearizability took too long to check
	ConvergedAfter time.Duration     // from the healing until all agreed
	SLO            *check.SLOReport  // nil without probes
	Timeline       *report.Report    // nil when nothing was violated and none was asked for
}

// Simulation is a cluster in a bubble of virtual time.
type Simulation struct {
	cfg     Config
	start   time.Time
	ctx     context.Context // ends with the run
	net     *Net
	rpc     *rpcFaults
	members []*member
	running sync.WaitGroup // nodes' Run and supervisors
	events  *trace
	digest  *digest

	safety   *check.Safety
	traffic  *traffic.Traffic
	operator *operator
	timeline *timeline

	unhealed context.Context // ends when all is healed
	healing  context.CancelFunc

	stableTerm uint64 // the term at startupTime; only sample writes it

	mu         sync.Mutex
	violations []check.Violation
	leader     int // index of the member that led the newest term
	leaderTerm uint64
	injected   int
	faults     map[FaultKind]int     // that had an effect
	downtimes  []check.FaultInterval // of nodes that could not take part
	loss       quorumLoss
	tooFew     bool // a disk was wiped while another held nothing yet: nobody may be left to elect
}

// maxViolations is how many are kept: the first ones say what went wrong.
const maxViolations = 10

// NewSimulation makes a run. It is to be called, and run, in a synctest bubble.
func NewSimulation(ctx context.Context, cfg Config) *Simulation {
	sim := &Simulation{cfg: cfg, ctx: ctx, start: time.Now(), net: NewNet(cfg.Seed, cfg.Net), events: &trace{}, digest: &digest{}, faults: map[FaultKind]int{}}
	sim.unhealed, sim.healing = context.WithCancel(ctx)
	sim.net.digest = sim.digest
	sim.safety = check.NewSafety(sim.violated)
	sim.rpc = newRPCFaults(sim)
	for i := range cfg.Nodes {
		sim.members = append(sim.members, newMember(sim, i))
	}
	sim.traffic = sim.newTraffic()
	sim.operator, sim.timeline = sim.newOperator(), newTimeline(sim.start)
	return sim
}

func (sim *Simulation) ids() (ids []cluster.NodeID) {
	for i := range sim.cfg.Nodes {
		ids = append(ids, cluster.NodeID(nodeName(i)))
	}
	return ids
}

// newEntropy returns random bytes that a seed fixes.
func newEntropy(seed uint64, id string, life uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], hash(seed, id, "entropy", life))
	return rand.NewChaCha8(key)
}

// violated records a violation.
func (sim *Simulation) violated(v check.Violation) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.events.at(sim.start, "VIOLATION %v", v)
	if len(sim.violations) < maxViolations {
		sim.violations = append(sim.violations, v)
	}
}

// exited records a node that stopped on its own, which it may only do for
// its disk, or to begin again with its data set aside.
func (sim *Simulation) exited(m *member, err error) {
	sim.mu.Lock()
	allowed := m.diskFaulty > 0 || errors.Is(err, node.ErrRestart)
	sim.mu.Unlock()
	sim.events.at(sim.start, "%s stopped by itself: %v", m.id, err)
	if !allowed {
		sim.violated(check.Violation{Invariant: check.NoUnexpectedExit, Detail: fmt.Sprintf("%s stopped: %v", m.id, err)})
	}
}

// leads hears from the transport of every message that only a leader sends.
func (sim *Simulation) leads(id cluster.NodeID, term uint64) {
	sim.mu.Lock()
	known := term <= sim.leaderTerm
	var m *member
	for i := range sim.members {
		if sim.members[i].id == id {
			m = sim.members[i]
		}
	}
	if !known {
		sim.leader, sim.leaderTerm = m.index, term
	}
	sim.mu.Unlock()
	sim.timeline.leads(id, term)
	if sim.safety.OnLeader(id, term, m.termAt) {
		sim.events.at(sim.start, "%s leads term %d", id, term)
		sim.checkOldGenerationLeader(id, term)
	}
}

// leading is the member that led the newest term, as far as is known.
func (sim *Simulation) leading() *member {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return sim.members[sim.leader]
}

// Run executes the simulation: start, faults with clients, healing, agreement,
// end. It returns once every goroutine of it has ended.
func (sim *Simulation) Run() Result {
	for _, m := range sim.members {
		sim.running.Go(m.supervise)
	}
	stopSampling := sim.every(10*time.Millisecond, sim.sample)
	sim.traffic.Start()
	stopExcusing := sim.excludeUnelectableTime()
	sim.traffic.StartWatchers(0)

	for _, f := range sim.cfg.Plan {
		time.Sleep(time.Until(sim.start.Add(f.At)))
		sim.inject(f)
	}
	time.Sleep(time.Until(sim.start.Add(sim.cfg.Length)))
	sim.checkStable()
	stopExcusing()
	sim.traffic.CheckGap(sim.cfg.MaxGap)
	figures := sim.measureSLO()
	sim.operator.close()
	sim.heal()
	healed := time.Now()
	settled := sim.awaitConvergence(healed)
	sim.traffic.Stop()
	for _, v := range append(sim.traffic.StopWatchers(), sim.traffic.Roles.Check(sim.cfg.NoElections)...) {
		sim.violated(v)
	}
	stopSampling()
	sim.end()

	messages := sim.rpc.count()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return Result{
		Seed: sim.cfg.Seed, Violations: sim.violations, History: sim.traffic.History.Ops(), Injected: sim.injected, Faults: sim.faults, Messages: messages,
		Digest: sim.digest.value(), Elections: sim.safety.Elections(), Commits: sim.safety.MaxCommit(), ConvergedAfter: settled, SLO: figures,
	}
}

// every calls f in a goroutine of its own until the function it returns is
// called, which waits for that goroutine.
func (sim *Simulation) every(d time.Duration, f func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f()
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (sim *Simulation) sample() {
	var leases []string
	for _, m := range sim.members {
		m.sample()
		if !sim.cfg.Leases {
			continue
		}
		if _, node := m.current(); node != nil {
			if st := node.Status(); st.LeaseRemaining > 0 {
				leases = append(leases, fmt.Sprintf("%s in term %d for %v", m.id, st.Term, st.LeaseRemaining))
			}
		}
	}
	if len(leases) > 1 {
		sim.violated(check.Violation{Invariant: check.OneLease, Detail: strings.Join(leases, ", ")})
	}
	if sim.cfg.NoElections && sim.stableTerm == 0 && time.Since(sim.start) >= startupTime {
		sim.stableTerm = sim.safety.MaxTerm()
	}
}

// checkStable reports whether the leader has changed where nothing was a reason for
// it.
func (sim *Simulation) checkStable() {
	if now := sim.safety.MaxTerm(); sim.cfg.NoElections && now != sim.stableTerm {
		sim.violated(check.Violation{Invariant: check.NoNeedlessElection, Detail: fmt.Sprintf("the cluster was in term %d after %v, and is in term %d", sim.stableTerm, startupTime, now)})
	}
}

// awaitConvergence waits until a write is taken and all nodes agree, and reports it as a
// violation when that takes longer than Settle.
func (sim *Simulation) awaitConvergence(healed time.Time) time.Duration {
	sim.mu.Lock()
	tooFew := sim.tooFew
	sim.mu.Unlock()
	if sim.cfg.ConvergeTimeout == 0 || tooFew {
		return 0
	}
	deadline := healed.Add(sim.cfg.ConvergeTimeout)
	if why := sim.operator.repair(deadline); why != "" {
		sim.violated(check.Violation{Invariant: check.Convergence, Detail: fmt.Sprintf("%v after healing an operator could not put everything back: %s", sim.cfg.ConvergeTimeout, why)})
		return sim.cfg.ConvergeTimeout
	}
	why := "no write was acknowledged"
	for !sim.traffic.AcknowledgedSince(healed) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(healed)
	sim.traffic.Stop()
	for time.Now().Before(deadline) {
		if why = sim.converged(); why == "" {
			return took
		}
		time.Sleep(20 * time.Millisecond)
	}
	sim.violated(check.Violation{Invariant: check.Convergence, Detail: fmt.Sprintf("%v after healing: %s", sim.cfg.ConvergeTimeout, why)})
	return sim.cfg.ConvergeTimeout
}

func (sim *Simulation) converged() string {
	if behind := sim.traffic.WatchersBehind(); behind != "" {
		return behind
	}
	var finals []check.NodeState
	for _, m := range sim.members {
		if m.wasWiped() {
			continue
		}
		f, running := m.final()
		if !running {
			return fmt.Sprintf("%s does not run", m.id)
		}
		finals = append(finals, f)
	}
	return check.Converged(finals, sim.traffic.Revisions.Acknowledged())
}

// outlive is how long, at the end of a run, goroutines of the library are
// given that nobody joins.
const outlive = time.Minute

// end stops every node.
func (sim *Simulation) end() {
	for _, m := range sim.members {
		m.end()
	}
	sim.running.Wait()
	time.Sleep(outlive)
}

// shownElections is how many of the last elections a report shows.
const shownElections = 8

// elections describes the last elections that the member which has applied most
// knows of, with the votes and their reasons.
func (sim *Simulation) elections() (lines []string) {
	var newest *state.View
	for _, m := range sim.members {
		if v := m.lastView(); v != nil && (newest == nil || v.AppliedIndex() > newest.AppliedIndex()) {
			newest = v
		}
	}
	if newest == nil {
		return nil
	}
	all := newest.Elections()
	for _, e := range all[max(0, len(all)-shownElections):] {
		lines = append(lines, fmt.Sprintf("%12v  %s leads term %d, by %s: %s; votes %s", time.Unix(0, e.LedAt).Sub(sim.start), e.Node, e.Term, e.Trigger, e.Reason, e.Votes))
	}
	return lines
}

// Report writes what is needed to understand a failure: the violations, the
// last faults and events, and the last log lines of each node.
func (sim *Simulation) Report(out io.Writer) {
	sim.mu.Lock()
	violations := sim.violations
	sim.mu.Unlock()
	_, _ = fmt.Fprintf(out, "seed %d, %d nodes\n", sim.cfg.Seed, sim.cfg.Nodes)
	for _, v := range violations {
		_, _ = fmt.Fprintf(out, "  %v\n", v)
		for _, o := range v.Ops {
			_, _ = fmt.Fprintf(out, "    %v\n", o)
		}
	}
	section(out, "last elections, as the cluster recorded them", sim.elections())
	votes, others := sim.rpc.last(shownMessages)
	section(out, "last messages of elections", votes)
	section(out, "last other messages", others)
	section(out, "last events", sim.events.last(80))
	for _, m := range sim.members {
		section(out, string(m.id)+", last lines", m.log.last(40))
	}
}
