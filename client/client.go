// Package client is the Go client of a NorthStar cluster: its leader, its keys and their changes, its members and
// its roles.
//
// One reachable node is enough to start: the client learns the other nodes from it. A call goes to the leader if
// the client knows it. Otherwise the call goes to any node, which forwards it, or holds it while there is no
// leader. The client does not wait for a dead or hung node: it sends the request to another node in time.
//
// The client retries only what is safe: reads, writes that certainly did not happen, and writes with an idempotency
// key. It generates such a key for each write, so that the cluster applies the write once however often it is sent.
// If the outcome of a write is unknown at the deadline, the error is ErrOutcomeUnknown, never a plain failure.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
)

// Defaults of Config.
const (
	DefaultTimeout      = 15 * time.Second
	DefaultHedgeAfter   = 150 * time.Millisecond
	DefaultConnsPerNode = 128
)

const (
	dialTimeout         = 2 * time.Second
	idleTimeout         = 90 * time.Second
	refreshInterval     = 10 * time.Second
	leaderCheckInterval = time.Second // minimum interval, after a response that was forwarded
	refreshTimeout      = 2 * time.Second
)

// Config configures a Client. Only Endpoints is required.
type Config struct {
	// Endpoints are the HTTP addresses of nodes, as host:port or URL. One reachable node is enough.
	Endpoints []string
	// TLS, if set, makes host:port mean https; see LoadTLS. With nil, the scheme is http; an endpoint that is an
	// https URL is verified with the system's certificates, and so are the nodes that the cluster names then.
	TLS *tls.Config
	// Token is sent as a bearer token if it is not empty.
	Token string
	// TokenFile, if set, is a file with the token. It is read at the start if Token is empty, and then about every
	// second while calls are made. A file without a token changes nothing.
	TokenFile string
	// Timeout bounds a call whose context has no deadline. 0: DefaultTimeout.
	Timeout time.Duration
	// HedgeAfter is how long an attempt may be silent before the client checks whether its node is hung or no
	// longer leads. 0: DefaultHedgeAfter.
	HedgeAfter time.Duration
	// ConnsPerNode bounds the connections to each node for calls. Further calls wait for a free connection. Watches,
	// attached sessions and campaigns that wait have connections of their own, and so have renewals and checks of nodes
	// while there are more calls. 0: DefaultConnsPerNode.
	ConnsPerNode int
	// UserAgent names the application in the servers' logs. "": northstar-client.
	UserAgent string
	// Dial opens connections. Nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client talks to one cluster. It is safe for concurrent use. Close ends it.
type Client struct {
	cfg      Config
	token    *bearer
	pool     *http.Transport
	longPool *http.Transport // of requests that last: they must not keep renewals waiting
	attempts atomic.Int64    // in progress, of requests that do not last
	nodes    *nodes
	finder   *leaderFinder
	renewer  *renewer

	ctx  context.Context // cancelled by Close
	stop context.CancelCauseFunc

	mu      sync.Mutex // guards closed against wg.Add
	closed  bool
	running sync.WaitGroup

	refreshing      atomic.Bool
	refreshedAt     atomicTime // time of the last refresh
	leaderCheckedAt atomicTime // time of the last leader search after a forwarded response

	senders senders // of numbered writes

	followingLeader atomic.Bool // followLeader runs
	calledAt        atomicTime  // time of the last call
}

// New checks the configuration. It sends nothing; the first call does.
func New(cfg Config) (*Client, error) {
	var errs []error
	limits := map[string]int64{
		"Timeout": int64(cfg.Timeout), "HedgeAfter": int64(cfg.HedgeAfter), "ConnsPerNode": int64(cfg.ConnsPerNode),
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if limits[name] < 0 {
			errs = append(errs, fmt.Errorf("%s: must not be negative", name))
		}
	}
	token, err := newBearer(cfg.Token, cfg.TokenFile)
	if err != nil {
		errs = append(errs, err)
	}
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	known, err := newNodes(cfg.Endpoints, scheme)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.HedgeAfter = cmp.Or(cfg.HedgeAfter, DefaultHedgeAfter)
	cfg.ConnsPerNode = cmp.Or(cfg.ConnsPerNode, DefaultConnsPerNode)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "northstar-client")
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	c := &Client{cfg: cfg, token: token, nodes: known, pool: newPool(cfg), longPool: newPool(cfg)}
	c.pool.MaxConnsPerHost = cfg.ConnsPerNode
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.finder = &leaderFinder{
		c: c, results: map[string]leaderReport{}, suspects: map[string]time.Time{}, probing: map[string]time.Time{},
		changed: make(chan struct{}),
	}
	c.renewer = &renewer{c: c, wake: make(chan struct{}, 1), entries: map[*Session]*renewalEntry{}}
	return c, nil
}

