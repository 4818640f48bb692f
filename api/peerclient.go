package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"northstar/api/apiv1"
)

// A node that failed breakerThreshold questions in a row, by not answering in
// time or at all, is not waited for until it has answered one that nobody
// waits for. That one is asked breakerOpenDuration after the last failure, when somebody
// wants to know.
const (
	breakerThreshold    = 2
	breakerOpenDuration = time.Second
	maxBreakers         = 1024 // addresses remembered; members change theirs now and then
)

// errCircuitOpen answers a question that was not asked: the node failed the last
// ones.
var errCircuitOpen = errors.New("it has not answered lately and is not waited for")

// circuitBreakers hold one circuit breaker for each address. Safe for concurrent use.
type circuitBreakers struct {
	mu        sync.Mutex
	byAddress map[string]*gobreaker.TwoStepCircuitBreaker[any]
	probes    sync.WaitGroup // with nodes that had failed; added to under mu, while life lasts
	ctx       context.Context
	cancel    context.CancelFunc
}

func newCircuitBreakers() *circuitBreakers {
	b := &circuitBreakers{byAddress: map[string]*gobreaker.TwoStepCircuitBreaker[any]{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// close ends the tries under way.
func (b *circuitBreakers) close() {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.probes.Wait()
}

// startProbe runs f, for which nobody waits, and tells done what came of it.
func (b *circuitBreakers) startProbe(f func(context.Context) error, done func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		done(context.Canceled)
		return
	}
	b.probes.Go(func() { done(f(b.ctx)) })
}

func (b *circuitBreakers) breaker(addr string) *gobreaker.TwoStepCircuitBreaker[any] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := b.byAddress[addr]; at != nil {
		return at
	}
	if len(b.byAddress) >= maxBreakers {
		clear(b.byAddress)
	}
	at := gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:     breakerOpenDuration,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= breakerThreshold },
		// Who asked has gone: that says nothing about who was asked.
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
	b.byAddress[addr] = at
	return at
}

// peerResponse is another node's answer, read whole.
type peerResponse struct {
	status int
	header http.Header
	body   []byte
}

// callLeader sends a GET to another node, on behalf of c or, when that is nil, of this
// node. An answer may have limit bytes. The error says that there was none,
// errCircuitOpen at once.
func (f *forwarder) ask(ctx context.Context, c *request, addr, path string, limit int64) (peerResponse, error) {
	breaker := f.breakers.breaker(addr)
	state := breaker.State()
	if state == gobreaker.StateOpen {
		return peerResponse{}, fmt.Errorf("%s: %w", addr, errCircuitOpen)
	}
	done, err := breaker.Allow()
	if err != nil {
		return peerResponse{}, fmt.Errorf("%s: %w", addr, errCircuitOpen)
	}
	if state == gobreaker.StateHalfOpen {
		f.breakers.startProbe(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, f.retryBudget)
			defer cancel()
			_, err := f.fetch(ctx, nil, addr, apiv1.PathLive, maxSmallResponse)
			return err
		}, done)
		return peerResponse{}, fmt.Errorf("%s: %w", addr, errCircuitOpen)
	}
	answer, err := f.fetch(ctx, c, addr, path, limit)
	done(err)
	return answer, err
}

func (f *forwarder) fetch(ctx context.Context, c *request, addr, path string, limit int64) (peerResponse, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.scheme+"://"+addr+path, nil)
	if err != nil {
		return peerResponse{}, err
	}
	f.setIdentityHeaders(req.Header, c)
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return peerResponse{}, err
	}
	defer discardBody(resp.Body)
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return peerResponse{}, fmt.Errorf("%s broke off its answer: %w", addr, err)
	}
	return peerResponse{resp.StatusCode, resp.Header, body}, nil
}
