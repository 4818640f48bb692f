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
	"northstar/cluster"
	"northstar/node"
	"northstar/state"
	"northstar/transport"
)

// Config describes a world and what happens in it.
type Config struct {
	Seed   uint64
	Nodes  int
	Length time.Duration // of the faults, in virtual time
	Mix    Mix
	Gap    Spell // between the beginnings of faults
	Spell  Spell // of a fault's length
	Plan   []Fault

	Clients     int
	Readers     int   // further clients that only read, from any node
	Remotes     int   // further clients, over HTTP
	Watchers    int   // of all changes, over HTTP
	Campaigners int   // clients with sessions, for one role, over HTTP
	Evict       Spell // between two times that an operator takes the role from its holder; the zero Spell: nobody does
	Probes      bool  // a writer at each node: what it sees is measured
	Keys        int
	ClockDrift  float64       // a node's lease and session clock runs at a rate drawn from 1 ± this
	Think       Spell         // of a client's pause between operations
	OpTimeout   time.Duration // of one attempt of an operation
	Roam        float64       // so many of the operations go to any node, the others to the leader

	Net  NetOptions
	Disk DiskOptions

	// Leases says that the nodes have leases, of which no two may be valid at once.
	Leases bool
	// Stable says that no fault is a reason for another leader than that of
	// calmAfter.
	Stable bool
	// MaxGap is how long no write may be acknowledged before the faults are healed,
	// after the first was. 0: as long as it takes.
	MaxGap time.Duration
	// CampaignWait is how long a candidate waits for a role at most; 0: not long.
	CampaignWait time.Duration

	// Settle is how long, after the last fault is healed, the cluster may take
	// to have a leader, to take a write, and to agree. 0: that is not waited for.
	Settle time.Duration

	Timeline bool // a report is wanted also when nothing is violated
	Build    func(Env) (Node, error)
	LogLevel hclog.Level
}

// DefaultConfig is a run of 20 s of virtual time with a fault every 150 ms or
// so on a local network.
func DefaultConfig(seed uint64, nodes int) Config {
	return Config{
		Seed: seed, Nodes: nodes, Length: 20 * time.Second, Mix: DefaultMix(),
		Gap: Spell{10 * time.Millisecond, 500 * time.Millisecond}, Spell: Spell{5 * time.Millisecond, 900 * time.Millisecond},
		Clients: 2, Remotes: 1, Watchers: 1, Campaigners: 2, Evict: Spell{100 * time.Millisecond, 4 * time.Second}, Keys: 3, ClockDrift: 0.05, Think: Spell{0, 30 * time.Millisecond}, OpTimeout: time.Second, Roam: 0.2,
		Net: DefaultNetOptions(), Disk: DefaultDiskOptions(), Settle: 30 * time.Second,
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
	Seed       uint64
	Violations []check.Violation
	History    []check.Op
	Injected   int               // faults
	Faults     map[FaultKind]int // of these, those that had an effect
	Messages   int               // lost, delayed or left unanswered beside that
	Elections  int               // terms that had a leader
	Commits    uint64            // highest index committed
	Digest     uint64            // of all that happened, in its order
	Undecided  int               // keys whose linearizability took too long to check
	Settled    time.Duration     // from the healing until all agreed
	Figures    *check.Figures    // nil without probes
	Timeline   *report.Report    // nil when nothing was violated and none was asked for
}

// World is a cluster in a bubble of virtual time.
type World struct {
	cfg     Config
	start   time.Time
	ctx     context.Context // ends with the world
	net     *Net
	rpc     *rpcFaults
	members []*member
	running sync.WaitGroup // nodes' Run and supervisors
	events  *trace
	digest  *digest

	safety    *check.Safety
	revisions *check.Revisions
	history   *check.History
	roles     roleHistory
	operator  *operator
	timeline  *timeline

	unhealed context.Context // ends when all is healed
	healing  context.CancelFunc

	calmTerm uint64 // the term at calmAfter; only sample writes it

	mu         sync.Mutex
	violations []check.Violation
	leader     int // index of the member that led the newest term
	leaderTerm uint64
	injected   int
	faults     map[FaultKind]int // that had an effect
	hits       []check.Hit       // of nodes that could not take part
	probed     []time.Duration   // acknowledgements of probes
	loss       loss
	tooFew     bool // a disk was wiped while another held nothing yet: nobody may be left to elect
}

// maxViolations is how many are kept: the first ones say what went wrong.
const maxViolations = 10

// NewWorld makes a world. It is to be called, and run, in a synctest bubble.
func NewWorld(ctx context.Context, cfg Config) *World {
	w := &World{cfg: cfg, ctx: ctx, start: time.Now(), net: NewNet(cfg.Seed, cfg.Net), events: &trace{}, digest: &digest{}, history: &check.History{}, faults: map[FaultKind]int{}}
	w.unhealed, w.healing = context.WithCancel(ctx)
	w.net.digest = w.digest
	w.safety = check.NewSafety(w.violated)
	w.revisions = check.NewRevisions(w.violated)
	w.rpc = newRPCFaults(w)
	for i := range cfg.Nodes {
		w.members = append(w.members, newMember(w, i))
	}
	w.operator, w.timeline = w.newOperator(), newTimeline(w.start)
	return w
}

func (w *World) ids() (ids []cluster.NodeID) {
	for i := range w.cfg.Nodes {
		ids = append(ids, cluster.NodeID(nodeName(i)))
	}
	return ids
}

// newEntropy gives random bytes that a seed fixes.
func newEntropy(seed uint64, id string, life uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], hash(seed, id, "entropy", life))
	return rand.NewChaCha8(key)
}

