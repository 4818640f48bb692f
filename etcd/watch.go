package etcd

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// watchService implements etcd's Watch service, from this node's history.
type watchService struct {
	pb.UnimplementedWatchServer
	s *Server
}

// Watch serves the watches of one stream until the client or this node ends it.
func (w *watchService) Watch(stream pb.Watch_WatchServer) error {
	if err := w.s.awaitCaughtUp(stream.Context()); err != nil {
		return err // a state that lacks entries of this node's own log would show old changes as new ones
	}
	ctx, end := context.WithCancel(stream.Context())
	defer end()
	requests, failed := receive(ctx, w.s, pb.Watch_Watch_FullMethodName, 0, stream.Recv)
	ws := newWatchStream(ctx, w.s, stream, callOf(ctx).Watches())
	defer ws.close()
	tick := time.NewTicker(jitter(w.s.deps.ProgressInterval))
	defer tick.Stop()
	for {
		more, err := ws.step()
		if err == nil {
			err = ws.awaitSent() // before it takes a request, which the connection's share has counted until then
		}
		if err != nil {
			return err
		}
		wake := ws.wake
		if more { // watches have more to send: take a request or a tick between, but do not wait
			wake = ready
		}
		select {
		case r := <-requests:
			err = ws.handle(r)
		case <-tick.C:
			err = ws.tick()
		case <-wake:
		case err = <-failed:
			switch {
			case errors.Is(err, io.EOF):
				err = nil // a client that sends no more goes on receiving
			case errors.Is(err, context.Canceled):
				err = rpctypes.ErrGRPCWatchCanceled
			}
		case <-w.s.stopping.Done():
			err = rpctypes.ErrGRPCStopped
		case <-ctx.Done():
			err = rpctypes.ErrGRPCWatchCanceled
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = ctx.Err()
			}
		}
		if err != nil {
			return err
		}
	}
}

// ready is a channel that can always be received from.
var ready = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// jitter returns a little more than d, so that the watches of many clients do not all notify together.
func jitter(d time.Duration) time.Duration { return d + rand.N(max(d/10, 1)) }
