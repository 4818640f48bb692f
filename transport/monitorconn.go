package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
)

const (
	maxQuestions = 16  // of this node that a peer has not answered
	maxFresh     = 4   // of a peer that wait for this node's Raft
	frameRate    = 200 // frames a second from one peer
	frameBurst   = 400
)

var (
	errReplaced = errors.New("replaced by a newer connection")
	errGoodbye  = errors.New("the peer said goodbye")
	errStale    = errors.New("the peer's identity has changed since its hello")
	errNoServer = errors.New("the peer is not in the configuration any more")
	errFlood    = errors.New("too many frames")
)

// monitorConn is one monitor connection after its hello. One goroutine reads
// it; any may write, one at a time.
type monitorConn struct {
	t            *Transport
	m            *monitor
	conn         net.Conn
	x            completedHello
	dialled      bool          // by this node, which asks at each interval
	onFirstFrame func()        // called with the first frame
	writeSem     chan struct{} // capacity 1: who holds it writes
	processDead  chan struct{} // closed when it has ended
	frames       *rate.Limiter
	fresh        atomic.Int32

	mu           sync.Mutex
	cause        error // why it ends; the first counts
	ended        bool
	lastReceived bool // at least one frame has come
	seq          uint64
	lastPoll     uint64 // the last question of poll
	questions    map[uint64]pendingRequest
}

// pendingRequest is something asked that waits for its answer.
type pendingRequest struct {
	at     time.Time
	answer chan<- cluster.ReceivedClaim // capacity 1; nil: nobody waits
}

func newConversation(m *monitor, conn net.Conn, x completedHello) *monitorConn {
	return &monitorConn{
		t: m.t, m: m, conn: conn, x: x, onFirstFrame: func() {},
		writeSem: make(chan struct{}, 1), processDead: make(chan struct{}),
		frames:    rate.NewLimiter(frameRate, frameBurst),
		questions: map[uint64]pendingRequest{},
	}
}

// run reads what the peer says until the connection ends, and says why it did.
// heard tells whether the peer ever said anything.
func (c *monitorConn) run(ctx context.Context) (heard bool, cause error) {
	stop := context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })
	defer stop()
	err := c.listen()
	if ctx.Err() == nil && !processGone(err) && !errors.Is(err, errGoodbye) {
		c.goodbye(err)
	}
	c.end(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastReceived, c.cause
}

// listen reads frames until something is wrong. The first one has what is left
// of the hello's deadline. Who asks at each interval is answered, so it need not
// be patient: what can end a connection at the other end alone, a cut or a firewall
// that has forgotten it, leaves this one with a question that nobody will answer.
func (c *monitorConn) listen() error {
	r := newFrameReader(c.conn)
	patience := maxStall
	if c.dialled {
		patience = min(maxStall, c.t.params.probeIdle+c.t.params.hello)
	}
	for first := true; ; first = false {
		if !first {
			if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
		}
		f, err := r.next()
		now := time.Now()
		if err != nil {
			return err
		}
		if !c.frames.AllowN(now, 1) {
			return errFlood
		}
		if f.Kind == frameBye {
			return errGoodbye
		}
		if err := c.check(f.Claim); err != nil {
			return err
		}
		if first {
			c.begin(f.Claim.Term)
		}
		if err := c.handleFrame(f, now); err != nil {
			return err
		}
		c.m.watchNewCrashSocket(f.Claim)
	}
}

// begin makes this the conversation with the peer, which is in term.
func (c *monitorConn) begin(term uint64) {
	c.mu.Lock()
	c.lastReceived = true
	c.mu.Unlock()
	c.m.setCurrent(c)
	c.t.warm(c.x.peer, term)
	c.onFirstFrame()
}

// check holds a claim against the connection that it came on, and judges the
// peer by what is known now.
func (c *monitorConn) check(claim cluster.Claim) error {
	p := c.x.peer
	switch {
	case claim.NodeID != p.NodeID || claim.BootID != p.BootID:
		return fmt.Errorf("%w: claim of node %q, process %q", errIdentity, claim.NodeID, claim.BootID)
	case claim.ClusterID != p.ClusterID || claim.Generation != p.Generation:
		return errStale
	}
	if a := c.t.admit(p); !a.OK() {
		return &RefusedError{Node: p.NodeID, Refusal: a.Refusal, Reason: a.Reason}
	}
	return nil
}

