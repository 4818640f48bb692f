package splitbrain

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
)

// Config holds the settings of a Detector.
type Config struct {
	Self        cluster.NodeID
	BootID      string
	RaftAddress string        // advertised by this node
	Interval    time.Duration // between two checks
	TimeoutMin  time.Duration // election timeouts
	TimeoutMax  time.Duration
}

// Answer is the response of a node's HTTP address to GET /leader.
type Answer struct {
	By         cluster.NodeID // the responding node
	ClusterID  string
	Generation cluster.Generation
	Term       uint64 // 0: it knows no leader
	LeaderID   cluster.NodeID
}

// Deps are the dependencies of a Detector. All are required; several goroutines may call them.
type Deps struct {
	Self    func() cluster.Claim    // of this node, now
	Servers func() []cluster.Server // Raft's configuration; nil while there is none
	Claims  func() map[cluster.NodeID]cluster.ReceivedClaim
	Changed func() <-chan struct{} // closed at the next claim of a peer
	// Poll requests claims of peers and returns those received before ctx ends.
	Poll func(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	// FetchLeader asks a node's HTTP address, and returns that address.
	FetchLeader func(ctx context.Context, id cluster.NodeID) (a Answer, address string, err error)
	// Probe sends a hello to the peer address, which is reported through OnHello. false: no response.
	Probe func(ctx context.Context, address string) bool
	// Believes reports whether this node believes a node that its generation was superseded.
	Believes func(cluster.NodeID) bool
	// VerifyLeadership reports whether a majority of voters acknowledges after the call that this node leads.
	VerifyLeadership func(ctx context.Context) error
	// BroadcastClaim sends this node's claim to all peers.
	BroadcastClaim func()
	// StepDown ends this node's leadership of a term immediately, without a transfer.
	StepDown func(term uint64, why string)
	// Event records a conflict that began (alarm) or ended.
	Event func(e cluster.Event, alarm bool)
	// Detected counts a new conflict.
	Detected func()
}

const (
	maxAsk = time.Second // for one request
	// conflictInterval is the interval of checks while this node rejects requests.
	conflictInterval = 200 * time.Millisecond
	// A conflict is over when clearAfter checks in succession did not find it.
	clearAfter = 3
)

// Detector compares the claims of the members. Its methods may be called from any goroutine.
type Detector struct {
	cfg            Config
	deps           Deps
	maxAge         time.Duration
	recheckLimiter *rate.Limiter // limits checks triggered by peers, which may lie

	last   atomic.Pointer[consequences] // never nil
	checks chan chan<- Report

	mu        sync.Mutex // guards the fields below; no blocking call while it is held
	processes processLog
	hellos    map[string]probeState // the last probe of each address

	background sync.WaitGroup // probes without a waiting check; Run waits for them

	active map[string]*conflict // used by Run only
}

// consequences are what follows from the newest report.
type consequences struct {
	report          *Report // nil: no check yet
	refusal         string  // why this node rejects requests; "": it does not
	duplicateIDs    string  // separated by blanks
	ownIDDuplicated bool
}

// conflict is a reported finding that is not over.
type conflict struct {
	Finding
	missed int // checks since it was last found
}

// New returns a Detector and starts no goroutine.
func New(cfg Config, deps Deps) *Detector {
	overlap := max(2*time.Second, 3*cfg.TimeoutMax)
	w := &Detector{
		cfg: cfg, deps: deps,
		// Idle peers send a claim each 10/3 timeout-min, and each check probes processes.
		maxAge:         max(3*cfg.Interval, 8*cfg.TimeoutMin, 2*time.Second),
		recheckLimiter: rate.NewLimiter(rate.Every(conflictInterval), 5),
		checks:         make(chan chan<- Report),
		processes:      processLog{self: cfg.Self, boot: cfg.BootID, overlapping: overlap},
		active:         map[string]*conflict{}, hellos: map[string]probeState{},
	}
	w.last.Store(&consequences{})
	return w
}

// OnHello records a completed hello. It does not block.
func (w *Detector) OnHello(p cluster.Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes.record(p, time.Now())
}

// Refusing returns why this node must reject requests, "" if it need not. It is cheap.
func (w *Detector) Refusing() string { return w.last.Load().refusal }

// DuplicateIDs returns the IDs that two processes use each, for this node's claims: the two processes may be
// connected only with other peers. It is cheap.
func (w *Detector) DuplicateIDs() string { return w.last.Load().duplicateIDs }

// MayVote reports whether this node may vote. It may not while another process uses its ID, because that
// process could give the same vote to another candidate.
func (w *Detector) MayVote() bool { return !w.last.Load().ownIDDuplicated }

// Report returns the newest report, if needed of a first check.
func (w *Detector) Report(ctx context.Context) (Report, error) {
	if r := w.last.Load().report; r != nil {
		return *r, nil
	}
	return w.Check(ctx)
}

// errNotRunning is the result of a check after Run has ended.
var errNotRunning = errors.New("the split-brain detector did not check in time")

// Check runs a check now.
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

// Run checks at each interval, on request, and when a peer knows a later term while this node leads.
func (w *Detector) Run(ctx context.Context) error {
	defer w.background.Wait()
	for ctx.Err() == nil {
		known := w.peersWithNewerLeader() // before the check, which may miss claims that arrive during it
		w.publish(w.check(ctx))
		w.wait(ctx, known)
	}
	return nil
}

// wait waits for the next reason to check. The last check knew of so many peers with a newer leader: only a larger
// number justifies another check without delay.
func (w *Detector) wait(ctx context.Context, known int) {
	pause := w.cfg.Interval
	if known > 0 || w.Refusing() != "" {
		pause = min(pause, conflictInterval)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		changed := w.deps.Changed()
		if w.peersWithNewerLeader() > known && w.recheckLimiter.Allow() {
			return
		}
		select {
		case <-timer.C:
			return
		case answer := <-w.checks:
			w.answer(ctx, answer)
			return
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// answer runs a check for all requests, including those that arrive meanwhile.
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
		a <- r // capacity 1
	}
}

// peersWithNewerLeader returns the number of peers that know a leader of a later term while this node leads.
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

// publish stores a report and executes its consequences.
func (w *Detector) publish(r Report) {
	next := consequences{report: &r}
	var why, duplicates []string
	for _, f := range r.Findings {
		if f.RefuseService {
			why = append(why, f.Detail)
		}
		next.ownIDDuplicated = next.ownIDDuplicated || f.OwnIDDuplicated
	}
	for _, x := range r.DuplicateIDs {
		duplicates = append(duplicates, string(x.Node))
	}
	next.refusal, next.duplicateIDs = strings.Join(why, "; "), strings.Join(slices.Compact(duplicates), " ")
	w.last.Store(&next)
	for _, f := range r.Findings {
		if f.StepDownTerm != 0 {
			w.deps.StepDown(f.StepDownTerm, f.Detail)
		}
	}
	w.announce(r)
}

// announce records an event for each conflict that began or ended.
func (w *Detector) announce(r Report) {
	for _, c := range w.active {
		c.missed++
	}
	for _, f := range r.Findings {
		if !f.Verdict.isConflict() {
			continue // package health reports unreachable nodes, the transport those that it refuses
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

// key identifies a conflict while it lasts.
func (f Finding) key() string { return string(f.Verdict) + " " + cluster.JoinIDs(f.Nodes) }

func (f Finding) event(message string) cluster.Event {
	nodes := make([]string, len(f.Nodes))
	for i, id := range f.Nodes {
		nodes[i] = string(id)
	}
	return cluster.Event{Type: "splitbrain", Message: message, Fields: map[string]any{
		"verdict": string(f.Verdict), "severity": "critical", "nodes": nodes, "refusing": f.RefuseService,
	}}
}
