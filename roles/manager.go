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

// Consensus is what the keeper needs of it. Methods may be called from any
// goroutine; errors are *cluster.Error.
type Consensus interface {
	// Propose returns once the command is applied here. CodeOutcomeUnknown is the
	// only error after which it may still be.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// Barrier proves that this node leads, by appends sent after the call, and
	// that View holds all that was acknowledged before it.
	ReadBarrier(ctx context.Context) error
	View() *state.View
	RoleFeed() *state.Feed
}

// Deps is what a Keeper is made of. All are required.
type Deps struct {
	Consensus Consensus
	Clock     func() time.Duration // monotonic, runs on while the machine is suspended
	Event     func(cluster.Event)  // told of elections and vacancies; must not block
	Logger    hclog.Logger
}

// SessionManager keeps the clocks of all sessions while this node leads. Its methods may
// be called from any goroutine, at any time.
type SessionManager struct {
	deps   Deps
	logger hclog.Logger

	mu          sync.Mutex
	leaderState *leaderState      // nil while this node does not lead
	waiters     map[candidacy]int // requests that wait at this node
}

// New makes a Keeper and starts nothing.
func New(d Deps) *SessionManager {
	return &SessionManager{deps: d, logger: d.Logger.Named("roles"), waiters: map[candidacy]int{}}
}

// leaderState is what the leader knows beside the state: everything in it begins
// afresh with each reign. Keeper.mu guards it.
type leaderState struct {
	clock           pauseClock
	sessions        map[string]*sessionTimer
	due             dueHeap[*sessionTimer] // every entry of sessions that is not ending
	lastSeenSession string                 // ID of the newest session taken in

	expiring      []*sessionTimer // to be proposed
	wakeExpiry    chan struct{}   // capacity 1: there is something in ending
	wakeElections chan struct{}   // capacity 1: an election or a withdrawal may be due
	wakeTimer     chan struct{}   // capacity 1: the next turn should come soon

	pendingRoles map[string]pendingRole      // roles that wait for time to pass
	orphans      map[candidacy]time.Duration // candidates that nobody here waits for, and since when
}

// sessionTimer is one session's clock.
type sessionTimer struct {
	id              string
	ttl             time.Duration
	deadline        time.Duration  // of the reign's clock: not ended before
	slot                           // key: at most deadline; index -1: ending
	pendingRenewals int            // renewals that have arrived and are not proven yet
	cause           state.Cause    // why it ends when the deadline passes
	expiry          *pendingExpiry // nil while it is not to end
	streams         []stream       // connections that hold it
}

// expiring is the end of a session on its way through the log.
type pendingExpiry struct {
	done           chan struct{} // closed when it is known what became of it
	ended          bool          // set before done is closed
	leadershipLost bool          // the same: this node stopped leading before it was known
}

// errLeadershipLost is for whoever waited for something that a reign did not finish.
var errLeadershipLost = errors.New("this node stopped leading")

// Lead runs while this node leads: consensus calls it as a leader task.
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

// startLeading starts every TTL and every takeover delay afresh: no renewal that an
// earlier leader has answered can have come later than this.
func (k *SessionManager) startLeading() *leaderState {
	r := &leaderState{
		clock: newPauseClock(k.deps.Clock()), sessions: map[string]*sessionTimer{},
		wakeExpiry: make(chan struct{}, 1), wakeElections: make(chan struct{}, 1), wakeTimer: make(chan struct{}, 1),
		pendingRoles: map[string]pendingRole{}, orphans: map[candidacy]time.Duration{},
	}
	view := k.deps.Consensus.View()
	r.addNewSessions(view, 0)
	r.markAllOrphaned(view)
	k.mu.Lock()
	k.leaderState = r
	k.mu.Unlock()
	return r
}

// stopLeading forgets a reign. Who waits for the end of a session is told that this
// node does not know it.
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

// addNewSessions starts the clocks of sessions that the reign does not know yet. Session
// IDs grow, so that these are the newest.
func (r *leaderState) addNewSessions(view *state.View, now time.Duration) {
	for s := range view.SessionsAfter(r.lastSeenSession) {
		r.lastSeenSession = s.ID
		if r.sessions[s.ID] == nil {
			r.addSession(s, now)
		}
	}
}

// addSession starts the clock of one session, as if it had been renewed at now.
func (r *leaderState) addSession(s *state.Session, now time.Duration) *sessionTimer {
	e := &sessionTimer{id: s.ID, ttl: s.TTL}
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
