package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/traffic"
	"northstar/cluster"
	"northstar/node"
)

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
	steps    *stepFaults

	unhealed context.Context // ends when all is healed
	healing  context.CancelFunc

	stableTerm uint64   // the term at startupTime; only sample writes it
	needless   []uint64 // terms of needless elections; only sample writes it

	mu         sync.Mutex
	violations []check.Violation
	leader     int // index of the member that led the newest term
	leaderTerm uint64
	storedTerm uint64            // the newest term of which an entry is on its leader's disk
	faults     map[FaultKind]int // that had an effect
	reached    map[string]int
	restores   int                 // begun
	candidates map[candidacy]*Proc // that have asked for votes
	loss       quorumLoss
	tooFew     atomic.Bool // a disk was wiped while another was still empty: perhaps no node can be elected
}

// maxViolations is how many are kept: the first ones say what went wrong.
const maxViolations = 10

// NewSimulation makes a run. It is to be called, and run, in a synctest bubble.
func NewSimulation(ctx context.Context, cfg Config) *Simulation {
	sim := &Simulation{
		cfg: cfg, ctx: ctx, start: time.Now(), net: NewNet(cfg.Seed, cfg.Net), events: &trace{}, digest: &digest{},
		faults: map[FaultKind]int{}, reached: map[string]int{}, candidates: map[candidacy]*Proc{},
	}
	sim.unhealed, sim.healing = context.WithCancel(ctx)
	sim.net.digest = sim.digest
	sim.safety = check.NewSafety(sim.violated)
	sim.rpc = &rpcFaults{sim: sim, seq: map[linkKey]uint64{}}
	sim.steps = &stepFaults{sim: sim}
	for i := range cfg.Nodes {
		sim.members = append(sim.members, newMember(sim, i))
	}
	sim.traffic = sim.newTraffic()
	sim.operator = &operator{sim: sim, http: users{sim}.Machine("operator")}
	sim.timeline = &timeline{start: sim.start, byTerm: map[uint64]int{}}
	return sim
}

func idsOf(members []*member) (ids []cluster.NodeID) {
	for _, m := range members {
		ids = append(ids, m.id)
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

func (sim *Simulation) violatedf(invariant, format string, args ...any) {
	sim.violated(check.Violationf(invariant, format, args...))
}

// exited records a node that stopped on its own, which it may only do for
// its disk, or to begin again with its data set aside.
func (sim *Simulation) exited(m *member, err error) {
	sim.mu.Lock()
	allowed := m.diskFaulty > 0 || errors.Is(err, node.ErrRestart)
	sim.mu.Unlock()
	sim.events.at(sim.start, "%s stopped by itself: %v", m.id, err)
	if !allowed {
		sim.violatedf(check.NoUnexpectedExit, "%s stopped: %v", m.id, err)
	}
}

// memberOf returns the member with that ID.
func (sim *Simulation) memberOf(id cluster.NodeID) *member {
	return sim.members[slices.IndexFunc(sim.members, func(m *member) bool { return m.id == id })]
}

// leads hears from the transport of every message that only a leader sends.
func (sim *Simulation) leads(id, to cluster.NodeID, term uint64) {
	m := sim.memberOf(id)
	sim.mu.Lock()
	if term > sim.leaderTerm {
		sim.leader, sim.leaderTerm = m.index, term
	}
	sim.mu.Unlock()
	sim.timeline.leads(id, term)
	if sim.safety.OnLeader(id, term, m.termAt) {
		sim.events.at(sim.start, "%s leads term %d", id, term)
		sim.checkOldGenerationLeader(id, term)
		sim.checkOwnVote(m, term)
		sim.steps.at(stepLed, m, sim.memberOf(to))
	}
}

// leading is the member that led the newest term, as far as is known.
func (sim *Simulation) leading() *member {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return sim.members[sim.leader]
}

// reportTimeout is how long after the healing nodes may take to report to the leader what
// they have audited, and which connections have ended.
const reportTimeout = 10 * time.Second

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
	converged := sim.awaitConvergence(healed)
	sim.traffic.Stop()
	for _, v := range slices.Concat(
		sim.traffic.StopWatchers(), sim.traffic.Roles.Check(sim.cfg.NoElections),
		sim.traffic.CheckAudit(reportTimeout), sim.checkAttached(), sim.traffic.CheckEtcd(reportTimeout),
	) {
		sim.violated(v)
	}
	stopSampling()
	sim.checkNeedless()
	sim.end()

	sim.mu.Lock()
	defer sim.mu.Unlock()
	return Result{
		Outcome: Outcome{
			Seed: sim.cfg.Seed, Injected: len(sim.timeline.faults), Faults: sim.faults, Reached: sim.reached,
			Messages:  int(sim.rpc.hits.Load()),
			Elections: sim.safety.Elections(), ConvergedAfter: converged, SLO: figures,
		},
		Violations: sim.violations, History: sim.traffic.History.Ops(), Digest: sim.digest.value(),
		Commits: sim.safety.MaxCommit(),
	}
}

// every calls f in a goroutine of its own until the function it returns is called, which waits for that goroutine.
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
		if _, running := m.current(); sim.cfg.CheckSilence && running != nil {
			if n, real := running.(whole); real {
				sim.sampleSilence(m.id, n)
			}
		}
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

// checkStable reports whether the leader has changed where nothing was a reason for it.
func (sim *Simulation) checkStable() {
	if now := sim.safety.MaxTerm(); sim.cfg.NoElections && now != sim.stableTerm {
		sim.violatedf(check.NoNeedlessElection, "the cluster was in term %d after %v, and is in term %d",
			sim.stableTerm, startupTime, now)
	}
}

// awaitConvergence waits until a write is taken and all nodes agree, and reports it as a
// violation when that takes longer than ConvergeTimeout.
func (sim *Simulation) awaitConvergence(healed time.Time) time.Duration {
	if sim.cfg.ConvergeTimeout == 0 || sim.tooFew.Load() {
		return 0
	}
	deadline := healed.Add(sim.cfg.ConvergeTimeout)
	if why := sim.operator.repair(deadline); why != "" {
		sim.violatedf(check.Convergence, "%v after healing an operator could not put everything back: %s",
			sim.cfg.ConvergeTimeout, why)
		return sim.cfg.ConvergeTimeout
	}
	why := "no write was acknowledged"
	for !sim.traffic.AcknowledgedSince(healed) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(healed)
	sim.traffic.Stop()
	for ; time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if why = sim.converged(); why == "" {
			return took
		}
	}
	sim.violatedf(check.Convergence, "%v after healing: %s", sim.cfg.ConvergeTimeout, why)
	return sim.cfg.ConvergeTimeout
}

func (sim *Simulation) converged() string {
	if behind := sim.traffic.WatchersBehind(); behind != "" {
		return behind
	}
	var finals []check.NodeState
	for _, m := range sim.members {
		if m.wiped.Load() {
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

// outlive is how long the end of a run waits for those goroutines of the library that cannot be joined.
const outlive = time.Minute

// end stops every node.
func (sim *Simulation) end() {
	for _, m := range sim.members {
		m.end()
	}
	sim.running.Wait()
	time.Sleep(outlive)
}
