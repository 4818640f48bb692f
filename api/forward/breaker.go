package forward

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// After breakerThreshold failures in a row, a node gets no requests until it has answered a probe. The first request
// that comes breakerOpenDuration after the last failure triggers the probe. No caller waits for a probe.
const (
	breakerThreshold    = 2
	breakerOpenDuration = time.Second
	maxBreakers         = 1024 // addresses remembered; members may change their addresses
)

// errCircuitOpen is the error of a request that was not sent.
var errCircuitOpen = errors.New("it has not answered lately and is not waited for")

// circuitBreakers holds one circuit breaker for each address. Safe for concurrent use.
type circuitBreakers struct {
	mu     sync.Mutex
	at     map[string]*gobreaker.TwoStepCircuitBreaker[any]
	probes sync.WaitGroup // added to under mu, while ctx lasts
	ctx    context.Context
	cancel context.CancelFunc
}

func newCircuitBreakers() *circuitBreakers {
	b := &circuitBreakers{at: map[string]*gobreaker.TwoStepCircuitBreaker[any]{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// close ends the probes.
func (b *circuitBreakers) close() {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.probes.Wait()
}

// probe runs f in the background and passes its error to done.
func (b *circuitBreakers) probe(f func(context.Context) error, done func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		done(context.Canceled)
		return
	}
	b.probes.Go(func() { done(f(b.ctx)) })
}

func (b *circuitBreakers) of(addr string) *gobreaker.TwoStepCircuitBreaker[any] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := b.at[addr]; at != nil {
		return at
	}
	if len(b.at) >= maxBreakers {
		clear(b.at)
	}
	at := gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:     breakerOpenDuration,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= breakerThreshold },
		// A caller's cancellation says nothing about the other node.
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
	b.at[addr] = at
	return at
}