// handleFrame deals with one frame.
func (c *monitorConn) handleFrame(f frame, now time.Time) error {
	switch f.Kind {
	case frameAsk, frameNotify:
		if !c.dialled && f.RTT > 0 {
			c.m.setTrip(f.RTT) // only who has dialled asks at each interval, and knows
		}
		c.m.record(f.Claim, f.RTT, now)
		if f.Kind == frameAsk {
			return c.reply(f)
		}
	case frameAnswer:
		c.mu.Lock()
		q, ok := c.questions[f.Seq]
		delete(c.questions, f.Seq)
		c.mu.Unlock()
		if !ok { // it was given up, and is a sign of life all the same
			c.m.record(f.Claim, f.RTT, now)
			return nil
		}
		if c.dialled && q.answer == nil {
			c.m.recordExchange(now.Sub(q.at))
		}
		seen := c.m.record(f.Claim, now.Sub(q.at), now)
		if q.answer != nil {
			q.answer <- seen
		}
	}
	return nil
}

// reply answers a question: at once, or, when a fresh claim is wanted, after
// what Raft is inside of.
func (c *monitorConn) reply(f frame) error {
	if !f.Fresh {
		return c.sendFrame(frame{Kind: frameAnswer, Seq: f.Seq})
	}
	if c.fresh.Add(1) > maxFresh {
		c.fresh.Add(-1)
		return nil // unanswered: a peer asks again
	}
	wait := min(f.Wait, c.t.cfg.TimeoutMax)
	started := c.t.spawn(func(ctx context.Context) {
		defer c.fresh.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if c.t.Raft().WaitMainLoop(ctx) == nil {
			_ = c.sendFrame(frame{Kind: frameAnswer, Seq: f.Seq})
		}
	})
	if !started {
		c.fresh.Add(-1)
	}
	return nil
}

// request puts a question, and gives its number. answer, if any, has capacity 1.
func (c *monitorConn) request(f frame, answer chan<- cluster.ReceivedClaim) (seq uint64, err error) {
	c.mu.Lock()
	if len(c.questions) >= maxQuestions {
		c.mu.Unlock()
		return 0, errTooMany
	}
	c.seq++
	f.Kind, f.Seq = frameAsk, c.seq
	c.questions[f.Seq] = pendingRequest{at: time.Now(), answer: answer}
	c.mu.Unlock()
	return f.Seq, c.sendFrame(f)
}

// poll asks for a claim, unless the last question like it has no answer yet.
func (c *monitorConn) poll() {
	c.mu.Lock()
	_, waits := c.questions[c.lastPoll]
	c.mu.Unlock()
	if waits {
		return
	}
	seq, _ := c.request(frame{}, nil) // a failure has ended the conversation
	c.mu.Lock()
	c.lastPoll = seq
	c.mu.Unlock()
}

// forget gives a question up.
func (c *monitorConn) forget(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.questions, seq)
}

// sendFrame sends a frame with this node's claim. When that fails, the conversation
// has ended.
func (c *monitorConn) sendFrame(f frame) error {
	select {
	case c.writeSem <- struct{}{}:
	case <-c.processDead:
		return net.ErrClosed
	}
	defer func() { <-c.writeSem }()
	f.Claim, f.RTT = c.t.Claim(), c.m.networkRTT() // now, so that claims are sent in order
	if !c.applyFaults(&f) {
		return nil
	}
	b, err := f.encode()
	if err == nil {
		err = c.conn.SetWriteDeadline(time.Now().Add(c.t.params.rpc))
	}
	if err == nil {
		_, err = c.conn.Write(b)
	}
	if err != nil {
		c.end(err)
	}
	return err
}

// goodbye says goodbye, so that the peer does not take this process for dead, and
// keeps why. What is left to do is end.
func (c *monitorConn) goodbye(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	_ = c.sendFrame(frame{Kind: frameBye})
}

// end ends the conversation. The first cause counts.
func (c *monitorConn) end(cause error) {
	c.mu.Lock()
	first := !c.ended
	c.ended = true
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	if first {
		close(c.processDead)
		_ = closeNow(c.conn)
	}
}

// processGone says whether the cause is what a kernel does to the connections
// of a process that has ended.
func processGone(cause error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(cause, e) {
			return true
		}
	}
	return false
}
