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

// A node that failed failuresToBreak questions in a row, by not answering in
// time or at all, is not waited for until it has answered one that nobody
// waits for. That one is asked breakFor after the last failure, when somebody
// wants to know.
const (
	failuresToBreak = 2
	breakFor        = time.Second
	maxBreakers     = 1024 // addresses remembered; members change theirs now and then
)

// errBroken answers a question that was not asked: the node failed the last
// ones.
var errBroken = errors.New("it has not answered lately and is not waited for")

// breakers hold one circuit breaker for each address. Safe for concurrent use.
type breakers struct {
	mu     sync.Mutex
	at     map[string]*gobreaker.TwoStepCircuitBreaker[any]
	trying sync.WaitGroup // with nodes that had failed; added to under mu, while life lasts
	life   context.Context
	end    context.CancelFunc
}

func newBreakers() *breakers {
	b := &breakers{at: map[string]*gobreaker.TwoStepCircuitBreaker[any]{}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// close ends the tries under way.
func (b *breakers) close() {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	b.trying.Wait()
}

// try runs f, for which nobody waits, and tells done what came of it.
func (b *breakers) try(f func(context.Context) error, done func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		done(context.Canceled)
		return
	}
	b.trying.Go(func() { done(f(b.life)) })
}

func (b *breakers) of(addr string) *gobreaker.TwoStepCircuitBreaker[any] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := b.at[addr]; at != nil {
		return at
	}
	if len(b.at) >= maxBreakers {
		clear(b.at)
	}
	at := gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Timeout:     breakFor,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= failuresToBreak },
		// Who asked has gone: that says nothing about who was asked.
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
	b.at[addr] = at
	return at
}

// peerAnswer is another node's answer, read whole.
type peerAnswer struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a GET to another node, on behalf of c or, when that is nil, of this
// node. An answer may have limit bytes. The error says that there was none,
// errBroken at once.
func (f *forwarder) ask(ctx context.Context, c *call, addr, path string, limit int64) (peerAnswer, error) {
	breaker := f.breakers.of(addr)
	state := breaker.State()
	if state == gobreaker.StateOpen {
		return peerAnswer{}, fmt.Errorf("%s: %w", addr, errBroken)
	}
	done, err := breaker.Allow()
	if err != nil {
		return peerAnswer{}, fmt.Errorf("%s: %w", addr, errBroken)
	}
	if state == gobreaker.StateHalfOpen {
		f.breakers.try(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, f.patience)
			defer cancel()
			_, err := f.fetch(ctx, nil, addr, apiv1.PathLive, smallAnswer)
			return err
		}, done)
		return peerAnswer{}, fmt.Errorf("%s: %w", addr, errBroken)
	}
	answer, err := f.fetch(ctx, c, addr, path, limit)
	done(err)
	return answer, err
}

func (f *forwarder) fetch(ctx context.Context, c *call, addr, path string, limit int64) (peerAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.scheme+"://"+addr+path, nil)
	if err != nil {
		return peerAnswer{}, err
	}
	f.introduce(req.Header, c)
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return peerAnswer{}, err
	}
	defer drain(resp.Body)
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return peerAnswer{}, fmt.Errorf("%s broke off its answer: %w", addr, err)
	}
	return peerAnswer{resp.StatusCode, resp.Header, body}, nil
}
