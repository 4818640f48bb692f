package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/cluster"
	"northstar/state"
)

// slowHold is a call that ties a lease to its connection slowly. It notes when it has renewed a lease last.
type slowHold struct {
	fakeCall
	hold     time.Duration
	answer   time.Duration // to a renewal of a lease that is not renewed
	end      time.Time     // of a lease that is not renewed; zero: leases are renewed
	renewals []time.Time
}

func (c *slowHold) RenewLeases(ctx context.Context, leases []*state.Session) ([]time.Duration, error) {
	c.renewals = append(c.renewals, time.Now())
	if c.end.IsZero() {
		return c.fakeCall.RenewLeases(ctx, leases)
	}
	left := max(0, time.Until(c.end))
	time.Sleep(c.answer)
	return []time.Duration{left}, nil
}

func (c *slowHold) HoldLease(context.Context, string, time.Duration) (func(bool), error) {
	time.Sleep(c.hold)
	if !c.end.IsZero() && time.Until(c.end) <= 0 {
		return nil, cluster.Errorf(cluster.CodeSessionEnded, "it has ended")
	}
	return func(bool) {}, nil
}

// TestLateHold: the first keep-alive of a stream ties the lease to its connection, which asks the leader once more and
// renews nothing. An answer after that promises no more than the last renewal has given.
func TestLateHold(t *testing.T) {
	t.Parallel()
	const grace = 500 * time.Millisecond
	for name, c := range map[string]struct {
		ttl      int64
		hold     time.Duration
		left     time.Duration // of a lease that is not renewed; 0: it is
		answer   time.Duration // to that renewal
		renewals int
		want     int64
	}{
		"in time":             {1, 400 * time.Millisecond, 0, 0, 1, 1},
		"late":                {1, 1300 * time.Millisecond, 0, 0, 2, 1},
		"late, of a revoked":  {5, 1300 * time.Millisecond, 4200 * time.Millisecond, 0, 1, 2},
		"its end comes first": {5, 1300 * time.Millisecond, 2200 * time.Millisecond, 0, 1, 0},
		"ends before a hold":  {5, 0, 200 * time.Millisecond, 300 * time.Millisecond, 1, 0},
		"ends with the hold":  {5, 2 * time.Millisecond, 300 * time.Millisecond, 299 * time.Millisecond, 1, 0},
	} {
		keepAlive := map[string]func(*leaseService, *renewals, *heldLeases) error{
			"in a batch": func(l *leaseService, stream *renewals, held *heldLeases) error {
				return l.renewAll(stream.ctx, stream, []int64{7}, held)
			},
			"alone": func(l *leaseService, stream *renewals, held *heldLeases) error {
				out, err := l.renew(stream.ctx, 7, held)
				stream.answer(out)
				return err
			},
		}
		for how, renew := range keepAlive {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					n := newFakeNode(t)
					s := New(testDeps(n))
					defer s.grpc.Stop()
					n.apply(t, state.Command{
						Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: c.ttl},
					})
					call := &slowHold{fakeCall: fakeCall{t.Context(), n}, hold: c.hold, answer: c.answer}
					if c.left > 0 {
						call.end = time.Now().Add(c.left)
					}
					answers := 0
					stream := &renewals{ctx: context.WithValue(t.Context(), callKey{}, Call(call))}
					stream.answer = func(out *pb.LeaseKeepAliveResponse) {
						answers++
						late := time.Since(call.renewals[len(call.renewals)-1])
						if out.TTL != c.want || out.TTL == c.ttl && late > grace {
							t.Errorf("TTL %d, want %d, %v after the renewal", out.TTL, c.want, late)
						}
					}
					held := &heldLeases{conn: &liveConn{}, detach: map[string]func(bool){}, most: leastHeld}
					if err := renew(&leaseService{s: s}, stream, held); err != nil {
						t.Fatal(err)
					}
					if answers != 1 || len(call.renewals) != c.renewals || len(held.detach) != 1 && c.answer == 0 {
						t.Errorf("%d answers, %d leases held, %d renewals, want %d", answers, len(held.detach),
							len(call.renewals), c.renewals)
					}
				})
			})
		}
	}
}