// violated takes note of a violation.
func (w *World) violated(v check.Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events.at(w.start, "VIOLATION %v", v)
	if len(w.violations) < maxViolations {
		w.violations = append(w.violations, v)
	}
}

// exited takes note of a node that stopped by itself, which it may only do for
// its disk, or to begin anew with its data set aside.
func (w *World) exited(m *member, err error) {
	w.mu.Lock()
	allowed := m.diskFaulty > 0 || errors.Is(err, node.ErrRestart)
	w.mu.Unlock()
	w.events.at(w.start, "%s stopped by itself: %v", m.id, err)
	if !allowed {
		w.violated(check.Violation{Invariant: check.RunOn, Detail: fmt.Sprintf("%s stopped: %v", m.id, err)})
	}
}

// leads hears from the transport of every message that only a leader sends.
func (w *World) leads(id cluster.NodeID, term uint64) {
	w.mu.Lock()
	known := term <= w.leaderTerm
	var m *member
	for i := range w.members {
		if w.members[i].id == id {
			m = w.members[i]
		}
	}
	if !known {
		w.leader, w.leaderTerm = m.index, term
	}
	w.mu.Unlock()
	w.timeline.leads(id, term)
	if w.safety.Leading(id, term, m.termAt) {
		w.events.at(w.start, "%s leads term %d", id, term)
		w.ledBeyond(id, term)
	}
}

// leading is the member that led the newest term, as far as is known.
func (w *World) leading() *member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.members[w.leader]
}

// Run lets the world happen: start, faults with clients, healing, agreement,
// end. It returns once every goroutine of it has ended.
func (w *World) Run() Result {
	for _, m := range w.members {
		w.running.Go(m.supervise)
	}
	stopSampling := w.every(10*time.Millisecond, w.sample)
	clients := w.startClients()
	stopExcusing := clients.excuseGaps()
	watchers := w.startWatchers()

	for _, f := range w.cfg.Plan {
		time.Sleep(time.Until(w.start.Add(f.At)))
		w.inject(f)
	}
	time.Sleep(time.Until(w.start.Add(w.cfg.Length)))
	w.checkStable()
	stopExcusing()
	clients.checkGap()
	figures := w.figures()
	w.operator.close()
	w.heal()
	healed := time.Now()
	settled := w.settle(healed, clients, watchers)
	clients.stop()
	w.checkClients(watchers)
	stopSampling()
	w.end()

	messages := w.rpc.count()
	w.mu.Lock()
	defer w.mu.Unlock()
	return Result{
		Seed: w.cfg.Seed, Violations: w.violations, History: w.history.Ops(), Injected: w.injected, Faults: w.faults, Messages: messages,
		Digest: w.digest.value(), Elections: w.safety.Elections(), Commits: w.safety.MaxCommit(), Settled: settled, Figures: figures,
	}
}

// checkClients ends the watchers, and checks what clients saw that no single
// answer shows.
func (w *World) checkClients(watchers []*watcher) {
	ops := w.history.Ops()
	var violations []check.Violation
	for _, v := range watchers {
		v.stop()
		violations = append(violations, v.check(ops)...)
	}
	for _, v := range append(violations, w.roles.check(w.cfg.Stable)...) {
		w.violated(v)
	}
}