// newPool returns a pool of connections without a bound for those in use. It speaks HTTP/1.1, so that a cancelled
// attempt closes only its own connection. Each attempt has its own deadline.
func newPool(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext: cfg.Dial, DialTLSContext: dialTLS(cfg), TLSClientConfig: cfg.TLS,
		TLSHandshakeTimeout: dialTimeout, DisableCompression: true,
		MaxIdleConnsPerHost: cfg.ConnsPerNode, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: 64 << 10,
	}
}

// Close ends all calls, watches and connections of the client, and returns when all its goroutines have ended.
// Calls in progress fail with ErrClosed or ErrOutcomeUnknown. Close may be called more than once.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop(ErrClosed)
	c.running.Wait()
	c.closeIdleConnections()
}

func (c *Client) closeIdleConnections() {
	c.pool.CloseIdleConnections()
	c.longPool.CloseIdleConnections()
}

// spawn runs f in a goroutine that Close waits for. It returns false, without running f, if the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(f)
	return true
}

// callContext bounds a call by its own deadline (or the client's default) and by Close.
func (c *Client) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	cancelTimeout := func() {}
	if _, has := ctx.Deadline(); !has {
		ctx, cancelTimeout = context.WithTimeout(ctx, c.cfg.Timeout)
	}
	ctx, cancel := c.closeContext(ctx)
	return ctx, func() { cancel(nil); cancelTimeout() }
}

// closeContext returns a context that Close cancels with the cause ErrClosed.
func (c *Client) closeContext(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func(cause error) { unhook(); cancel(cause) }
}

// refreshIfStale updates the members' addresses and the leader in the background, once at a time: if the addresses are
// older than refreshInterval, the leader is unknown, or the presumed leader forwarded the call.
func (c *Client) refreshIfStale(q *call, a *response) {
	now := time.Now()
	due := c.refreshedAt.since(now) >= refreshInterval
	leader, _ := c.finder.leader()
	// A load balancer forwards every call: the interval limits the searches that this causes.
	wrong := leader == a.node && a.header.Get(apiv1.HeaderLeader) != "" &&
		c.leaderCheckedAt.since(now) >= leaderCheckInterval
	if q.internal || (leader != "" && !wrong && !due) || c.refreshing.Swap(true) {
		return
	}
	if wrong {
		c.leaderCheckedAt.set(now)
	}
	if !c.spawn(func() {
		defer c.refreshing.Store(false)
		if due {
			c.refreshedAt.set(now)
			c.refreshNodes()
		}
		c.finder.pollAll(c.ctx)
	}) {
		c.refreshing.Store(false)
	}
}

// refreshNodes fetches the members' addresses. If that fails, the known addresses stay. They also stay beside those of
// a node without a leader: it may be cut off and know the members of before.
func (c *Client) refreshNodes() {
	ctx, cancel := context.WithTimeout(c.ctx, refreshTimeout)
	defer cancel()
	cl, err := c.cluster(ctx, true)
	if err != nil {
		return
	}
	addresses := make([]string, len(cl.Members))
	for i, m := range cl.Members {
		addresses[i] = m.HTTPAddress
		if cl.LeaderID == "" {
			c.nodes.add(m.HTTPAddress)
		}
	}
	if cl.LeaderID != "" {
		c.nodes.refresh(addresses)
	}
}
