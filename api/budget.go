package api

import (
	"context"
	"errors"
	"hash/maphash"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"northstar/api/forward"
	"northstar/api/openapi"
	"northstar/api/problem"
	"northstar/api/token"
)

// budget limits what requests hold of one thing: places, or bytes. A caller, by identity and by address, gets a share
// of it, so that others find room. Several callers can fill it with their shares, so those who hold little may take
// limit/8 more. Operators and trusted nodes may take limit/4 more. Methods neither lock nor allocate, and may be called
// by any goroutine.
type budget struct {
	what  string
	limit int64 // of the node
	share int64 // of one identity, and of one address

	held                  atomic.Int64
	identities, addresses shares
}

// shareBuckets is the number of counters in each row of shares.
const shareBuckets = 1024

// shares counts what callers hold, as the count-min sketch of Cormode and Muthukrishnan (2005) does. Each caller has a
// counter in each row. The lower one is nearest to what the caller holds: it is more only if others have both counters.
type shares [2][shareBuckets]atomic.Int64

// counters are a caller's places in the rows of shares.
type counters [2]uint16

func countersOf(hash uint64) counters {
	return counters{uint16(hash % shareBuckets), uint16(hash >> 32 % shareBuckets)}
}

// add adds n to a caller's counters, and returns what the caller holds then.
func (s *shares) add(by counters, n int64) int64 {
	return min(s[0][by[0]].Add(n), s[1][by[1]].Add(n))
}

// littleShare: a caller holds little up to limit/littleShare, with what it asks for.
const littleShare = 64

var shareSeed = maphash.MakeSeed()

func newBudget(what string, limit, share int64) *budget {
	return &budget{what: what, limit: limit, share: max(1, share)}
}

// Load returns how much is held.
func (b *budget) Load() int64 { return b.held.Load() }

// shareholder is a caller as budgets count it.
type shareholder struct {
	identity, address counters
	unshared          bool // an operator: only the node's limit counts
	reserve           bool // may use the reserve
}

// holder returns the caller of a request that is authorized.
func (c *request) holder() shareholder {
	if !c.holderKnown {
		c.holderKnown = true
		address := countersOf(maphash.Comparable(shareSeed, c.addressGroup()))
		c.asHolder = shareholder{
			identity: countersOf(maphash.String(shareSeed, c.caller.name)),
			address:  address,
			unshared: c.caller.role == token.Operator || c.caller.node != "" && c.fromPeer(),
			reserve:  c.caller.role == token.Operator || c.fromPeer(),
		}
		if c.caller.name == "" { // callers without an identity are told apart by their addresses only
			c.asHolder.identity = address
		}
	}
	return c.asHolder
}

func (c *request) addressGroup() netip.Prefix {
	if conn := connOf(c.r.Context()); conn != nil && conn.remote == c.from {
		return conn.group
	}
	return addressGroup(c.from)
}

// fromPeer reports whether another member sent the request, for itself or for a caller.
func (c *request) fromPeer() bool {
	return c.via != "" || c.caller.node != "" && c.s.auth.member(c.caller.node)
}

// take takes n, or returns the error of a request that must wait.
func (b *budget) take(by shareholder, n int64) error {
	own := n
	if !by.unshared {
		own = max(b.identities.add(by.identity, n), b.addresses.add(by.address, n))
		if own > b.share {
			b.identities.add(by.identity, -n)
			b.addresses.add(by.address, -n)
			return problem.Busy("limit reached: at most %d %s per identity and per address", b.share, b.what)
		}
	}
	limit := b.limit
	switch {
	case by.reserve:
		limit += b.limit / 4
	case own <= b.limit/littleShare:
		limit += b.limit / 8
	}
	if b.held.Add(n) <= limit {
		return nil
	}
	b.give(by, n)
	return problem.Busy("limit reached: at most %d %s per node", b.limit, b.what)
}

// give returns n of what take has taken.
func (b *budget) give(by shareholder, n int64) {
	b.held.Add(-n)
	if !by.unshared {
		b.identities.add(by.identity, -n)
		b.addresses.add(by.address, -n)
	}
}

// budgets are the limits of one Server.
type budgets struct {
	requests         *budget
	queued           *budget // requests that wait for a leader
	admin            *budget // calls of /admin: no load of other callers delays an operator
	streams          *budget
	attaching        *budget
	waitingCampaigns *budget
	pages            *budget // open dashboards, each of which makes requests of other nodes
	eventStreams     *budget // which do so, too
	scrapes          *budget // of metrics: anyone may read them
	bodies           *budget // that are being received
	bodyBytes        *budget
	answers          *budget // values that answers and streams hold
	calling          *budget // calls of another protocol, from their headers until their answers are sent
	received         *budget // bytes of their messages
	watching         *budget // watches of another protocol, many of which share a stream
	watchKeys        *budget // bytes of their keys and range ends
}

// Limits of the watches of another protocol.
const (
	maxCallWatches = 160_000
	maxWatchKeys   = 48 << 20 // bytes of their keys and range ends
)

