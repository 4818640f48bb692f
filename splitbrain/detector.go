package splitbrain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"northstar/cluster"
)

// Config is what a Watcher is told once.
type Config struct {
	Self        cluster.NodeID
	BootID      string
	RaftAddress string        // that this node advertises
	Interval    time.Duration // between two checks
	TimeoutMin  time.Duration // election timeouts
	TimeoutMax  time.Duration
}

// Answer is what a node's HTTP address answers to GET /leader.
type Answer struct {
	By         cluster.NodeID // who answers there
	ClusterID  string
	Generation cluster.Generation
	Term       uint64 // 0: it knows no leader
	LeaderID   cluster.NodeID
}

// Deps is what a Watcher asks and tells. All are given; they may be called from
// several goroutines.
type Deps struct {
	Self    func() cluster.Claim    // this node, now
	Servers func() []cluster.Server // Raft's configuration; nil while there is none
	Claims  func() map[cluster.NodeID]cluster.ReceivedClaim
	Changed func() <-chan struct{} // closed at the next claim of a peer
	// Poll asks peers for fresh claims, and gives those that came before ctx ended.
	Poll func(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	// FetchLeader asks a node's HTTP address, which it also names.
	FetchLeader func(ctx context.Context, id cluster.NodeID) (a Answer, address string, err error)
	// Probe says hello to whoever listens for peers at an address; what it says
	// comes through Met. False: nobody has answered.
	Probe func(ctx context.Context, address string) bool
	// VerifyLeadership proves that this node leads: that a majority of the voters acknowledges
	// it after the call.
	VerifyLeadership func(ctx context.Context) error
	// BroadcastClaim makes this node's claim known to all peers.
	BroadcastClaim func()
	// StepDown ends this node's leadership of a term, at once and without another
	// leader.
	StepDown func(term uint64, why string)
	// Event keeps what has begun (alarm) or ended.
	Event func(e cluster.Event, alarm bool)
	// Detected counts a conflict that has begun.
	Detected func()
	Logger   hclog.Logger
}

const (
	maxAsk = time.Second // of one question
	// conflictInterval is the pause between checks while this node refuses service.
	conflictInterval = 200 * time.Millisecond
	// A conflict is over when it has not been seen for clearAfter checks.
	clearAfter = 3
)

// Detector compares what the members say of themselves. Its methods may be called
// from any goroutine.
type Detector struct {
	cfg            Config
	deps           Deps
	log            hclog.Logger
	maxAge         time.Duration
	recheckLimiter *rate.Limiter // checks because of what peers claim: they may lie

	report       atomic.Pointer[Report]
	refuseReason atomic.Pointer[string] // why this node must not serve; nil: it may
	duplicateIDs atomic.Pointer[string]
	checks       chan chan<- Report

	mu        sync.Mutex // guards what follows; nothing blocks under it
	processes processLog
	hellos    map[string]probeState // the last one said at each address

	background sync.WaitGroup // hellos that nobody waits for; Run waits for them

	active map[string]*conflict // belongs to Run
}

// conflict is a finding that was reported and is not over.
type conflict struct {
	Finding
	missed int // checks since it was last seen
}

// New makes a Watcher and starts nothing.
func New(cfg Config, deps Deps) *Detector {
	overlap := max(2*time.Second, 3*cfg.TimeoutMax)
	return &Detector{
		cfg: cfg, deps: deps, log: deps.Logger.Named("splitbrain"),
		// Idle peers say something each 10/3 timeout-min, and processes are asked
		// at each check.
		maxAge:         max(3*cfg.Interval, 8*cfg.TimeoutMin, 2*time.Second),
		recheckLimiter: rate.NewLimiter(rate.Every(conflictInterval), 5),
		checks:         make(chan chan<- Report),
		processes:      processLog{self: cfg.Self, boot: cfg.BootID, overlapping: overlap},
		active:         map[string]*conflict{}, hellos: map[string]probeState{},
	}
}

// OnHello hears of each completed hello. It does not block.
func (w *Detector) OnHello(p cluster.Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes.record(p, time.Now())
}

// Refusing says why this node must not serve, "" when it may. It is cheap.
func (w *Detector) Refusing() string {
	if why := w.refuseReason.Load(); why != nil {
		return *why
	}
	return ""
}

// OwnIDDuplicated gives the IDs that this node knows to be borne by two processes each,
// for its claims: the two may reach nobody but peers. It is cheap.
func (w *Detector) DuplicateIDs() string {
	if ids := w.duplicateIDs.Load(); ids != nil {
		return *ids
	}
	return ""
}

// MayVote says whether this node may vote: not while another process bears its
// ID, which could give the same vote to somebody else.
func (w *Detector) MayVote() bool {
	r := w.report.Load()
	return r == nil || !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.OwnIDDuplicated })
}

