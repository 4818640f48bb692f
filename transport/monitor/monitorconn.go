package monitor

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/transport/crashdetect"
)

const (
	maxRequests = 16  // unanswered requests of this node to a peer
	maxFresh    = 4   // requests of a peer that wait for this node's Raft
	frameRate   = 200 // frames a second from one peer
	frameBurst  = 400
)

var (
	// ErrGoodbye ends a connection that the peer closed on purpose.
	ErrGoodbye = errors.New("the peer said goodbye")
	// ErrReplaced ends a connection to the same peer as a newer one.
	ErrReplaced = errors.New("replaced by a newer connection")
	errNoServer = errors.New("the peer is not in the configuration")
	errFlood    = errors.New("too many frames")
	errRequests = errors.New("too many unanswered requests")
)

// monitorConn is one monitor connection after its hello. One goroutine reads it; any may write, one at a time.
type monitorConn struct {
	m            *monitor
	conn         net.Conn
	peer         cluster.Peer // from its hello
	dialled      bool         // by this node, which then polls
	onFirstFrame func()
	began        time.Time
	writeSem     chan struct{} // capacity 1: held while a frame is written
	gone         chan struct{} // closed when it has ended
	frames       *rate.Limiter
	fresh        atomic.Int32

	mu       sync.Mutex
	cause    error // why it ends; the first cause counts
	ended    bool
	heard    bool // at least one frame was received
	seq      uint64
	lastPoll uint64 // the last request of poll
	requests map[uint64]pendingRequest
}

type pendingRequest struct {
	at       time.Time
	response chan<- cluster.ReceivedClaim // capacity 1; nil if no caller waits
}

func newMonitorConn(m *monitor, conn net.Conn, peer cluster.Peer) *monitorConn {
	return &monitorConn{
		m: m, conn: conn, peer: peer, onFirstFrame: func() {}, began: time.Now(),
		writeSem: make(chan struct{}, 1), gone: make(chan struct{}),
		frames:   rate.NewLimiter(frameRate, frameBurst),
		requests: map[uint64]pendingRequest{},
	}
}

// run reads frames until the connection ends, and returns why, and whether the peer ever sent a frame.
func (c *monitorConn) run(ctx context.Context) (heard bool, cause error) {
	stop := context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })
	defer stop()
	err := c.read()
	if ctx.Err() == nil && !crashdetect.ProcessEnded(err) && !errors.Is(err, ErrGoodbye) {
		c.goodbye(err)
	}
	c.end(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard, c.cause
}

// read reads frames until an error. The first frame has the rest of the hello's deadline. The side that polls gets a
// response at each interval: its short deadline detects connections that only the other end lost.
func (c *monitorConn) read() error {
	r := newFrameReader(c.conn)
	limit := maxSilence
	if c.dialled {
		limit = min(maxSilence, c.m.idleInterval()+c.m.cfg.HelloTimeout)
	}
	for first := true; ; first = false {
		if !first {
			if err := c.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
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
			return ErrGoodbye
		}
		member, err := c.check(f.Claim)
		if err != nil {
			return err
		}
		if first {
			if err := c.begin(f.Claim.Term); err != nil {
				return err
			}
		}
		if err := c.handleFrame(f, now, member); err != nil {
			return err
		}
		c.m.watchNewCrashSocket(f.Claim)
	}
}

// begin makes this the current connection with the peer, which is in term. It returns an error if the peer is no longer
// dialled.
func (c *monitorConn) begin(term uint64) error {
	c.mu.Lock()
	c.heard = true
	c.mu.Unlock()
	if c.dialled && !c.m.isDialled(c.m.id) {
		return errNoServer
	}
	if again := c.m.setCurrent(c); !again {
		c.m.cfg.Host.Connected(c.peer, term)
	}
	c.onFirstFrame()
	return nil
}

// check compares a claim with the hello of its connection, and returns an error if the peer is no longer admitted. It
// reports whether the peer is a member.
func (c *monitorConn) check(claim cluster.Claim) (member bool, err error) {
	p := c.peer
	switch {
	case claim.NodeID != p.NodeID || claim.BootID != p.BootID:
		return false, fmt.Errorf("%w: claim of node %q, process %q", ErrIdentity, claim.NodeID, claim.BootID)
	case claim.ClusterID != p.ClusterID || claim.Generation != p.Generation:
		return false, ErrStale
	}
	return c.m.cfg.Host.Admit(p)
}

func (c *monitorConn) handleFrame(f frame, now time.Time, member bool) error {
	switch f.Kind {
	case frameAsk, frameNotify:
		if !c.dialled && f.RTT > 0 {
			c.m.setNetworkRTT(f.RTT) // only the dialling side polls and measures
		}
		c.m.record(f.Claim, f.RTT, now, member)
		if f.Kind == frameAsk {
			return c.respond(f)
		}
	case frameAnswer:
		c.mu.Lock()
		q, ok := c.requests[f.Seq]
		delete(c.requests, f.Seq)
		c.mu.Unlock()
		if !ok { // no caller waits for it any longer, but it is a sign of life
			c.m.record(f.Claim, f.RTT, now, member)
			return nil
		}
		if c.dialled && q.response == nil {
			c.m.recordExchange(now.Sub(q.at))
		}
		seen := c.m.record(f.Claim, now.Sub(q.at), now, member)
		if q.response != nil {
			q.response <- seen
		}
	}
	return nil
}

