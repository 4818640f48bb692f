package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"northstar/state"
)

// lateCall is a call whose renewals are answered only when the test says so.
type lateCall struct {
	fakeCall
	release <-chan struct{}
}

func (c lateCall) RenewLeases(_ context.Context, leases []*state.Session) ([]time.Duration, error) {
	<-c.release
	return slices.Repeat([]time.Duration{leases[0].TTL}, len(leases)), nil
}

// renewals is a stream of keep-alives in memory.
type renewals struct {
	grpc.ServerStream
	ctx    context.Context
	recv   func() (*pb.LeaseKeepAliveRequest, error)
	answer func(*pb.LeaseKeepAliveResponse)
}

func (r *renewals) Context() context.Context                  { return r.ctx }
func (r *renewals) Recv() (*pb.LeaseKeepAliveRequest, error)  { return r.recv() }
func (r *renewals) Send(out *pb.LeaseKeepAliveResponse) error { r.answer(out); return r.ctx.Err() }

// TestKeepAlive_NothingIsSentAfterItsEnd: the leader's answer to a renewal may come when the client is gone or the
// server stops. After the handler's return the response belongs to net/http, and a message there ends the process.
func TestKeepAlive_NothingIsSentAfterItsEnd(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newFakeNode(t)
			n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 7, TTL: 10}})
			s := New(testDeps(n))
			defer s.grpc.Stop()
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			release, returned, asked := make(chan struct{}), atomic.Bool{}, false
			stream := &renewals{
				ctx: context.WithValue(ctx, callKey{}, Call(lateCall{fakeCall{ctx, n}, release})),
				recv: func() (*pb.LeaseKeepAliveRequest, error) {
					if asked {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					asked = true
					return &pb.LeaseKeepAliveRequest{ID: 7}, nil
				},
				answer: func(*pb.LeaseKeepAliveResponse) {
					if returned.Load() {
						t.Error("a message after the handler's return")
					}
				},
			}
			done := make(chan error, 1)
			go func() {
				err := (&leaseService{s: s}).LeaseKeepAlive(stream)
				returned.Store(true)
				done <- err
			}()
			synctest.Wait()
			want := context.Canceled
			if stops {
				s.stop()
				want = rpctypes.ErrGRPCStopped
			} else {
				gone()
			}
			synctest.Wait() // the answer is not there yet
			close(release)
			synctest.Wait()
			if err := <-done; !errors.Is(err, want) {
				t.Errorf("the stream ends with %v", err)
			}
		})
	}
}

// TestHTTPStream_End: a stream over HTTP sends nothing after its end.
func TestHTTPStream_End(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{nil, rpctypes.ErrGRPCStopped} {
		w := httptest.NewRecorder()
		h := &httpStream{
			ctx: t.Context(), w: w, control: http.NewResponseController(w), in: json.NewDecoder(strings.NewReader("")),
		}
		if err := h.SendMsg(&pb.LeaseKeepAliveResponse{ID: 1}); err != nil {
			t.Fatal(err)
		}
		h.end(failure)
		before := w.Body.String()
		if strings.Contains(before, `"error"`) != (failure != nil) {
			t.Errorf("%v: %s", failure, before)
		}
		if err := h.SendMsg(&pb.LeaseKeepAliveResponse{ID: 2}); status.Code(err) != codes.Canceled {
			t.Errorf("sent after the end: %v", err)
		}
		if after := w.Body.String(); after != before {
			t.Errorf("written after the end: %s", after)
		}
	}
}

// TestReceive: a panic while a message is decoded ends the stream, and not the process. The error comes after the
// messages.
func TestReceive(t *testing.T) {
	t.Parallel()
	s := New(testDeps(newFakeNode(t)))
	defer s.grpc.Stop()
	for _, last := range []func() error{
		func() error { return io.EOF },
		func() error { panic("broken") },
	} {
		count := 0
		messages, failed := receive(t.Context(), s, "method", 0, func() (int, error) {
			if count++; count > 3 {
				return 0, last()
			}
			return count, nil
		})
		for want := range 3 {
			if got := <-messages; got != want+1 {
				t.Errorf("message %d instead of %d", got, want+1)
			}
		}
		if err := <-failed; !errors.Is(err, io.EOF) && status.Code(err) != codes.Internal {
			t.Errorf("ended with %v", err)
		}
	}
}

// countingCall is a call whose renewals take a millisecond.
type countingCall struct {
	fakeCall
	rounds atomic.Int64
}

func (c *countingCall) RenewLeases(ctx context.Context, leases []*state.Session) ([]time.Duration, error) {
	c.rounds.Add(1)
	time.Sleep(time.Millisecond)
	return c.fakeCall.RenewLeases(ctx, leases)
}

