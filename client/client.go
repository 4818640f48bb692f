// Package client is the Go client of a NorthStar cluster: its leader, its keys
// and their changes, its members.
//
// Any live node is enough to begin with; the others are learnt from it. A call
// goes to the leader when it is known, and otherwise to any node, which
// forwards it, or holds it while there is no leader. A node that is dead or
// hung is never waited out: another one is asked in time. Only what is safe is
// sent again: reads; writes that are known not to have happened; and writes
// under an idempotency key, which this client gives to each, so that the
// cluster carries them out once however often they are sent. When the outcome
// of a write cannot be found out before its deadline, the error says so
// (ErrOutcomeUnknown) and is never a plain failure.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
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
	leaderCheckInterval = time.Second // at most, because an answer was forwarded
	refreshTimeout      = 2 * time.Second
)

// Config says how to reach a cluster. Only Endpoints is required.
type Config struct {
	// Endpoints are nodes' HTTP addresses, as host:port or URL. One that lives
	// is enough.
	Endpoints []string
	// TLS, when set, makes host:port mean https; see LoadTLS. Nil: http, or the
	// system's certificates where an endpoint is an https URL.
	TLS *tls.Config
	// Token is sent as bearer token when not empty.
	Token string
	// Timeout bounds a call whose context has no deadline. 0: DefaultTimeout.
	Timeout time.Duration
	// HedgeAfter is how long a try may be silent before the client looks
	// whether its node is hung or leads no more. 0: DefaultHedgeAfter.
	HedgeAfter time.Duration
	// ConnsPerNode bounds the connections to each node; calls beyond wait for
	// one. 0: DefaultConnsPerNode.
	ConnsPerNode int
	// UserAgent names the application in the servers' logs. "": northstar-client.
	UserAgent string
	// Dial opens connections. Nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client talks to one cluster. It is safe for use by several goroutines.
// Close ends it.
type Client struct {
	cfg     Config
	pool    *http.Transport
	nodes   *nodes
	finder  *leaderFinder
	renewer *renewer

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc

	mu      sync.Mutex // guards closed against wg.Add
	closed  bool
	running sync.WaitGroup

	refreshing      atomic.Bool
	refreshedAt     atomicTime // of the last refresh
	leaderCheckedAt atomicTime // of the last look-out for the leader because an answer was forwarded
}

// New checks the configuration. It sends nothing: the first call does.
func New(cfg Config) (*Client, error) {
	var errs []error
	for _, b := range []struct {
		name string
		bad  bool
	}{{"Timeout", cfg.Timeout < 0}, {"HedgeAfter", cfg.HedgeAfter < 0}, {"ConnsPerNode", cfg.ConnsPerNode < 0}} {
		if b.bad {
			errs = append(errs, fmt.Errorf("%s: negative", b.name))
		}
	}
	if strings.ContainsAny(cfg.Token, "\r\n") {
		errs = append(errs, errors.New("token: holds a line break"))
	}
	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	set, err := newNodes(cfg.Endpoints, scheme)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	c := &Client{cfg: cfg, nodes: set, pool: newPool(cfg)}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.finder = newLeaderFinder(c)
	c.renewer = newRenewer(c)
	return c, nil
}

func (cfg Config) withDefaults() Config {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.HedgeAfter == 0 {
		cfg.HedgeAfter = DefaultHedgeAfter
	}
	if cfg.ConnsPerNode == 0 {
		cfg.ConnsPerNode = DefaultConnsPerNode
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "northstar-client"
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}
	return cfg
}

// newPool makes the bounded pool of connections. It speaks HTTP/1.1: a try
// that is cancelled costs its own connection only, and a dead node's
// connections all break at once.
func newPool(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext:            cfg.Dial,
		TLSClientConfig:        cfg.TLS,
		TLSHandshakeTimeout:    dialTimeout,
		MaxConnsPerHost:        cfg.ConnsPerNode,
		MaxIdleConnsPerHost:    cfg.ConnsPerNode,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  0, // each try has its deadline
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

// Close ends every call, watch and connection of the client and returns when
// all its goroutines have. Calls under way fail with ErrClosed, or with
// ErrOutcomeUnknown. It may be called more than once.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop(ErrClosed)
	c.running.Wait()
	c.pool.CloseIdleConnections()
}

// spawn runs f in a goroutine that Close waits for. It reports false, without
// running it, once the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(f)
	return true
}

// callContext bounds a call by its own deadline, or the client's default, and
// by Close.
func (c *Client) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	cancelTimeout := func() {}
	if _, has := ctx.Deadline(); !has {
		ctx, cancelTimeout = context.WithTimeout(ctx, c.cfg.Timeout)
	}
	ctx, cancel := c.closeContext(ctx)
	return ctx, func() { cancel(); cancelTimeout() }
}

// closeContext makes Close end ctx, with ErrClosed as its cause.
func (c *Client) closeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { unhook(); cancel(nil) }
}

// refreshIfStale keeps the client's picture of the cluster fresh, in the
// background and at most once at a time: the members' addresses, and who
// leads, when that is unknown, was last looked at some time ago, or is wrong:
// the node that was taken for the leader has passed the call on to another.
func (c *Client) refreshIfStale(q *call, a *response) {
	now := time.Now()
	due := c.refreshedAt.since(now) >= refreshInterval
	leader, _ := c.finder.leader()
	// A load balancer is never the leader for long: hence the limit.
	wrong := leader == a.node && a.header.Get(apiv1.HeaderLeader) != "" && c.leaderCheckedAt.since(now) >= leaderCheckInterval
	if q.internal || (leader != "" && !wrong && !due) || c.refreshing.Swap(true) {
		return
	}
	if wrong {
		c.leaderCheckedAt.set(now)
	}
	ok := c.spawn(func() {
		defer c.refreshing.Store(false)
		if due {
			c.refreshedAt.set(now)
			c.refreshNodes()
		}
		c.finder.pollAll(c.ctx)
	})
	if !ok {
		c.refreshing.Store(false)
	}
}

// refreshNodes learns the members' addresses. A failure leaves the old ones.
func (c *Client) refreshNodes() {
	ctx, cancel := context.WithTimeout(c.ctx, refreshTimeout)
	defer cancel()
	cl, err := c.cluster(ctx, true)
	if err != nil {
		return
	}
	addresses := make([]string, 0, len(cl.Members))
	for _, m := range cl.Members {
		if m.HTTPAddress != "" {
			addresses = append(addresses, m.HTTPAddress)
		}
	}
	if len(addresses) > 0 {
		c.nodes.refresh(addresses)
	}
}
