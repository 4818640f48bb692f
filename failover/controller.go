// Package failover acts on leaders that are dead, silent or badly placed: it collects what the transport and consensus
// know, lets package election decide, and executes that. Raft still counts the votes.
package failover

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/election"
	"northstar/state"
)

// Peers is what failover needs of the transport. Its methods may be called by any goroutine.
type Peers interface {
	// Claims returns the newest claim of each peer. It does not block.
	Claims() map[cluster.NodeID]cluster.ReceivedClaim
	// ClaimsChanged returns a channel that is closed at the next claim of any peer. It does not block.
	ClaimsChanged() <-chan struct{}
	// Poll requests claims of peers, with this node's claim, and returns those received before ctx ends.
	Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	// Ask requests a peer's claim, unless a request has no response yet. It does not block.
	Ask(peer cluster.NodeID)
	// Confirm dials a peer again to find out whether the given process is dead. It takes at most about 60 ms, or two
	// handshakes with a far peer.
	Confirm(ctx context.Context, peer cluster.NodeID, bootID string) cluster.Liveness
	// Answer asks a peer over its present connection, and returns the boot ID of the process that answers; "" if none
	// does before the connection or ctx ends.
	Answer(ctx context.Context, peer cluster.NodeID) (bootID string)
}

// Raft is this node's running Raft node.
type Raft interface {
	// WaitMainLoop returns when Raft has finished the append that it is processing.
	WaitMainLoop(ctx context.Context) error
	// StartElection starts an election without pre-votes, unless this node has left that term. It returns the term of
	// the election.
	StartElection(ctx context.Context, term uint64, by cluster.ElectionCause) (uint64, error)
}

// Consensus is the part of the consensus node that failover reads.
type Consensus interface {
	Status() cluster.NodeStatus
	Peers() []cluster.PeerStatus
	View() *state.View
	// LeaderChanged returns a channel that is closed at the next change of leader or term.
	LeaderChanged() <-chan struct{}
	// LeaseWait returns how long a node elected over a live leader, which may have a lease, waits before it serves; 0
	// without leases.
	LeaseWait() time.Duration
}

// Transfer transfers leadership away from this node, the leader.
type Transfer interface {
	// Choices returns all other servers as targets, the best first.
	Choices() []cluster.TargetOption
	// Execute returns once the target is seen leading; an empty h.To selects the best target.
	Execute(ctx context.Context, h cluster.TransferNotice) (cluster.TransferOutcome, error)
}

// Config holds the settings of a Controller.
type Config struct {
	Self          cluster.NodeID
	Fast          bool // failover.fast: act on dead and silent leaders before Raft's timers
	TakeoverDelay time.Duration
	Silence       time.Duration // failover.silence; 0: auto
	TimeoutMin    time.Duration // election.timeout-min
	TimeoutMax    time.Duration
	Lease         bool     // election.lease: wait until the leader's lease has expired
	Zones         []string // failover.zones: preferred for the leader, in this order
}

// Deps are the dependencies of a Controller; all are required.
type Deps struct {
	// Claim returns this node's current claim, completed by AnnotateClaim, which must not call it. It is cheap.
	Claim     func() cluster.Claim
	Peers     Peers
	Raft      func() Raft // returns the running one
	Consensus Consensus
	Transfer  Transfer
	Event     func(cluster.Event) // for the event log; must not block
	// Needless reports an election whose old leader lived, after AnnotateClaim says so; must not block.
	Needless func(cause string, e cluster.Event)
	Announce func() // sends this node's claim to every peer; must not block
	Logger   hclog.Logger
}

// Controller monitors the leader. Its methods may be called by any goroutine, before, during and after Run.
type Controller struct {
	cfg  Config
	deps Deps
	log  hclog.Logger

	began time.Time // when New was called

	losses      chan cluster.ConnectionLoss // bounded; if it is full, the silence check detects the loss
	requestSem  chan struct{}               // capacity 1: held while an operator's election runs
	candidacies candidacyLog
	given       votesGiven
	watch       silenceWatch

	mu             sync.Mutex     // guards the fields below; no blocking call while it is held
	leader         leaderInstance // the last known leader
	deadLeader     leaderInstance // the leader whose process is confirmed dead; zero: none
	deadLeaderAt   time.Time      // when it was confirmed
	handover       cluster.TransferNotice
	electionLimits map[string]*rate.Limiter // fast elections by leader process
	cooldown       cooldown
}

// params returns the parameters of decisions now.
func (c *Controller) params() election.Params {
	p := election.Params{TimeoutMin: c.cfg.TimeoutMin, Lease: c.cfg.Lease}
	if len(c.cfg.Zones) > 0 {
		p.ZoneRanks = election.ZoneRanks(c.cfg.Zones, c.deps.Consensus.View().Members())
	}
	return p
}