func newBudgets(l Limits) budgets {
	places := func(what string, limit int) *budget { return newBudget(what, int64(limit), int64(limit-limit/4)) }
	return budgets{
		requests:         places("requests", l.Requests),
		queued:           places("requests that wait for a leader", l.QueuedForLeader),
		admin:            newBudget("calls of /admin", int64(l.AdminCalls), int64(l.AdminCalls)),
		streams:          places("streams", l.Streams),
		attaching:        places("attached sessions", l.Attached),
		waitingCampaigns: places("campaigns", l.WaitingCampaigns),
		pages:            newBudget("open dashboards", maxPages, maxPages/4),
		eventStreams:     newBudget("streams of events", maxEventStreams, maxEventStreams/4),
		scrapes:          newBudget("scrapes of metrics", maxScrapes, maxScrapes/8),
		bodies:           newBudget("unfinished bodies", int64(l.Bodies), int64(l.Bodies/4)),
		answers:          newBudget("bytes of unread answers", l.AnswerBytes, l.AnswerBytes/2),
		calling:          places("calls", l.Streams),
		received:         newBudget("bytes of messages", l.RequestBytes/4, 3*l.RequestBytes/16),
		watching:         newBudget("watches", maxCallWatches, maxCallWatches/2),
		watchKeys:        newBudget("bytes of the keys of watches", maxWatchKeys, maxWatchKeys/2),
		bodyBytes:        newBudget("bytes of request bodies", l.RequestBytes, l.RequestBytes/2),
	}
}

// enterQueue is the EnterQueue of the forwarder. Calls of other protocols have their client in the context.
func (s *Server) enterQueue(ctx context.Context, client forward.Client) (leave func(), err error) {
	by := shareholder{unshared: true}
	if c, ok := client.(*request); ok {
		by = c.holder()
	} else if call, ok := ctx.Value(callMark{}).(*callContext); ok {
		by = call.request.holder()
	}
	if err := s.queued.take(by, 1); err != nil {
		return nil, err
	}
	return func() { s.queued.give(by, 1) }, nil
}

// Limits of what costs a node more than other requests.
const (
	maxEventStreams = 256 // each requests the events of all other nodes, four times a second
	maxScrapes      = 64  // each holds all metrics as text
)

// admit takes a place among the requests or streams in flight; release frees it.
func (c *request) admit() error {
	if c.route.LimitExempt {
		return nil
	}
	if err := c.checkConnection(); err != nil {
		return err
	}
	b := c.s.requests
	switch {
	case c.route.Role == token.Operator:
		b = c.s.admin
	case c.route.Kind == openapi.Stream, c.route.Kind == openapi.StreamOnAccept && c.wantsStream():
		b = c.s.streams
	case c.route.Kind == openapi.AttachStream:
		b = c.s.attaching
	case c.route.Kind == openapi.LongPoll:
		b = c.s.waitingCampaigns
	}
	if err := b.take(c.holder(), 1); err != nil {
		return err
	}
	c.place = b
	return nil
}

// checkConnection refuses a client's request on a connection beyond the limits.
func (c *request) checkConnection() error {
	conn := connOf(c.r.Context())
	if conn == nil || c.fromPeer() || c.route.Role == token.Operator || c.s.conns.hasPlace(conn) {
		return nil
	}
	c.Header()["Connection"] = []string{"close"}
	return problem.Busy("limit reached: at most %d connections per node, and %d per address", c.s.limits.Connections,
		c.s.limits.AddressConnections)
}

// release frees what the request holds.
func (c *request) release() {
	if c.place != nil {
		c.place.give(c.holder(), 1)
	}
	c.giveAnswer()
	if c.bodyBytes != 0 {
		c.s.bodyBytes.give(c.holder(), c.bodyBytes)
	}
}

// takeBody counts the bytes of a body that is about to be read, of which most are read at most. keepBody returns
// those that it does not have.
func (c *request) takeBody(most int64) error {
	n := c.r.ContentLength
	if n < 0 || n > most {
		n = most + 1
	}
	if err := c.s.bodyBytes.take(c.holder(), n); err != nil {
		return err
	}
	c.bodyBytes = n
	return nil
}

func (c *request) keepBody(size int) {
	c.s.bodyBytes.give(c.holder(), c.bodyBytes-int64(size))
	c.bodyBytes = int64(size)
}

// jsonBodyTimeout limits the time to send a JSON body.
const jsonBodyTimeout = 10 * time.Second

// receiveBody calls read, which reads the body, when the body has a place among those that are being received. The
// body must arrive by until, which limit names.
func (c *request) receiveBody(until time.Time, limit string, read func() error) error {
	if c.route.Role != token.Operator {
		if err := c.s.bodies.take(c.holder(), 1); err != nil {
			return err
		}
		defer c.s.bodies.give(c.holder(), 1)
	}
	control := http.NewResponseController(c.ResponseWriter)
	if err := control.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	switch err := read(); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.bodyTimedOut = true
		return problem.BadRequest("body: did not arrive within %s", limit)
	case err != nil:
		return problem.BadRequest("body: cannot be read: %w", err)
	}
	_ = control.SetReadDeadline(time.Time{}) // a later read only notices that the client is gone
	return nil
}
