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

// Keeper keeps the clocks of all sessions while this node leads. Its methods may
// be called from any goroutine, at any time.
type Keeper struct {
	deps   Deps
	logger hclog.Logger

	mu       sync.Mutex
	reign    *reign            // nil while this node does not lead
	attended map[candidacy]int // requests that wait at this node
}

// New makes a Keeper and starts nothing.
func New(d Deps) *Keeper {
	return &Keeper{deps: d, logger: d.Logger.Named("roles"), attended: map[candidacy]int{}}
}

// reign is what the leader knows beside the state: everything in it begins
// afresh with each reign. Keeper.mu guards it.
type reign struct {
	clock    pauseClock
	sessions map[string]*entry
	due      dueHeap // every entry of sessions that is not ending
	newest   string  // ID of the newest session taken in

	ending []*entry      // to be proposed
	reap   chan struct{} // capacity 1: there is something in ending
	tend   chan struct{} // capacity 1: an election or a withdrawal may be due
	early  chan struct{} // capacity 1: the next turn should come soon

	vacant   map[string]vacancy          // roles that wait for time to pass
	suspects map[candidacy]time.Duration // candidates that nobody here waits for, and since when
}

// entry is one session's clock.
type entry struct {
	id       string
	ttl      time.Duration
	deadline time.Duration // of the reign's clock: not ended before
	key      time.Duration // where it stands in the heap: at most deadline
	index    int           // in the heap; -1: ending
	pending  int           // renewals that have arrived and are not proven yet
	cause    state.Cause   // why it ends when the deadline passes
	end      *ending       // nil while it is not to end
	streams  []stream      // connections that hold it
}

// ending is the end of a session on its way through the log.
type ending struct {
	done  chan struct{} // closed when it is known what became of it
	ended bool          // set before done is closed
	lost  bool          // the same: this node stopped leading before it was known
}

// errReignOver is for whoever waited for something that a reign did not finish.
var errReignOver = errors.New("this node stopped leading")

// Lead runs while this node leads: consensus calls it as a leader task.
func (k *Keeper) Lead(ctx context.Context, _ uint64) {
	r := k.begin()
	var tasks sync.WaitGroup
	tasks.Go(func() { k.reapAll(ctx, r) })
	tasks.Go(func() { k.tendRoles(ctx, r) })
	tasks.Go(func() { k.followRoles(ctx, r) })
	tasks.Go(func() { k.forgetDead(ctx) })
	k.keepTime(ctx, r)
	tasks.Wait()
	k.finish(r)
}

// begin starts every TTL and every takeover delay afresh: no renewal that an
// earlier leader has answered can have come later than this.
func (k *Keeper) begin() *reign {
	r := &reign{
		clock: newPauseClock(k.deps.Clock()), sessions: map[string]*entry{},
		reap: make(chan struct{}, 1), tend: make(chan struct{}, 1), early: make(chan struct{}, 1),
		vacant: map[string]vacancy{}, suspects: map[candidacy]time.Duration{},
	}
	view := k.deps.Consensus.View()
	r.takeIn(view, 0)
	r.suspectAll(view)
	k.mu.Lock()
	k.reign = r
	k.mu.Unlock()
	return r
}

// finish forgets a reign. Who waits for the end of a session is told that this
// node does not know it.
func (k *Keeper) finish(r *reign) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reign = nil
	for _, e := range r.sessions {
		if e.end != nil {
			e.end.lost = true
			close(e.end.done)
		}
	}
}

// takeIn starts the clocks of sessions that the reign does not know yet. Session
// IDs grow, so that these are the newest.
func (r *reign) takeIn(view *state.View, now time.Duration) {
	for s := range view.SessionsAfter(r.newest) {
		r.newest = s.ID
		if r.sessions[s.ID] == nil {
			r.add(s, now)
		}
	}
}

// add starts the clock of one session, as if it had been renewed at now.
func (r *reign) add(s *state.Session, now time.Duration) *entry {
	e := &entry{id: s.ID, ttl: s.TTL}
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