// TestKeepAlive_RenewedTogether: keep-alives that wait share a proof of leadership, and are answered in their order,
// those before the client's end, too.
func TestKeepAlive_RenewedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all, unknown = 1000, 500
		n := newFakeNode(t)
		for id := range int64(all) {
			if id != unknown {
				grant := &state.LeaseGrant{ID: id + 1, TTL: 10}
				n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: grant})
			}
		}
		s := New(testDeps(n))
		defer s.grpc.Stop()
		call := &countingCall{fakeCall: fakeCall{t.Context(), n}}
		var asked, answered int64
		stream := &renewals{
			ctx: context.WithValue(t.Context(), callKey{}, Call(call)),
			recv: func() (*pb.LeaseKeepAliveRequest, error) {
				if asked == all {
					return nil, io.EOF
				}
				asked++
				return &pb.LeaseKeepAliveRequest{ID: asked}, nil
			},
			answer: func(out *pb.LeaseKeepAliveResponse) {
				answered++
				want := int64(10)
				if answered == unknown+1 {
					want = 0
				}
				if out.ID != answered || out.TTL != want {
					t.Errorf("answer %d is of lease %d, with TTL %d", answered, out.ID, out.TTL)
				}
			},
		}
		if err := (&leaseService{s: s}).LeaseKeepAlive(stream); err != nil {
			t.Error(err)
		}
		if rounds := call.rounds.Load(); answered != all || rounds > all/maxRenewals+2 {
			t.Errorf("%d answers after %d rounds", answered, rounds)
		}
	})
}

// placedCall counts the leases that are held.
type placedCall struct {
	fakeCall
	held *int
}

func (c placedCall) HoldLease(context.Context, string, time.Duration) (func(bool), error) {
	*c.held++
	return func(bool) { *c.held-- }, nil
}

// TestHeldLeases_Ended: a stream lets go of leases that have ended, and of no others.
func TestHeldLeases_Ended(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	held := 0
	call := placedCall{fakeCall{t.Context(), n}, &held}
	h := &heldLeases{conn: new(liveConn), detach: map[string]func(bool){}, most: leastHeld}
	for id := range int64(10 * leastHeld) {
		n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id + 1, TTL: 60}})
		lease, _ := n.View().Lease(id + 1)
		if err := h.hold(t.Context(), call, n.View(), lease); err != nil {
			t.Fatal(err)
		}
		if id >= leastHeld/2 {
			n.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: id + 1}})
		}
		if held != len(h.detach) || held > leastHeld {
			t.Fatalf("%d leases are held, as the stream knows %d", held, len(h.detach))
		}
	}
	if held < leastHeld/2 {
		t.Errorf("%d leases are held, of %d that live", held, leastHeld/2)
	}
	h.release()
	if held != 0 {
		t.Errorf("%d leases are held after the stream", held)
	}
}

// TestHeldLeases_EndedOnAnIdleStream: a stream that renews nothing any more lets go of the leases that have ended.
func TestHeldLeases_EndedOnAnIdleStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all, ended = 20, 15
		n := newFakeNode(t)
		for id := range int64(all) {
			n.apply(t, state.Command{Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: id + 1, TTL: 60}})
		}
		s := New(testDeps(n))
		defer s.grpc.Stop()
		ctx, gone := context.WithCancel(t.Context())
		ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: &connInfo{live: new(liveConn)}})
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(metadataAttach, "1"))
		held, asked := 0, int64(0)
		stream := &renewals{
			ctx: context.WithValue(ctx, callKey{}, Call(placedCall{fakeCall{ctx, n}, &held})),
			recv: func() (*pb.LeaseKeepAliveRequest, error) {
				if asked == all {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				asked++
				return &pb.LeaseKeepAliveRequest{ID: asked}, nil
			},
			answer: func(*pb.LeaseKeepAliveResponse) {},
		}
		done := make(chan error, 1)
		go func() { done <- (&leaseService{s: s}).LeaseKeepAlive(stream) }()
		synctest.Wait()
		if held != all {
			t.Errorf("%d leases are held of %d", held, all)
		}
		for id := range int64(ended) {
			n.apply(t, state.Command{Kind: state.KindLeaseRevoke, LeaseRevoke: &state.LeaseRevoke{ID: id + 1}})
		}
		time.Sleep(2 * heldInterval)
		synctest.Wait()
		if held != all-ended {
			t.Errorf("%d leases are held of %d that live", held, all-ended)
		}
		gone()
		<-done
		if held != 0 {
			t.Errorf("%d leases are held after the stream", held)
		}
	})
}
