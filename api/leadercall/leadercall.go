// Package leadercall brings commands and questions of this node to the leader, over the connections between peers:
// proposals, read indexes, renewals of sessions. Without a leader they wait, as requests of the HTTP API do.
package leadercall

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/cluster"
	"northstar/state"
	"northstar/tracing"
)

// Consensus is what this package uses of consensus. Its methods may be called by any goroutine; their errors are
// *cluster.Error unless said otherwise. Large because Subscriptions is a part that Calls uses apart.
type Consensus interface {
	// Propose returns once the command is applied here. CodeNoLeader: it is not applied. CodeOutcomeUnknown: it may be.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// ReadBarrier returns once View holds every write acknowledged before the call. CodeNoLeader: not this node.
	ReadBarrier(ctx context.Context) error
	// ReadIndex is ReadBarrier for another node, which is to apply the log up to the index returned.
	ReadIndex(ctx context.Context, by cluster.Asker) (uint64, error)
	// Asker returns this node as one that asks for a read index.
	Asker() cluster.Asker
	// Applied returns the index up to which View reflects the log.
	Applied() uint64
	// AwaitApplied returns once View reflects the log up to index, or with the cause of ctx's end.
	AwaitApplied(ctx context.Context, index uint64) error
	View() *state.View
	Subscriptions
}

// Subscriptions are those of nodes to the leader's commit index.
type Subscriptions interface {
	// Watched reports whether anyone waits for a change of View. The channel then gets an element, for one receiver.
	Watched() (bool, <-chan struct{})
	// Subscribe has this node, the leader, send another one each commit index immediately for a few seconds.
	Subscribe(id cluster.NodeID) error
}

// Sessions keeps the session timers while this node leads. Its methods may be called by any goroutine.
type Sessions interface {
	// Renew renews sessions for their TTL, counted from the call. CodeNoLeader: nothing was renewed.
	Renew(ctx context.Context, ids []string) (state.Renewed, error)
	// Remaining returns how long a session has left, as far as this node knows.
	Remaining(s *state.Session) time.Duration
}

// Config are the dependencies of Calls. All but Tracer are required.
type Config struct {
	Consensus Consensus
	Sessions  Sessions
	Forward   *forward.Forwarder
	// Call sends a request to another node's Calls.Handle, and returns the response. CodeNoLeader: that node has not
	// received it. After another error it may have.
	Call       func(ctx context.Context, to cluster.NodeID, request []byte) ([]byte, error)
	TimeoutMax time.Duration // election.timeout-max
	BootID     string        // random, of this process
	Tracer     *tracing.Tracer
}

// Calls brings calls of this node to the leader. Its methods may be called by any goroutine.
type Calls struct {
	Config
	sender  string // of this process's numbered commands
	numbers apiv1.Numbers
	reads   *rounds
	renews  *rounds
	lags    singleflight.Group

	unshared *semaphore.Weighted // bytes of the calls in progress that are not shared

	failedAt atomic.Pointer[time.Time] // when TryReadIndex has failed last

	subscribing *subscription
}

// New returns Calls that do not run yet.
func New(c Config) *Calls {
	return &Calls{
		Config: c, reads: newRounds(), renews: newRounds(), unshared: semaphore.NewWeighted(maxUnsharedBytes),
		subscribing: newSubscription(),
		sender:      state.NodeIdempotencyPrefix + string(c.Forward.Self) + "/" + c.BootID,
	}
}

// Version is the least command version of a leader that answers calls.
const Version = 6

// Propose has the leader apply a command. The command has an idempotency key, its own, or a number or a key that
// Propose adds: after an unknown outcome it is proposed again, and applied once. So the death of a leader is a delay
// for the caller, and the outcome is unknown only if there is no other leader in time.
//
// Until all members know numbers, only commands of Version and later get a key here: earlier builds keep the keys of
// nodes among those of clients, and their states would differ.
func (c *Calls) Propose(ctx context.Context, cmd state.Command) (result state.Result, err error) {
	if err := cmd.Validate(); err != nil {
		return state.Result{}, err
	}
	end, numbered := func() {}, cmd.Idempotency != nil
	if !numbered {
		end, numbered = c.Number(&cmd)
	}
	defer end()
	if !numbered {
		if v := cmd.MinVersion(); v < Version {
			return state.Result{}, cluster.Errorf(cluster.CodeBadRequest, "a command of version %d needs a key", v)
		}
		cmd.Idempotency = &state.Idempotency{
			Key: state.NodeIdempotencyPrefix + rand.Text(), After: c.Consensus.Applied(),
		}
	}
	err = c.Forward.Serve(ctx, forward.Request{
		Write: true, Idempotent: true,
		Local: func(ctx context.Context) (err error) {
			if c.follows() {
				return errFollows
			}
			result, err = c.Consensus.Propose(ctx, cmd)
			return err
		},
		Remote: func(ctx context.Context, leader cluster.NodeID) (err error) {
			ctx, span := tracing.Start(ctx, "forward")
			span.Set("northstar.leader_id", string(leader))
			result, err = c.proposeAt(ctx, leader, cmd)
			span.End(err)
			return err
		},
	})
	if err != nil {
		return state.Result{}, err
	}
	return result, nil
}