// leaderInstance is a leader in one term.
type leaderInstance struct {
	id   cluster.NodeID
	boot string // boot ID of its process; "" if unknown
	term uint64
}

// cooldown limits attempts to transfer leadership, across leaderships of this node.
type cooldown struct {
	last  time.Duration
	until time.Time
	disk  time.Time // last transfer because of this node's disk
}

// New returns a Controller and starts no goroutine.
func New(cfg Config, deps Deps) *Controller {
	c := &Controller{
		cfg: cfg, deps: deps, log: deps.Logger.Named("failover"), began: time.Now(),
		losses: make(chan cluster.ConnectionLoss, 16), requestSem: make(chan struct{}, 1),
		electionLimits: map[string]*rate.Limiter{}, candidacies: newCandidacyLog(),
	}
	c.watch.estimator.Params = election.SilenceParams{
		Fixed: cfg.Silence, TimeoutMin: cfg.TimeoutMin, Lease: cfg.Lease,
	}
	c.watch.majority.estimator.Params = c.watch.estimator.Params
	return c
}

// OnConnectionLost is called when a monitor connection breaks. It does not block.
func (c *Controller) OnConnectionLost(l cluster.ConnectionLoss) {
	select {
	case c.losses <- l:
	default: // the silence check will detect it
	}
}

// Run acts on dead and silent leaders until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	check := c.watch.open()
	defer c.watch.close()
	quiet := time.Time{} // no silence check before this time
	for {
		changed := c.deps.Consensus.LeaderChanged()
		st := c.deps.Consensus.Status()
		c.rememberLeader(st)
		c.watch.lead(st)
		c.clearDeadLeader()
		c.watch.sleep(c.checkSuspect(c.nextSilenceCheck(quiet)), quiet)
		acted := false
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			c.watch.awake(c.cfg.TimeoutMin)
		case loss := <-c.losses:
			c.watch.awake(c.cfg.TimeoutMin)
			acted = c.handleConnectionLoss(ctx, loss)
		case <-check.C:
			c.watch.awake(c.cfg.TimeoutMin)
			acted = c.handleSilence(ctx)
		}
		if acted {
			quiet = time.Now().Add(c.cfg.TimeoutMin)
		}
	}
}

// rememberLeader remembers the leader, because Raft forgets it when it starts an election.
func (c *Controller) rememberLeader(st cluster.NodeStatus) {
	if st.LeaderID == "" {
		return
	}
	claim := c.deps.Peers.Claims()[st.LeaderID].Claim
	leads := claim.Role == cluster.Leader && claim.Term == st.Term
	c.mu.Lock()
	defer c.mu.Unlock()
	next := leaderInstance{st.LeaderID, claim.BootID, st.Term}
	switch before := c.leader; {
	case before == next:
		return
	case before.id == next.id && before.term == next.term && before.boot != "" && !leads:
		return // the leader's process is known, and the claim is of another one
	}
	c.leader = next
	c.deadLeader = leaderInstance{}
	if next.id == c.cfg.Self {
		next = leaderInstance{}
	}
	c.watch.follow(next)
}

// clearDeadLeader drops the dead mark when the leader is heard later. A firewall may have refused the dial.
func (c *Controller) clearDeadLeader() {
	c.mu.Lock()
	lost, at := c.deadLeader, c.deadLeaderAt
	c.mu.Unlock()
	if lost.id == "" {
		return
	}
	mine := c.deps.Claim()
	if mine.LeaderID != lost.id || mine.LeaderSilence < 0 {
		return
	}
	if heard := time.Now().Add(-mine.LeaderSilence); heard.Sub(at) <= c.cfg.TimeoutMin {
		return // sent before the process died, perhaps
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadLeader == lost {
		c.deadLeader = leaderInstance{}
	}
}

func (c *Controller) lastLeader() leaderInstance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader
}

