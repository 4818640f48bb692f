package etcd

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/state"
)

// slowCall is a call whose first answers about leases take long.
type slowCall struct {
	fakeCall
	grants  time.Duration // of a grant
	renewal []time.Duration
	renewed int
}

func (c *slowCall) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	r, err := c.fakeCall.Propose(ctx, cmd)
	time.Sleep(c.grants)
	return r, err
}

func (c *slowCall) RenewLeases(ctx context.Context, leases []*state.Session) ([]time.Duration, error) {
	if c.renewed < len(c.renewal) {
		time.Sleep(c.renewal[c.renewed])
	}
	c.renewed++
	return c.fakeCall.RenewLeases(ctx, leases)
}

// TestLateRenewal: the leader counts a TTL from the question, and the client from the answer. An answer that took
// longer than the grace of the lease has so much less. If less than a second were left, the lease is renewed again. So
// is one whose grant took longer than the grace.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		l := &leaseService{s: s}
		for _, c := range []struct {
			ttl   int64
			grant time.Duration
			renew []time.Duration
			want  int // renewals
			left  int64
			tries int // of a renewal whose first answers take 2 s
		}{
			{10, 900 * time.Millisecond, nil, 0, 9, 1},
			{10, 1100 * time.Millisecond, nil, 1, 9, 1},
			{1, 600 * time.Millisecond, []time.Duration{600 * time.Millisecond}, 2, 1, 3},
		} {
			call := &slowCall{fakeCall: fakeCall{t.Context(), n}, grants: c.grant, renewal: c.renew}
			ctx := context.WithValue(t.Context(), callKey{}, Call(call))
			granted, err := l.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: c.ttl})
			if err != nil || call.renewed != c.want || granted.TTL != c.ttl {
				t.Errorf("a grant that took %v: %v after %d renewals, %v", c.grant, granted, call.renewed, err)
			}
			call.renewal, call.renewed = []time.Duration{2 * time.Second, 2 * time.Second}, 0
			out, err := l.renew(ctx, granted.ID, &heldLeases{})
			if err != nil || out.TTL != c.left || call.renewed != c.tries {
				t.Errorf("a slow renewal: TTL %d after %d, %v", out.TTL, call.renewed, err)
			}
		}
	})
}

// distantCall is a call at a node that is far from the leader: all its answers about leases take as long.
type distantCall struct {
	fakeCall
	takes time.Duration
	asked []time.Time // grants and renewals
}

func (c *distantCall) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	c.asked = append(c.asked, time.Now())
	time.Sleep(c.takes)
	return c.fakeCall.Propose(ctx, cmd)
}

func (c *distantCall) RenewLeases(ctx context.Context, leases []*state.Session) ([]time.Duration, error) {
	if c.asked = append(c.asked, time.Now()); len(c.asked) > 20 {
		return nil, errors.New("renewed without end")
	}
	time.Sleep(c.takes)
	return c.fakeCall.RenewLeases(ctx, leases)
}

// TestLeasesOfADistantNode: calls about leases end also where all answers of the leader are late, and none promises
// more than the leader keeps by etcd.lease-grace.
func TestLeasesOfADistantNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grace time.Duration
		ttl   int64
		takes time.Duration
		want  int64 // 0: errTooLate
		asked int   // by a keep-alive
	}{
		"raised":                    {2 * time.Second, 5, 1500 * time.Millisecond, 5, 1},
		"raised, the shortest TTL":  {2 * time.Second, 1, 1500 * time.Millisecond, 1, 1},
		"default":                   {500 * time.Millisecond, 5, 1500 * time.Millisecond, 4, 1},
		"default, the shortest TTL": {500 * time.Millisecond, 1, 600 * time.Millisecond, 0, mostTries},
		"lowered":                   {0, 10, 900 * time.Millisecond, 10, 1},
		"lowered, the shortest TTL": {0, 1, 200 * time.Millisecond, 0, mostTries},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newFakeNode(t)
				d := testDeps(n)
				d.LeaseGrace = c.grace
				s := New(d)
				defer s.grpc.Stop()
				call := &distantCall{fakeCall: fakeCall{t.Context(), n}, takes: c.takes}
				ctx := context.WithValue(t.Context(), callKey{}, Call(call))
				check := func(what string, ttl int64, err error) {
					t.Helper()
					late := time.Since(call.asked[len(call.asked)-1])
					asked := time.Duration(c.ttl) * time.Second
					kept := asked + s.graceOf(&state.Session{TTL: asked})
					switch {
					case c.want == 0 && !errors.Is(err, errTooLate), c.want > 0 && err != nil, ttl != c.want:
						t.Errorf("%s: TTL %d, want %d, %v", what, ttl, c.want, err)
					case late+time.Duration(ttl)*time.Second > kept:
						t.Errorf("%s: TTL %d after %v is more than %v", what, ttl, late, kept)
					}
				}
				l := &leaseService{s: s}
				granted, err := l.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: c.ttl})
				check("a grant", granted.GetTTL(), err)

				call.asked = nil
				var ttl int64
				stream := &renewals{ctx: ctx, answer: func(out *pb.LeaseKeepAliveResponse) { ttl = out.TTL }}
				err = l.renewAll(ctx, stream, []int64{7}, &heldLeases{})
				check("a batch", ttl, err)

				call.asked = nil
				out, err := l.renew(ctx, 7, &heldLeases{})
				check("a keep-alive", out.TTL, err)
				if len(call.asked) != c.asked {
					t.Errorf("a keep-alive: %d renewals, want %d", len(call.asked), c.asked)
				}
			})
		})
	}
}