// respond answers a request: immediately, or after Raft's current message if a fresh claim is requested.
func (c *monitorConn) respond(f frame) error {
	if !f.Fresh {
		return c.sendFrame(frame{Kind: frameAnswer, Seq: f.Seq})
	}
	if c.fresh.Add(1) > maxFresh {
		c.fresh.Add(-1)
		return nil // unanswered: the peer repeats its request
	}
	wait := min(f.Wait, c.m.cfg.TimeoutMax)
	started := c.m.cfg.Host.Spawn(func(ctx context.Context) {
		defer c.fresh.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if c.m.cfg.Host.WaitMainLoop(ctx) == nil {
			_ = c.sendFrame(frame{Kind: frameAnswer, Seq: f.Seq})
		}
	})
	if !started {
		c.fresh.Add(-1)
	}
	return nil
}

// request sends a request and returns its number. response, if any, has capacity 1.
func (c *monitorConn) request(f frame, response chan<- cluster.ReceivedClaim) (seq uint64, err error) {
	c.mu.Lock()
	if len(c.requests) >= maxRequests {
		c.mu.Unlock()
		return 0, errRequests
	}
	c.seq++
	f.Kind, f.Seq = frameAsk, c.seq
	c.requests[f.Seq] = pendingRequest{at: time.Now(), response: response}
	c.mu.Unlock()
	return f.Seq, c.sendFrame(f)
}

// poll requests a claim, unless the last poll has no response yet.
func (c *monitorConn) poll() {
	c.mu.Lock()
	_, waits := c.requests[c.lastPoll]
	c.mu.Unlock()
	if waits {
		return
	}
	seq, _ := c.request(frame{}, nil) // a failure has ended the connection
	c.mu.Lock()
	c.lastPoll = seq
	c.mu.Unlock()
}

// unanswered returns for how long the last poll has waited for its answer, 0 if it does not.
func (c *monitorConn) unanswered(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, waits := c.requests[c.lastPoll]
	if !waits {
		return 0
	}
	return max(1, now.Sub(q.at))
}

func (c *monitorConn) forget(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requests, seq)
}

// sendFrame sends a frame with this node's claim. After an error the connection has ended.
func (c *monitorConn) sendFrame(f frame) error {
	select {
	case c.writeSem <- struct{}{}:
	case <-c.gone:
		return net.ErrClosed
	}
	defer func() { <-c.writeSem }()
	f.Claim, f.RTT = c.m.Claim(), c.m.networkRTT() // here, so that claims are sent in order
	if !c.m.cfg.Host.ApplyFaults(c.m.id, &f.Claim, c.gone) {
		return nil
	}
	b, err := f.encode()
	if err == nil {
		err = c.conn.SetWriteDeadline(time.Now().Add(c.m.cfg.RPCTimeout))
	}
	if err == nil {
		_, err = c.conn.Write(b)
	}
	if err != nil {
		c.end(err)
	}
	return err
}

// goodbye sends the peer a frame that this process closes the connection and continues to run. The connection's cause
// is the one passed here. The caller must call end next.
func (c *monitorConn) goodbye(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	_ = c.sendFrame(frame{Kind: frameBye})
}

// end closes the connection. The first cause counts.
func (c *monitorConn) end(cause error) {
	c.mu.Lock()
	first := !c.ended
	c.ended = true
	if c.cause == nil {
		c.cause = cause
	}
	c.mu.Unlock()
	if first {
		close(c.gone)
		_ = c.conn.Close()
	}
}

// After a hello both sides send frames, for as long as the connection lasts:
//
//	frame: length [4] · frame as JSON
//
// A node that closes the connection after the hello was only probing. Unknown kinds and fields are ignored.

// maxFrame bounds one frame's JSON text.
const maxFrame = 8 << 10

type frameKind string

const (
	frameAsk    frameKind = "ask"    // request
	frameAnswer frameKind = "answer" // response to the request with its Seq
	frameNotify frameKind = "tell"   // needs no response
	frameBye    frameKind = "bye"    // the connection ends, the process does not
)

var errMalformed = errors.New("malformed frame")

// frame is one message on a monitor connection.
type frame struct {
	Kind frameKind `json:"kind"`
	Seq  uint64    `json:"seq,omitempty"`
	// Fresh requests a claim that includes the message that Raft is handling. Wait is how long that is waited for.
	Fresh bool          `json:"fresh,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`
	RTT   time.Duration `json:"rtt,omitempty"` // as measured by the sender; 0 if unknown
	Claim cluster.Claim `json:"claim"`
}

func (f frame) encode() ([]byte, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode frame: %w", err)
	}
	if len(body) > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes is over %d", len(body), maxFrame)
	}
	b := make([]byte, 0, 4+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...), nil
}

// frameReader reads frames. What it returns does not share memory with it.
type frameReader struct {
	r   *bufio.Reader
	buf []byte
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 2<<10)}
}

// next reads one frame. The error wraps errMalformed if the bytes are not a frame.
func (fr *frameReader) next() (frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(fr.r, head[:]); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return frame{}, fmt.Errorf("%w: frame of %d bytes is over %d", errMalformed, size, maxFrame)
	}
	if cap(fr.buf) < int(size) {
		fr.buf = make([]byte, size)
	}
	body := fr.buf[:size]
	if _, err := io.ReadFull(fr.r, body); err != nil {
		return frame{}, err
	}
	var f frame
	if err := json.Unmarshal(body, &f); err != nil {
		return frame{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return f, nil
}
