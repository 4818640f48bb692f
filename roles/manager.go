// Package roles keeps the timers of sessions and roles on the leader, in memory. It knows which sessions were not
// renewed for their TTL, which takeover delays are over, and which candidates still wait. The consequences go through
// the log as commands of package state, which decides who holds what. DESIGN.md explains why no session ends early.
package roles

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

// Consensus is what SessionManager uses of consensus, from any goroutine. Errors are *cluster.Error.
type Consensus interface {
	// Propose returns once the command is applied here. After CodeOutcomeUnknown alone it may still be applied.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// ReadBarrier proves that this node leads. View then has everything acknowledged before the call.
	ReadBarrier(ctx context.Context) error
	View() *state.View
	RoleFeed() *state.Feed
}

// Deps are the dependencies of a SessionManager. All are required.
type Deps struct {
	Consensus Consensus
	Clock     func() time.Duration // monotonic; continues while the machine is suspended
	Event     func(cluster.Event)  // receives elections and vacancies; must not block
	// LeaseGrace is how much longer than its TTL a lease lives at least: clients of etcd count the TTL from the answer
	// to a renewal, and this node from the request.
	LeaseGrace time.Duration
	// NodeRetention is how long a dead application node stays registered.
	NodeRetention time.Duration
	Logger        hclog.Logger
}

// SessionManager keeps the timers of all sessions while this node leads. Any goroutine may call its methods.
type SessionManager struct {
	deps   Deps
	logger hclog.Logger

	mu          sync.Mutex
	leaderState *leaderState      // nil while this node does not lead
	waiters     map[candidacy]int // number of requests that wait at this node
}

// New returns a SessionManager that does not run yet.
func New(d Deps) *SessionManager {
	return &SessionManager{deps: d, logger: d.Logger.Named("roles"), waiters: map[candidacy]int{}}
}

// leaderState is the leader's volatile data, new for each leadership. SessionManager.mu guards it.
type leaderState struct {
	clock           pauseClock
	leaseGrace      time.Duration
	sessions        map[string]*sessionTimer
	due             dueHeap[*sessionTimer] // every timer of sessions that is not expiring
	lastSeenSession string                 // ID of the newest session with a timer

	expiring      []*sessionTimer // to be proposed
	wakeExpiry    chan struct{}   // capacity 1: expiring is not empty
	wakeElections chan struct{}   // capacity 1: an election or a withdrawal may be due
	wakeTimer     chan struct{}   // capacity 1: the next tick should be soon

	pendingRoles map[string]pendingRole // roles with a pending delay
	orphans      map[candidacy]orphan   // the last request for it has ended, or its outcome is unknown
}

// sessionTimer is one session's timer.
type sessionTimer struct {
	id              string
	ttl             time.Duration
	grace           time.Duration  // added to the TTL; of a lease
	deadline        time.Duration  // on the leaderState's clock: not expired before
	renewedUntil    time.Duration  // deadline before the end of a connection; with CauseDisconnected
	slot                           // key: at most deadline; index -1: expiring
	pendingRenewals int            // renewals that have arrived and wait for the barrier
	cause           state.Cause    // cause of the expiry at the deadline
	expiry          *pendingExpiry // nil: not expiring
	streams         []stream       // connections that hold it
}

// pendingExpiry is the expiry of a session on its way through the log.
type pendingExpiry struct {
	done           chan struct{} // closed when the result is known
	ended          bool          // set before done is closed
	leadershipLost bool          // this node lost leadership before the result was known
}

// errLeadershipLost is for callers whose operation the leadership did not finish.
var errLeadershipLost = errors.New("this node stopped leading")

// Lead runs while this node leads; consensus calls it as a leader task.
func (k *SessionManager) Lead(ctx context.Context, _ uint64) {
	r := k.startLeading()
	var tasks sync.WaitGroup
	tasks.Go(func() { k.expireLoop(ctx, r) })
	tasks.Go(func() { k.electionLoop(ctx, r) })
	tasks.Go(func() { k.watchRoles(ctx, r) })
	tasks.Go(func() { k.purgeDeadNodes(ctx) })
	k.timerLoop(ctx, r)
	tasks.Wait()
	k.stopLeading(r)
}

// startLeading starts every TTL and delay again: no renewal that an earlier leader acknowledged is newer.
func (k *SessionManager) startLeading() *leaderState {
	r := &leaderState{
		clock: pauseClock{at: k.deps.Clock()}, leaseGrace: k.deps.LeaseGrace, sessions: map[string]*sessionTimer{},
		wakeExpiry: make(chan struct{}, 1), wakeElections: make(chan struct{}, 1), wakeTimer: make(chan struct{}, 1),
		pendingRoles: map[string]pendingRole{}, orphans: map[candidacy]orphan{},
	}
	view := k.deps.Consensus.View()
	r.addNewSessions(view, 0)
	for role := range view.RolesAfter("") {
		for _, c := range role.Queue { // no request waits here yet
			r.orphans[candidacy{role.Name, c.Session}] = orphan{}
		}
	}
	k.mu.Lock()
	k.leaderState = r
	k.mu.Unlock()
	return r
}

// stopLeading drops the leaderState. Callers that wait for the end of a session get errLeadershipLost.
func (k *SessionManager) stopLeading(r *leaderState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaderState = nil
	for _, e := range r.sessions {
		if e.expiry != nil {
			e.expiry.leadershipLost = true
			close(e.expiry.done)
		}
	}
}

// addNewSessions starts the timers of sessions without one. Session IDs grow, so these are the newest sessions.
func (r *leaderState) addNewSessions(view *state.View, now time.Duration) {
	for s := range view.SessionsAfter(r.lastSeenSession) {
		r.lastSeenSession = s.ID
		if r.sessions[s.ID] == nil {
			r.addSession(s, now)
		}
	}
}

// addSession starts the timer of one session, as if it had been renewed at now.
func (r *leaderState) addSession(s *state.Session, now time.Duration) *sessionTimer {
	e := &sessionTimer{id: s.ID, ttl: s.TTL}
	if s.Lease != 0 {
		e.grace = max(r.leaseGrace, s.TTL/10)
	}
	e.renew(now)
	e.key = e.deadline
	r.sessions[e.id] = e
	r.due.push(e)
	return e
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
