// Package failover acts on lost, silent and badly placed leaders: it gathers
// what the transport and consensus know, has package election decide, and does
// what that says. It can only make elections begin earlier than Raft's timers
// would, or move leadership by a planned transfer: votes stay Raft's.
package failover

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/election"
	"northstar/state"
)

// Peers is what failover needs of the transport. Its methods may be called by
// any goroutine.
type Peers interface {
	// Claims are the newest claims of all peers. It does not block.
	Claims() map[cluster.NodeID]cluster.ReceivedClaim
	// ClaimsChanged is closed at the next claim of any peer. It does not block.
	ClaimsChanged() <-chan struct{}
	// Poll asks peers for fresh claims and gives what came before ctx ended. The
	// question bears this node's own.
	Poll(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	// Confirm dials a peer again to learn whether that process of it is dead. It
	// takes at most some 60 ms.
	Confirm(ctx context.Context, peer cluster.NodeID, bootID string) cluster.Liveness
}

// Raft is this node's end of the running Raft node.
type Raft interface {
	// Barrier returns when Raft has finished the append that it was working on.
	WaitMainLoop(ctx context.Context) error
	// Stand makes this node stand for election now, without pre-vote, unless it has
	// left that term.
	StartElection(ctx context.Context, term uint64, by cluster.ElectionCause) error
}

// Consensus is what failover needs to know of the cluster.
type Consensus interface {
	Status() cluster.NodeStatus
	Peers() []cluster.PeerStatus
	View() *state.View
	// LeaderChanged is closed at the next change of leader or term.
	LeaderChanged() <-chan struct{}
}

// Transfer moves leadership away from this node, which leads.
type Transfer interface {
	// Choices shows all other servers as targets, the best first.
	Choices() []cluster.TargetOption
	// To returns once the target is seen leading; h.To "" is the best.
	Execute(ctx context.Context, h cluster.TransferNotice) (cluster.TransferOutcome, error)
}

// Config is what a Controller is told once.
type Config struct {
	Self          cluster.NodeID
	Fast          bool // failover.fast: act on lost and silent leaders ahead of Raft's timers
	TakeoverDelay time.Duration
	TimeoutMin    time.Duration // election.timeout-min
	TimeoutMax    time.Duration
	Lease         bool // election.lease: wait until the leader's has run out
	// LeaseWait is for how long a node that was elected by order serves nothing:
	// the leader that it passed over may have a lease. 0 without leases.
	LeaseWait time.Duration
}

func (c Config) params() election.Params {
	return election.Params{TimeoutMin: c.TimeoutMin, Lease: c.Lease}
}

// Deps is what a Controller works with; all are required.
type Deps struct {
	// Claim is this node's own claim as of now, with what Fill adds. It is cheap
	// and must not be called while Fill runs.
	Claim     func() cluster.Claim
	Peers     Peers
	Raft      func() Raft // the running one
	Consensus Consensus
	Transfer  Transfer
	Event     func(cluster.Event) // for the journal; must not block
	Logger    hclog.Logger
}

// Controller watches over the leader. Its methods may be called by any
// goroutine, before, during and after Run.
type Controller struct {
	cfg  Config
	deps Deps
	log  hclog.Logger
	now  func() time.Time

	began time.Time // when it was made

	losses     chan cluster.ConnectionLoss // bounded; what does not fit is left to silence
	requestSem chan struct{}               // capacity 1: who holds it carries an order to stand out
	book       candidacyLog

	mu             sync.Mutex     // guards what follows; nothing blocks under it
	leader         leaderInstance // the last leader that this node knew
	deadLeader     leaderInstance // the reign whose process is confirmed dead; zero: none
	deadLeaderAt   time.Time      // when that was
	handover       cluster.TransferNotice
	electionLimits map[string]*tokenBucket // injections by leader process
	cooldown       cooldown
}

// leaderInstance is a leader in one term.
type leaderInstance struct {
	id   cluster.NodeID
	boot string // of its process; "" when not known
	term uint64
}

// cooldown bounds attempts to move leadership; it outlives reigns.
type cooldown struct {
	last  time.Duration
	until time.Time
	disk  time.Time // when leadership was last moved for this node's disk
}

// New makes a Controller and starts nothing.
func New(cfg Config, deps Deps) *Controller {
	return &Controller{
		cfg: cfg, deps: deps, log: deps.Logger.Named("failover"), now: time.Now, began: time.Now(),
		losses: make(chan cluster.ConnectionLoss, 16), requestSem: make(chan struct{}, 1), electionLimits: map[string]*tokenBucket{},
	}
}

// OnConnectionLost hears that a monitor connection has broken. It does not block.
func (c *Controller) OnConnectionLost(l cluster.ConnectionLoss) {
	select {
	case c.losses <- l:
	default: // its silence will be noticed
	}
}

// Run acts on lost and silent leaders until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	quiet := time.Time{} // silence is not looked at before
	for {
		changed := c.deps.Consensus.LeaderChanged()
		c.rememberLeader(c.deps.Consensus.Status())
		c.clearDeadLeader()
		timer := time.NewTimer(c.nextSilenceCheck(quiet))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
		case loss := <-c.losses:
			if c.handleConnectionLoss(ctx, loss) {
				quiet = c.now().Add(c.cfg.TimeoutMin)
			}
		case <-timer.C:
			if c.handleSilence(ctx) {
				quiet = c.now().Add(c.cfg.TimeoutMin)
			}
		}
		timer.Stop()
	}
}