// slowReads is a call whose read index takes a second.
type slowReads struct{ slowCall }

func (c *slowReads) ReadIndex(context.Context) error {
	time.Sleep(time.Second)
	return nil
}

// TestLateAnswerInABatch: the answer about a lease also waits for those before it in its batch.
func TestLateAnswerInABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: 1}})
		call := &slowReads{slowCall{fakeCall: fakeCall{t.Context(), n}}}
		ctx := context.WithValue(t.Context(), callKey{}, Call(call))
		var ttls []int64
		stream := &renewals{ctx: ctx, answer: func(out *pb.LeaseKeepAliveResponse) { ttls = append(ttls, out.TTL) }}
		batch := []int64{5, 7}
		if err := (&leaseService{s: s}).renewAll(ctx, stream, batch, &heldLeases{}); err != nil {
			t.Fatal(err)
		}
		if len(ttls) != 2 || ttls[0] != 0 || ttls[1] != 1 || call.renewed != 2 {
			t.Errorf("TTLs %v after %d renewals, want the live lease renewed again", ttls, call.renewed)
		}
	})
}

// revokedCall is a call for a lease that is not renewed any more. Its answers take long.
type revokedCall struct {
	fakeCall
	end time.Time
}

func (c *revokedCall) RenewLeases(_ context.Context, leases []*state.Session) ([]time.Duration, error) {
	time.Sleep(300 * time.Millisecond)
	left := max(0, time.Until(c.end))
	time.Sleep(900 * time.Millisecond)
	return slices.Repeat([]time.Duration{left}, len(leases)), nil
}

// TestKeepAlive_OfARevokedLease: a client counts the TTL of an answer from then on, and not beyond the end of a lease
// that is not renewed.
func TestKeepAlive_OfARevokedLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newFakeNode(t)
		s := New(testDeps(n))
		defer s.grpc.Stop()
		n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: 10}})
		call := &revokedCall{fakeCall{t.Context(), n}, time.Now().Add(9500 * time.Millisecond)}
		ctx := context.WithValue(t.Context(), callKey{}, Call(call))
		var ttls []int64
		stream := &renewals{ctx: ctx, answer: func(out *pb.LeaseKeepAliveResponse) {
			ttls = append(ttls, out.TTL)
			if until := time.Now().Add(time.Duration(out.TTL) * time.Second); out.TTL > 0 && until.After(call.end) {
				t.Errorf("TTL %d lasts %v longer than the lease", out.TTL, until.Sub(call.end))
			}
		}}
		const rounds = 9
		for range rounds {
			if err := (&leaseService{s: s}).renewAll(ctx, stream, []int64{7, 7}, &heldLeases{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(ttls) != 2*rounds || ttls[0] == 0 || ttls[len(ttls)-1] != 0 {
			t.Errorf("TTLs %v, want fewer and fewer, then 0", ttls)
		}
	})
}

// laggingCall is a call at a node that applies what the cluster has acknowledged only when it asks for the read index.
type laggingCall struct {
	fakeCall
	behind func() // applies it
}

func (c *laggingCall) ReadIndex(context.Context) error {
	c.behind()
	return nil
}

func (c *laggingCall) RenewLeases(_ context.Context, leases []*state.Session) (left []time.Duration, err error) {
	for _, lease := range leases {
		if lease.Owner == "new" { // the leader knows
			left = append(left, lease.TTL)
		} else {
			left = append(left, 0)
		}
	}
	return left, nil
}

// TestRenewalOfReusedNumber: a node that still has the lease which had a number before renews the one that has it now.
func TestRenewalOfReusedNumber(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	grant := func(owner string) state.Command {
		return state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 5, TTL: 10, Owner: owner}}
	}
	n.apply(t, grant("old"))
	call := &laggingCall{fakeCall: fakeCall{t.Context(), n}, behind: func() {
		n.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 5}}, grant("new"))
	}}
	ctx := context.WithValue(t.Context(), callKey{}, Call(call))
	out, err := (&leaseService{s: s}).renew(ctx, 5, &heldLeases{})
	if err != nil || out.TTL != 10 {
		t.Errorf("TTL %d, %v", out.TTL, err)
	}
	call.behind = func() {
		n.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 5}}, grant("gone"))
	}
	n.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 5}}, grant("old"))
	if out, err := (&leaseService{s: s}).renew(ctx, 5, &heldLeases{}); err != nil || out.TTL != 0 {
		t.Errorf("of a lease that has ended: TTL %d, %v", out.TTL, err)
	}
}

// holdingCall is a call that notes which leases it holds.
type holdingCall struct {
	fakeCall
	held []string
}

func (c *holdingCall) HoldLease(_ context.Context, lease string, _ time.Duration) (func(bool), error) {
	c.held = append(c.held, lease)
	return func(bool) {}, nil
}

// TestHoldOfReusedNumber: a stream holds each lease once, also two that had one number after each other.
func TestHoldOfReusedNumber(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	call := &holdingCall{fakeCall: fakeCall{t.Context(), n}}
	held := &heldLeases{conn: &liveConn{}, detach: map[string]func(bool){}}
	for i, owner := range []string{"first", "first", "second"} {
		if i != 1 {
			n.propose(state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: 5}})
			n.apply(t, state.Command{
				Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 5, TTL: 10, Owner: owner},
			})
		}
		lease, _ := n.View().Lease(5)
		if err := held.hold(t.Context(), call, n.View(), lease); err != nil {
			t.Fatal(err)
		}
	}
	if len(call.held) != 2 || call.held[0] == call.held[1] {
		t.Errorf("it holds %q", call.held)
	}
}