// errFollows is CodeNoLeader: another node leads. It costs nothing to make.
var errFollows = cluster.Errorf(cluster.CodeNoLeader, "another node leads")

// follows reports whether another node leads, as far as this one knows.
func (c *Calls) follows() bool {
	leader := c.Forward.Leader.Current().ID
	return leader != "" && leader != c.Forward.Self
}

// ReadIndex returns once this node's view has every write that was acknowledged before the call. Another node than the
// leader asks it only for the read index; all callers that wait at the same time share one question. A round bounds
// each attempt. limit bounds all of them after the first.
func (c *Calls) ReadIndex(ctx context.Context, limit time.Duration) error {
	return c.Forward.Serve(ctx, forward.Request{
		Idempotent: true, EndsWithLeader: true, Limit: limit,
		Local: func(ctx context.Context) error {
			if c.follows() {
				return errFollows
			}
			return c.Consensus.ReadBarrier(ctx)
		},
		Remote: func(ctx context.Context, _ cluster.NodeID) error { return c.askReadIndex(ctx) },
	})
}

func (c *Calls) askReadIndex(ctx context.Context) error {
	_, err := c.reads.join(ctx)
	return err
}

// TryReadIndex is ReadIndex for a caller that can have the leader answer instead. It makes one attempt, and none for a
// second after one has failed: this node's disk may be slow, and reads at the leader do not need it. An error means
// that nothing is known.
func (c *Calls) TryReadIndex(ctx context.Context) error {
	if last := c.failedAt.Load(); last != nil && time.Since(*last) < tryAgainAfter {
		return notLeading(c.Forward.Self)
	}
	asking, cancel := context.WithTimeout(ctx, c.TimeoutMax/2)
	defer cancel()
	err := c.askReadIndex(asking)
	if err != nil && ctx.Err() == nil {
		now := time.Now()
		c.failedAt.Store(&now)
	}
	return err
}

// tryAgainAfter is how long TryReadIndex fails after a failed attempt.
const tryAgainAfter = time.Second

// RenewSessions renews sessions and returns those that live, and perhaps others, with how long they have left, counted
// from the call: Renewed, or less for one that is not renewed because a role was revoked from it. All callers that
// wait at the same time share one message and one proof of leadership, which began after the call: a deposed leader
// renews nothing.
func (c *Calls) RenewSessions(ctx context.Context, sessions []string) (left map[string]time.Duration, err error) {
	renew := func(ctx context.Context) (err error) {
		left, err = c.renews.join(ctx, sessions...)
		return err
	}
	err = c.Forward.Serve(ctx, forward.Request{
		Idempotent: true, EndsWithLeader: true,
		Local: func(ctx context.Context) error {
			if c.Forward.Leader.Current().ID != c.Forward.Self {
				return notLeading(c.Forward.Self)
			}
			return renew(ctx)
		},
		Remote: func(ctx context.Context, _ cluster.NodeID) error { return renew(ctx) },
	})
	return left, err
}

// Remaining returns how long a session has left, and false if it has ended. The leader knows.
func (c *Calls) Remaining(ctx context.Context, session string) (left time.Duration, lives bool, err error) {
	err = c.Forward.Serve(ctx, forward.Request{
		Idempotent: true,
		Local: func(ctx context.Context) (err error) {
			left, lives, err = c.remainingHere(ctx, session)
			return err
		},
		Remote: func(ctx context.Context, leader cluster.NodeID) error {
			got, err := c.ask(ctx, leader, remaining, message{IDs: []string{session}})
			left, lives = time.Duration(got.LeftMS)*time.Millisecond, len(got.IDs) > 0
			return err
		},
	})
	return left, lives, err
}

func (c *Calls) remainingHere(ctx context.Context, session string) (time.Duration, bool, error) {
	if err := c.Consensus.ReadBarrier(ctx); err != nil {
		return 0, false, err
	}
	left, lives := c.remainingOf(session)
	return left, lives, nil
}

// remainingOf returns how long a session has left at this node, the leader, and false if it has ended. It looks twice:
// Remaining returns the TTL of a session that has ended in between.
func (c *Calls) remainingOf(session string) (time.Duration, bool) {
	s, ok := c.Consensus.View().Session(session)
	if !ok {
		return 0, false
	}
	left := c.Sessions.Remaining(s)
	_, lives := c.Consensus.View().Session(session)
	return left, lives
}

func notLeading(id cluster.NodeID) *cluster.Error {
	return cluster.Errorf(cluster.CodeNoLeader, "node %s does not lead", id)
}
