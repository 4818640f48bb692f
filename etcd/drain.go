package etcd

import (
	"context"
	"sync"
	"time"
)

// Drain sends clients elsewhere: gRPC clients get GOAWAY, and streams end. It returns when the calls in progress
// have ended, or ctx has. Drain waits for a call that has sent its message: to close the call would leave the outcome
// of a write unknown. Calls whose message does not come are closed when no other was answered for drainQuiet.
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
	tick := time.NewTicker(s.drainQuiet / 10)
	defer tick.Stop()
	for last := time.Now(); time.Since(last) < s.drainQuiet && ctx.Err() == nil; {
		select {
		case <-done:
			return
		case <-ctx.Done():
		case <-tick.C:
			if s.answering.Load() > 0 {
				last = time.Now()
			}
		}
	}
	_ = s.http.Close()
	s.grpc.Stop()
	<-done
}