// Report is the newest report. It is that of a first check when there was none.
func (w *Detector) Report(ctx context.Context) (Report, error) {
	if r := w.report.Load(); r != nil {
		return *r, nil
	}
	return w.Check(ctx)
}

// errNotRunning answers a check that nobody will do.
var errNotRunning = errors.New("the split-brain detector did not check in time")

// Check checks now.
func (w *Detector) Check(ctx context.Context) (Report, error) {
	answer := make(chan Report, 1)
	select {
	case w.checks <- answer:
	case <-ctx.Done():
		return Report{}, errNotRunning
	}
	select {
	case r := <-answer:
		return r, nil
	case <-ctx.Done():
		return Report{}, errNotRunning
	}
}

// Run checks at each interval, when asked to, and as soon as a peer claims a
// later term than the one that this node leads in, until ctx ends.
func (w *Detector) Run(ctx context.Context) error {
	defer w.background.Wait()
	for ctx.Err() == nil {
		r := w.check(ctx)
		w.publish(r)
		if err := w.wait(ctx); err != nil {
			return nil
		}
	}
	return nil
}

// wait waits until there is something to check.
func (w *Detector) wait(ctx context.Context) error {
	pause := w.cfg.Interval
	known := w.peersWithNewerLeader() // when the last check was made: only more of them are worth another one at once
	if known > 0 || w.Refusing() != "" {
		pause = min(pause, conflictInterval)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		changed := w.deps.Changed()
		if w.peersWithNewerLeader() > known && w.recheckLimiter.Allow() {
			return nil
		}
		select {
		case <-timer.C:
			return nil
		case answer := <-w.checks:
			w.answer(ctx, answer)
			return nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer checks for whoever has asked, and for those who ask meanwhile.
func (w *Detector) answer(ctx context.Context, asked chan<- Report) {
	waiting := []chan<- Report{asked}
	for more := true; more; {
		select {
		case next := <-w.checks:
			waiting = append(waiting, next)
		default:
			more = false
		}
	}
	r := w.check(ctx)
	w.publish(r)
	for _, a := range waiting {
		a <- r // of capacity 1
	}
}

// peersWithNewerLeader counts the peers that know a leader of a later term while this node
// leads.
func (w *Detector) peersWithNewerLeader() (count int) {
	self := w.deps.Self()
	if self.Role != cluster.Leader {
		return 0
	}
	for _, s := range w.deps.Claims() {
		if s.Connected && s.Claim.Term > self.Term && s.Claim.LeaderID != "" && s.Claim.ClusterID == self.ClusterID {
			count++
		}
	}
	return count
}

// publish makes a report known, and does what it asks for.
func (w *Detector) publish(r Report) {
	w.report.Store(&r)
	var why []string
	var doubled []string
	for _, f := range r.Findings {
		if f.RefuseService {
			why = append(why, f.Detail)
		}
	}
	for _, x := range r.DuplicateIDs {
		doubled = append(doubled, string(x.Node))
	}
	ids := strings.Join(slices.Compact(doubled), " ")
	w.duplicateIDs.Store(&ids)
	w.refuseReason.Store(nil)
	if len(why) > 0 {
		text := strings.Join(why, "; ")
		w.refuseReason.Store(&text)
	}
	for _, f := range r.Findings {
		if f.StepDownTerm != 0 {
			w.deps.StepDown(f.StepDownTerm, f.Detail)
		}
	}
	w.announce(r)
}

// announce turns what has begun and what is over into events, once each.
func (w *Detector) announce(r Report) {
	for _, c := range w.active {
		c.missed++
	}
	for _, f := range r.Findings {
		if f.Verdict == Unreachable {
			continue // health says who does not answer
		}
		key := f.key()
		if c := w.active[key]; c != nil {
			c.missed = 0
			continue
		}
		w.active[key] = &conflict{Finding: f}
		w.deps.Detected()
		w.deps.Event(f.event(f.Detail), true)
		if f.Verdict == StaleLeader {
			w.deps.BroadcastClaim()
		}
	}
	for key, c := range w.active {
		if c.missed >= clearAfter {
			delete(w.active, key)
			w.deps.Event(c.event("it is over: "+c.Detail), false)
		}
	}
}

// key names a conflict for as long as it lasts.
func (f Finding) key() string { return string(f.Verdict) + " " + join(f.Nodes) }

func (f Finding) event(message string) cluster.Event {
	nodes := make([]string, len(f.Nodes))
	for i, id := range f.Nodes {
		nodes[i] = string(id)
	}
	return cluster.Event{Type: "splitbrain", Message: message, Fields: map[string]any{
		"verdict": string(f.Verdict), "severity": "critical", "nodes": nodes, "refusing": f.RefuseService,
	}}
}
