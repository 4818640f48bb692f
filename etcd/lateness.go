package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/cluster"
	"northstar/state"
)

// graceOf returns how much longer than its TTL a lease lives, if the leader has the same etcd.lease-grace.
func (s *Server) graceOf(lease *state.Session) time.Duration {
	return max(s.deps.LeaseGrace, lease.TTL/10)
}

// renewal is the leader's answer about a lease that lives.
type renewal struct {
	lease *state.Session
	left  time.Duration // counted from asked
	asked time.Time
}

// rest returns how long a client that is answered now may count on the lease: the leader counts the TTL from the
// question, and the client from the answer. inTime is false if the lease was renewed and less than a second is left of
// that, the least that an answer can say.
func (r renewal) rest(now time.Time, grace time.Duration) (left time.Duration, inTime bool) {
	took := now.Sub(r.asked)
	if r.left < r.lease.TTL { // not renewed: an operator took a role from it
		return max(0, r.left-took), true
	}
	left = r.left - max(0, took-grace)
	return left, left >= time.Second
}

// holdInTime holds a lease that was renewed, and returns the rest of the renewal, 0 if the lease has ended. The first
// hold asks the leader, and renews nothing.
func (l *leaseService) holdInTime(
	ctx context.Context, r renewal, held *heldLeases,
) (left time.Duration, inTime bool, err error) {
	grace := l.s.graceOf(r.lease)
	if left, inTime = r.rest(time.Now(), grace); !inTime || left == 0 {
		return left, inTime, nil
	}
	err = held.hold(ctx, callOf(ctx), l.s.deps.Node.View(), r.lease)
	switch {
	case cluster.IsCode(err, cluster.CodeSessionEnded):
		return 0, true, nil
	case err != nil:
		return 0, false, err
	}
	left, inTime = r.rest(time.Now(), grace)
	return left, inTime, nil
}

// mostTries is how often a lease is renewed, or granted, for one answer.
const mostTries = 3

// errTooLate is the answer when the leader's answers come so late that they say nothing about a lease any more. The
// client does not know then whether its lease lives.
var errTooLate = rpctypes.ErrGRPCTimeout

// renewInTime renews a lease, holds it, and returns how long it has left, 0 if it has ended. It renews again if that
// took so long that less than a second is left.
func (l *leaseService) renewInTime(
	ctx context.Context, lease *state.Session, held *heldLeases,
) (left time.Duration, err error) {
	for range mostTries {
		asked := time.Now()
		answer, err := callOf(ctx).RenewLeases(ctx, []*state.Session{lease})
		if err != nil || answer[0] == 0 {
			return 0, err
		}
		left, inTime, err := l.holdInTime(ctx, renewal{lease, answer[0], asked}, held)
		if err != nil || inTime {
			return left, err
		}
	}
	return 0, errTooLate
}

// grantInTime returns what is left of a lease that was granted, 0 if it has ended. It renews the lease if the grant
// took longer than the grace.
func (l *leaseService) grantInTime(ctx context.Context, r renewal) (left time.Duration, err error) {
	if left, _ := r.rest(time.Now(), l.s.graceOf(r.lease)); left == r.left {
		return left, nil
	}
	if left, err = l.renewInTime(ctx, r.lease, &heldLeases{}); err != nil {
		if left, inTime := r.rest(time.Now(), l.s.graceOf(r.lease)); inTime {
			return left, nil
		}
	}
	return left, err
}