// every calls f in a goroutine of its own until the function it gives is
// called, which waits for that goroutine.
func (w *World) every(d time.Duration, f func()) (stop func()) {
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

func (w *World) sample() {
	var leases []string
	for _, m := range w.members {
		m.sample()
		if !w.cfg.Leases {
			continue
		}
		if _, node := m.current(); node != nil {
			if st := node.Status(); st.LeaseRemaining > 0 {
				leases = append(leases, fmt.Sprintf("%s in term %d for %v", m.id, st.Term, st.LeaseRemaining))
			}
		}
	}
	if len(leases) > 1 {
		w.violated(check.Violation{Invariant: check.OneLease, Detail: strings.Join(leases, ", ")})
	}
	if w.cfg.Stable && w.calmTerm == 0 && time.Since(w.start) >= calmAfter {
		w.calmTerm = w.safety.MaxTerm()
	}
}

// checkStable says whether the leader has changed where nothing was a reason for
// it.
func (w *World) checkStable() {
	if now := w.safety.MaxTerm(); w.cfg.Stable && now != w.calmTerm {
		w.violated(check.Violation{Invariant: check.Stability, Detail: fmt.Sprintf("the cluster was in term %d after %v, and is in term %d", w.calmTerm, calmAfter, now)})
	}
}

// settle waits until a write is taken and all nodes agree, and reports it as a
// violation when that takes longer than Settle.
func (w *World) settle(healed time.Time, clients *clients, watchers []*watcher) time.Duration {
	w.mu.Lock()
	tooFew := w.tooFew
	w.mu.Unlock()
	if w.cfg.Settle == 0 || tooFew {
		return 0
	}
	deadline := healed.Add(w.cfg.Settle)
	if why := w.operator.repair(deadline); why != "" {
		w.violated(check.Violation{Invariant: check.Convergence, Detail: fmt.Sprintf("%v after healing an operator could not put everything back: %s", w.cfg.Settle, why)})
		return w.cfg.Settle
	}
	why := "no write was acknowledged"
	for !clients.acknowledgedSince(healed) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(healed)
	clients.stop()
	for time.Now().Before(deadline) {
		if why = w.converged(watchers); why == "" {
			return took
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.violated(check.Violation{Invariant: check.Convergence, Detail: fmt.Sprintf("%v after healing: %s", w.cfg.Settle, why)})
	return w.cfg.Settle
}

func (w *World) converged(watchers []*watcher) string {
	for _, v := range watchers {
		if seen, acked := v.seen(), w.revisions.Acknowledged(); seen < acked {
			return fmt.Sprintf("%s has seen revision %d, %d was acknowledged", v.watch.Name, seen, acked)
		}
	}
	var finals []check.Final
	for _, m := range w.members {
		if m.wasWiped() {
			continue
		}
		f, running := m.final()
		if !running {
			return fmt.Sprintf("%s does not run", m.id)
		}
		finals = append(finals, f)
	}
	return check.Converged(finals, w.revisions.Acknowledged())
}

// outlive is how long, at the end of a world, goroutines of the library are
// given that nobody joins.
const outlive = time.Minute

// end stops every node.
func (w *World) end() {
	for _, m := range w.members {
		m.end()
	}
	w.running.Wait()
	time.Sleep(outlive)
}

// shownElections is how many of the last elections a report shows.
const shownElections = 8

// elections describes the last elections that the member which has applied most
// knows of, with the votes and their reasons.
func (w *World) elections() (lines []string) {
	var newest *state.View
	for _, m := range w.members {
		if v := m.lastView(); v != nil && (newest == nil || v.AppliedIndex() > newest.AppliedIndex()) {
			newest = v
		}
	}
	if newest == nil {
		return nil
	}
	all := newest.Elections()
	for _, e := range all[max(0, len(all)-shownElections):] {
		lines = append(lines, fmt.Sprintf("%12v  %s leads term %d, by %s: %s; votes %s", time.Unix(0, e.LedAt).Sub(w.start), e.Node, e.Term, e.Trigger, e.Reason, e.Votes))
	}
	return lines
}

// Report writes what is needed to understand a failure: the violations, the
// last faults and events, and the last log lines of each node.
func (w *World) Report(out io.Writer) {
	w.mu.Lock()
	violations := w.violations
	w.mu.Unlock()
	_, _ = fmt.Fprintf(out, "seed %d, %d nodes\n", w.cfg.Seed, w.cfg.Nodes)
	for _, v := range violations {
		_, _ = fmt.Fprintf(out, "  %v\n", v)
		for _, o := range v.Ops {
			_, _ = fmt.Fprintf(out, "    %v\n", o)
		}
	}
	section(out, "last elections, as the cluster recorded them", w.elections())
	votes, others := w.rpc.last(shownMessages)
	section(out, "last messages of elections", votes)
	section(out, "last other messages", others)
	section(out, "last events", w.events.last(80))
	for _, m := range w.members {
		section(out, string(m.id)+", last lines", m.log.last(40))
	}
}
