package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"northstar/api/apiv1"
)

// dialError marks an error from before a connection existed: the other node has not received the request.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// newTransport returns the transport to other nodes. It connects for as long as a request may be queued at most.
func newTransport(c Config) *http.Transport {
	connect := func(ctx context.Context, _, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*c.TimeoutMax)
		defer cancel()
		conn, err := c.Dial(ctx, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	t := &http.Transport{
		DialContext:            connect,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        90 * time.Second, // below the server's, so that this side closes first
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if c.ClientTLS == nil {
		return t
	}
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*c.TimeoutMax)
		defer cancel()
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		secured := tls.Client(conn, c.ClientTLS(addr))
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // the handshake's error is more specific
			return nil, &dialError{err}
		}
		return secured, nil
	}
	return t
}

// Caller is the client on whose behalf a request is sent. The zero Caller is this node itself.
type Caller struct {
	Identity      string // value of apiv1.HeaderIdentity
	Address       string
	Authorization string // set if nodes accept only tokens
}

// setIdentityHeaders names this node and the caller, whose token is sent only if no asserted identity is accepted.
func (f *Forwarder) setIdentityHeaders(h http.Header, c Caller) {
	h.Set(apiv1.HeaderForwardedBy, string(f.Self))
	switch {
	case f.ForwardToken:
		if c.Authorization != "" {
			h.Set("Authorization", c.Authorization)
		}
	case c.Identity != "":
		h.Set(apiv1.HeaderIdentity, c.Identity)
		h.Set(apiv1.HeaderCaller, c.Address)
	}
}

// Overhead is the part of a request's time that a forwarding node reserves for itself.
const Overhead = 100 * time.Millisecond

// setTimeoutHeader leaves the other node the time in which its response arrives before this node gives up.
func setTimeoutHeader(ctx context.Context, h http.Header) {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		left -= min(left/10, Overhead)
		h.Set(apiv1.HeaderTimeout, strconv.FormatInt(max(1, (left+time.Millisecond-1).Milliseconds()), 10))
	}
}

// PeerResponse is another node's response, read completely.
type PeerResponse struct {
	Status int
	Header http.Header
	Body   []byte
}

// Get sends a GET to another node on behalf of c. The response may have limit bytes. The error means that there was
// no response; an open circuit breaker returns errCircuitOpen immediately.
func (f *Forwarder) Get(ctx context.Context, c Caller, addr, path string, limit int64) (PeerResponse, error) {
	breaker := f.breakers.of(addr)
	state := breaker.State()
	done, err := breaker.Allow()
	switch {
	case err == nil && state == gobreaker.StateClosed:
		resp, err := f.get(ctx, c, addr, path, limit)
		done(err)
		return resp, err
	case err == nil:
		f.breakers.probe(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*f.TimeoutMax)
			defer cancel()
			_, err := f.get(ctx, Caller{}, addr, apiv1.PathLive, smallResponse)
			return err
		}, done)
	}
	return PeerResponse{}, fmt.Errorf("%s: %w", addr, errCircuitOpen)
}

func (f *Forwarder) get(ctx context.Context, c Caller, addr, path string, limit int64) (PeerResponse, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Scheme()+"://"+addr+path, nil)
	if err != nil {
		return PeerResponse{}, err
	}
	return f.exchange(req, c, limit)
}

// Post sends in as JSON to another node on behalf of c.
func (f *Forwarder) Post(ctx context.Context, c Caller, addr, path string, in any) (PeerResponse, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return PeerResponse{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.Scheme()+"://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return PeerResponse{}, err
	}
	req.Header.Set("Content-Type", apiv1.TypeJSON)
	setTimeoutHeader(ctx, req.Header)
	return f.exchange(req, c, 1<<20)
}

func (f *Forwarder) exchange(req *http.Request, c Caller, limit int64) (PeerResponse, error) {
	f.setIdentityHeaders(req.Header, c)
	resp, err := f.transport.Load().RoundTrip(req)
	if err != nil {
		return PeerResponse{}, err
	}
	defer discardBody(resp.Body)
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return PeerResponse{}, fmt.Errorf("%s closed the connection during the response: %w", req.URL.Host, err)
	}
	return PeerResponse{resp.StatusCode, resp.Header, body}, nil
}

// discardBody reads the small rest of a response so that its connection can be reused.
func discardBody(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, smallResponse)
	_ = body.Close() // the response is complete
}

// After breakerThreshold failures in a row, a node gets no requests until it has answered a probe. The first request
// that comes breakerOpenDuration after the last failure triggers the probe. No caller waits for a probe.
const (
	breakerThreshold    = 2
	breakerOpenDuration = time.Second
	maxBreakers         = 1024 // addresses remembered; members may change their addresses
)

var errCircuitOpen = errors.New("it has not answered recently and is not waited for")

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
