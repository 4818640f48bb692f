package etcd

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Drain sends clients elsewhere: gRPC clients get GOAWAY, and streams end. It returns when the calls in progress
// have ended, or ctx has. Drain waits for a call that has sent its message, and for its answer: to close the call would
// leave the outcome of a write unknown. Calls whose message does not come are closed when no other was answered for
// drainQuiet.
func (s *Server) Drain(ctx context.Context) {
	s.stop()
	s.health.Shutdown()
	s.opening.closeAll() // for up to headerTimeout, gRPC waits for their first frames before it does anything
	done := make(chan struct{})
	var calls sync.WaitGroup
	calls.Go(func() { _ = s.http.Shutdown(ctx) })
	calls.Go(s.grpc.GracefulStop)
	go func() {
		defer close(done)
		calls.Wait()
	}()
	const looks = 10 // that must find no call: a pause of the process is no time without one
	tick := time.NewTicker(s.drainQuiet / looks)
	defer tick.Stop()
	begun := time.Now()
	for quiet := 0; quiet < looks && ctx.Err() == nil; {
		select {
		case <-done:
			return
		case <-ctx.Done():
		case <-tick.C:
			if quiet++; s.answering.Load() == 0 {
				continue
			}
			if quiet = 0; time.Since(begun) > s.drainQuiet {
				collectGarbage(s.drainQuiet) // answers whose clients are gone do not count any longer
			}
		}
	}
	_ = s.http.Close()
	s.grpc.Stop()
	<-done
}

// untilStopped returns a context that also ends when the server stops. release must be called.
func (s *Server) untilStopped(ctx context.Context) (_ context.Context, release func()) {
	ctx, end := context.WithCancelCause(ctx)
	undo := context.AfterFunc(s.stopping, func() { end(rpctypes.ErrGRPCStopped) })
	return ctx, func() { undo(); end(nil) }
}