// rememberLeader remembers the leader: when it is gone, Raft forgets its name.
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
		return // the process of that reign is known, and this is another one
	}
	c.leader = next
	c.deadLeader = leaderInstance{}
}

// clearDeadLeader takes back that the leader's process is dead when that was heard long enough
// after: dialling it was refused for a moment, by a firewall for one.
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
	if heard := c.now().Add(-mine.LeaderSilence); heard.Sub(at) <= c.cfg.TimeoutMin {
		return // it may have been on its way
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

// AnnotateClaim adds to this node's claim what failover knows: the leader's process, also
// when Raft has forgotten it, whether that is dead, and what this node is about
// to hand over.
func (c *Controller) AnnotateClaim(claim *cluster.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim.Role == cluster.Leader {
		claim.Handover = c.handover
		return
	}
	if c.leader.id != "" && (claim.LeaderID == c.leader.id || claim.LeaderID == "") {
		claim.LeaderBootID = c.leader.boot
		claim.LeaderProcessDead = c.deadLeader.id != "" && c.deadLeader == c.leader
	}
}

// Bounds of how often silence is looked at. A change of leader is noticed at
// once whatever they are.
const (
	minCheckInterval = time.Millisecond
	maxCheckInterval = time.Second
)

// nextSilenceCheck is when the leader will have been silent for too long.
func (c *Controller) nextSilenceCheck(quiet time.Time) time.Duration {
	mine := c.deps.Claim()
	if !c.cfg.Fast || mine.Role == cluster.Leader {
		return maxCheckInterval
	}
	return max(minCheckInterval, c.cfg.TimeoutMin-max(0, mine.LeaderSilence), quiet.Sub(c.now()))
}

// affectedBy says whether a leader is this node's to follow still, or was when its
// own timer fired: a candidate that has not raised its term asks for pre-votes, and
// those who still know the leader turn it down.
func (c *Controller) affectedBy(mine cluster.Claim, l leaderInstance) bool {
	if l.id == "" {
		return false
	}
	follows := mine.Role == cluster.Follower && mine.LeaderID == l.id
	return follows || mine.Role == cluster.Candidate && mine.LeaderID == "" && mine.Term == l.term
}

// isDead says whether the process of a reign is confirmed dead.
func (c *Controller) isDead(l leaderInstance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadLeader == l
}

// LeaderDead says whether this node has found the process of the leader of a term
// dead. It does not block.
func (c *Controller) LeaderDead(leader cluster.NodeID, term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadLeader.id == leader && c.deadLeader.term == term && leader != ""
}

// handleSilence acts when the leader has been silent for too long; false when it is
// not, or not any more.
func (c *Controller) handleSilence(ctx context.Context) bool {
	mine, l := c.deps.Claim(), c.lastLeader()
	if !c.cfg.Fast || mine.LeaderSilence < c.cfg.TimeoutMin {
		return false
	}
	if !c.affectedBy(mine, l) {
		return true // it leads, stands, or knows no leader: Raft's timers do the rest
	}
	ev := election.Evidence{Leader: l.id, BootID: l.boot, Term: mine.Term, At: c.now()}
	ev.DiskStalled = c.deps.Peers.Claims()[l.id].Claim.Disk.Stalled
	c.runFailover(ctx, ev, time.Time{})
	return c.deps.Claim().LeaderSilence >= c.cfg.TimeoutMin // one that was heard meanwhile may fall silent any moment
}

// handleConnectionLoss acts on a connection that broke: when it was the leader's, and dialling
// it again shows that the process is dead; false when nothing was done.
func (c *Controller) handleConnectionLoss(ctx context.Context, loss cluster.ConnectionLoss) bool {
	c.rememberLeader(c.deps.Consensus.Status())
	l, mine := c.lastLeader(), c.deps.Claim()
	switch {
	case !c.cfg.Fast, l.id != loss.Peer, !c.affectedBy(mine, l):
		return false
	case mine.Role == cluster.Candidate && c.isDead(l):
		return false // another connection of the same process: this node has been made to stand
	case l.boot != "" && loss.BootID != "" && l.boot != loss.BootID:
		return false // a process before the one that leads
	}
	settled := make(chan struct{}) // who is told that the process is dead is told of what it had sent by now, too
	go func() {
		defer close(settled)
		c.barrier(ctx)
	}()
	alive := c.deps.Peers.Confirm(ctx, loss.Peer, loss.BootID)
	<-settled
	c.log.Debug("the leader's connection broke", "leader", l.id, "process", alive, "cause", loss.Cause)
	if alive != cluster.LivenessDead && alive != cluster.LivenessRestarted {
		return false // its silence will be noticed, if there is any
	}
	c.mu.Lock()
	if c.leader == l {
		if l.boot == "" {
			c.leader.boot = loss.BootID
		}
		c.deadLeader, c.deadLeaderAt = c.leader, c.now()
	}
	l = c.leader
	c.mu.Unlock()
	// The first question says so to all: some other may wait for one more that does.
	c.runFailover(ctx, election.Evidence{Leader: l.id, BootID: l.boot, ProcessDead: true, Term: mine.Term, At: loss.At}, c.now())
	return true
}