// AnnotateClaim adds failover's knowledge to this node's claim: the leader's process (Raft may have forgotten
// the leader), whether it is dead, and the transfer notice of a leader. The same node may lead again in a newer term,
// as another process or because it lived: nothing is known of that leader before rememberLeader.
func (c *Controller) AnnotateClaim(claim *cluster.Claim) {
	c.annotateSilence(claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim.Role == cluster.Leader {
		claim.Handover = c.handover
		return
	}
	follows := claim.LeaderID == c.leader.id && claim.Term == c.leader.term
	if c.leader.id != "" && (follows || claim.LeaderID == "") {
		claim.LeaderBootID = c.leader.boot
		claim.LeaderProcessDead = c.deadLeader.id != "" && c.deadLeader == c.leader
	}
}

// Bounds of the interval of silence checks. A change of leader wakes Run in any case.
const (
	minCheckInterval = time.Millisecond
	maxCheckInterval = time.Second
)

// nextSilenceCheck returns the time until the leader will have been silent for so long that it is asked, or for too
// long.
// A node without a leader checks only whether its own process runs on time.
func (c *Controller) nextSilenceCheck(quiet time.Time) time.Duration {
	mine := c.deps.Claim()
	limit, silence := c.params().SilenceLimit(mine), mine.LeaderSilence
	switch {
	case !c.cfg.Fast:
		return maxCheckInterval
	case mine.Role == cluster.Leader && !mine.Paused:
		return c.nextMajorityCheck()
	case mine.Role == cluster.Leader || silence < 0:
		return c.cfg.TimeoutMin
	case silence < doubt(limit):
		limit = doubt(limit)
	}
	return max(minCheckInterval, limit-silence, time.Until(quiet))
}

// affectedBy reports whether this node follows the leader, or did when its own timer fired. A candidate that
// has not raised its term is sending pre-vote requests, and voters that still know the leader reject them.
func (c *Controller) affectedBy(mine cluster.Claim, l leaderInstance) bool {
	if l.id == "" {
		return false
	}
	follows := mine.Role == cluster.Follower && mine.LeaderID == l.id
	return follows || mine.Role == cluster.Candidate && mine.LeaderID == "" && mine.Term == l.term
}

// isDead reports whether the leader's process is confirmed dead.
func (c *Controller) isDead(l leaderInstance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadLeader == l
}

// LeaderDead reports whether this node found the process of a term's leader dead. It does not block.
func (c *Controller) LeaderDead(leader cluster.NodeID, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadLeader.id == leader && c.deadLeader.term == term && leader != ""
}

// handleSilence starts a failover if the leader is silent. It returns false if the next check must not be delayed: the
// leader is not silent, or was heard meanwhile, or nothing is decided yet.
func (c *Controller) handleSilence(ctx context.Context) bool {
	mine, l := c.deps.Claim(), c.lastLeader()
	switch limit := c.params().SilenceLimit(mine); {
	case !c.cfg.Fast:
		return false
	case mine.Role == cluster.Leader:
		if !mine.Paused {
			c.checkMajority()
		}
		return false
	case mine.LeaderSilence < doubt(limit):
		return false
	case mine.LeaderSilence < limit:
		c.askLeader(mine, l)
		return false
	}
	ev := election.Evidence{Leader: l.id, BootID: l.boot, Term: mine.Term, At: time.Now()}
	switch {
	case c.affectedBy(mine, l):
	case l.id != "" && mine.Role == cluster.Follower && mine.LeaderID == "" && mine.Term > l.term:
		ev.Term = l.term // another node is a candidate of a newer term, or was
	default:
		return true // this node leads, is a candidate or knows no leader: Raft's timers decide
	}
	seen := c.deps.Peers.Claims()[l.id].Claim
	ev.DiskStalled = seen.Disk.Stalled || seen.Yields == cluster.YieldDisk
	if !c.runFailover(ctx, ev, time.Time{}) {
		return false
	}
	now := c.deps.Claim() // a leader heard meanwhile may become silent any moment
	return now.LeaderSilence >= c.params().SilenceLimit(now)
}

// handleConnectionLoss starts a failover if the connection was the leader's and a new dial finds the process dead.
func (c *Controller) handleConnectionLoss(ctx context.Context, loss cluster.ConnectionLoss) bool {
	c.rememberLeader(c.deps.Consensus.Status())
	l, mine := c.lastLeader(), c.deps.Claim()
	switch {
	case !c.cfg.Fast, l.id != loss.Peer, !c.affectedBy(mine, l):
		return false
	case mine.Role == cluster.Candidate && c.isDead(l):
		return false // another connection of the same process: the election has started
	case l.boot != "" && loss.BootID != "" && l.boot != loss.BootID:
		return false // an earlier process of the leader
	}
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() { c.spareIfAlive(ctx, cancel, loss) })
	finished := make(chan struct{}) // peers that hear of the dead process must also see the log with its last entries
	go func() {
		defer close(finished)
		c.barrier(ctx, pollWait)
	}()
	alive := c.deps.Peers.Confirm(ctx, loss.Peer, loss.BootID)
	<-finished
	c.log.Debug("the leader's connection broke", "leader", l.id, "process", alive, "cause", loss.Cause)
	if alive != cluster.LivenessDead && alive != cluster.LivenessRestarted {
		return false // if the leader is silent, the silence check will detect it
	}
	c.mu.Lock()
	if c.leader == l && ctx.Err() == nil {
		if l.boot == "" {
			c.leader.boot = loss.BootID
		}
		c.deadLeader, c.deadLeaderAt = c.leader, time.Now()
	}
	l = c.leader
	c.mu.Unlock()
	// The first poll announces the dead process to all peers. One of them may need one more report.
	return c.runFailover(ctx, election.Evidence{
		Leader: l.id, BootID: l.boot, ProcessDead: true, Term: mine.Term, At: loss.At,
	}, time.Now())
}
