package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"northstar/api/openapi"
)

// Share is the share of a caller, or of a connection, in two of the node's budgets. Methods may be called by any
// goroutine.
type Share interface {
	// Take takes places and bytes. CodeBusy: there are not so many left, and it has taken nothing.
	Take(places, bytes int) error
	// Give returns what Take has taken.
	Give(places, bytes int)
}

const (
	freeCalls    = 2        // of a connection, beside its share
	freeBytes    = 64 << 10 // of its messages, beside its share
	takenBytes   = 256 << 10
	messageTime  = 30 * time.Second // for a message to arrive
	stallTimeout = 10 * time.Second // that a connection waits for room
	stallRetry   = 20 * time.Millisecond
	stuckTime    = time.Second          // after which a write counts as stuck
	resetPause   = 5 * time.Millisecond // of reading, for each call that the client resets
	resetBurst   = 5 * time.Second      // of such pauses that are free
)

var errNoRoom = errors.New("etcd: no room for the messages of a connection")

// wire is an HTTP/2 connection that counts what gRPC holds for it although no call has begun that limits could refuse,
// or although the call is over: the streams that the node has not ended, and the bytes of messages that are not
// complete, or that no call has taken. It knows them by the frames, and calls tell what they take. New calls are
// refused, and reading stops, when there is no room.
type wire struct {
	net.Conn
	probed  probedConn // writes
	share   Share
	begun   time.Time
	writing atomic.Int64 // when the present write began, in nanoseconds after begun, and 1; 0: there is none

	mu      sync.Mutex
	in, out frames
	fresh   int                    // size of the client's present frame, until it has had content
	open    map[uint32]*heldStream // streams that the client has opened, and neither side has ended
	held    int                    // memory of the messages of open
	calls   int                    // taken of the share
	bytes   int                    // taken of the share
	full    bool                   // the share has not enough for held
	resets  time.Time              // when the pauses for the client's resets end
	slow    *time.Timer            // looks for messages that arrive too slowly; nil: none is unfinished
	closed  bool
	opening *connSet // has Conn until the client's first frame has come; nil: it has
}

func newWire(c net.Conn, share Share) *wire {
	return &wire{
		Conn: c, probed: probedConn{conn: c}, share: share, begun: time.Now(),
		in: frames{skip: len(http2.ClientPreface)}, open: map[uint32]*heldStream{},
	}
}

// NetConn returns the connection below.
func (w *wire) NetConn() net.Conn { return w.Conn }

// Read reads when there is room.
func (w *wire) Read(p []byte) (int, error) {
	if err := w.await(); err != nil {
		return 0, err
	}
	n, err := w.Conn.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in.follow(p[:n], w.begin, w.receive)
	if w.in.whole {
		w.opened()
	}
	w.updateShare()
	return n, err
}

// Write writes, and notes the streams that end.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	begins := w.out.between()
	w.out.follow(p, func(f frame) {
		if f.endsStream() {
			w.end(f.stream)
		}
	}, w.wrote)
	ends := w.out.between()
	w.updateShare()
	w.mu.Unlock()
	w.writing.Store(1 + int64(time.Since(w.begun)))
	defer w.writing.Store(0)
	return w.probed.write(p, begins, ends)
}

// Close closes the connection and gives its share back.
func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened()
	if !w.closed {
		w.closed = true
		w.share.Give(w.calls, w.bytes)
		w.calls, w.bytes = 0, 0
		if w.slow != nil {
			w.slow.Stop()
		}
	}
	return w.Conn.Close()
}

// opened takes the connection out of those without a frame of the client. The lock must be held.
func (w *wire) opened() {
	if w.opening != nil {
		w.opening.remove(w.Conn)
		w.opening = nil
	}
}

// begin notes a frame of the client. The lock must be held.
func (w *wire) begin(f frame) {
	_, ok := w.open[f.stream]
	w.fresh = f.size
	switch {
	case f.kind == http2.FrameHeaders && !ok:
		w.open[f.stream] = &heldStream{}
	case f.kind == http2.FrameRSTStream && ok:
		w.end(f.stream)
		if now := time.Now(); w.resets.Before(now) {
			w.resets = now
		}
		w.resets = w.resets.Add(resetPause)
	}
}

// receive follows the messages of a stream. The lock must be held.
func (w *wire) receive(stream uint32, part []byte, more int) {
	m, ok := w.open[stream]
	if !ok {
		return
	}
	now := time.Now()
	if w.fresh > 0 {
		w.held += m.frame(w.fresh, now)
		w.fresh = 0
	}
	m.follow(part, more, now)
}

// decoded notes that the call of a stream has a message in memory, until took.
func (w *wire) decoded(stream uint32, memory int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := w.open[stream]; ok {
		m.decoded = memory
		w.held += memory
		w.updateShare()
	}
}

// took notes that the call of a stream has taken its oldest message, and that gRPC no longer holds it.
func (w *wire) took(stream uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, ok := w.open[stream]; ok {
		w.held -= m.take(time.Now()) + m.decoded
		m.decoded = 0
		w.updateShare()
	}
}

// end forgets a stream. The lock must be held.
func (w *wire) end(stream uint32) {
	if m, ok := w.open[stream]; ok {
		w.held -= m.held + m.decoded
		m.wake()
		delete(w.open, stream)
	}
}

// updateShare takes from the shared budget what this connection lacks, and returns what it needs no longer. The lock
// must be held.
func (w *wire) updateShare() {
	if w.closed {
		return
	}
	calls := max(0, len(w.open)-freeCalls) - w.calls
	bytes := (max(0, w.held-freeBytes)+takenBytes-1)/takenBytes*takenBytes - w.bytes
	if calls < 0 || bytes < 0 {
		w.share.Give(max(0, -calls), max(0, -bytes))
		w.calls, w.bytes = w.calls+min(0, calls), w.bytes+min(0, bytes)
	}
	for ; calls > 0 && w.share.Take(1, 0) == nil; calls-- {
		w.calls++
	}
	if bytes > 0 && w.share.Take(0, bytes) == nil {
		w.bytes += bytes
	}
	w.full = w.held-freeBytes > w.bytes
	if w.held > 0 && w.slow == nil {
		w.slow = time.AfterFunc(messageTime, w.endSlow)
	}
}

// endSlow closes the connection if a message does not arrive in time. One behind messages that its call has not taken
// may be held up by this node: the client has used the window of the stream.
func (w *wire) endSlow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldest := time.Duration(-1)
	for _, m := range w.open {
		if m.waiting == nil && !m.since.IsZero() {
			oldest = max(oldest, time.Since(m.since))
		}
	}
	switch {
	case w.closed, oldest < 0:
		w.slow = nil
	case oldest >= messageTime:
		_ = w.Conn.Close() // gRPC then closes this one
	default:
		w.slow.Reset(messageTime - oldest)
	}
}

// await waits until there is room for what the client may send. A write that is stuck means that the client does not
// read; it then sends no more either. A client that resets call after call has to wait, too: each costs a goroutine.
func (w *wire) await() error {
	var until time.Time
	for {
		w.mu.Lock()
		if w.full {
			w.updateShare()
		}
		now := time.Now()
		full, closed := w.full || len(w.open) > 2*maxStreamsPerConn, w.closed
		resets := w.resets.Sub(now) > resetBurst
		w.mu.Unlock()
		since := time.Duration(w.writing.Load())
		stuck := since > 0 && now.Sub(w.begun)-since > stuckTime
		switch {
		case closed:
			return net.ErrClosed
		case !full && !stuck && !resets:
			return nil
		case !full:
			until = time.Time{}
		case until.IsZero():
			until = now.Add(stallTimeout)
		case !now.Before(until):
			return errNoRoom
		}
		time.Sleep(stallRetry)
	}
}

// refuses reports whether the connection has more calls than its share.
func (w *wire) refuses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open)-freeCalls > w.calls
}

// admit refuses a call before its message is received.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if w := wireOf(ctx); w != nil && w.refuses() {
		return ctx, rpctypes.ErrGRPCRequestTooManyRequests
	}
	return context.WithValue(ctx, sentKey{}, info.Header), nil
}

// freeOf returns the size up to which a request of a method is not counted while it is executed. Requests that wait
// for long are: a client can have thousands of them.
func (s *Server) freeOf(method string) int {
	if m := s.methods[method]; m != nil && m.kind == openapi.LongPoll {
		return smallAnswer
	}
	return freeBytes
}

// holdRequest takes bytes of the budget for a request of more than free bytes, until give is called.
func holdRequest(ctx context.Context, in any, free int) (give func(), err error) {
	w := wireOf(ctx)
	m, ok := in.(proto.Message)
	if w == nil || !ok {
		return func() {}, nil // the gateway has done so
	}
	size := proto.Size(m)
	if size <= free {
		return func() {}, nil
	}
	if err := w.share.Take(0, size); err != nil {
		return nil, err
	}
	return func() { w.share.Give(0, size) }, nil
}

// wireOf returns the connection of a gRPC call, nil for a call of the gateway.
func wireOf(ctx context.Context) *wire {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(*connInfo); ok {
			return info.wire
		}
	}
	return nil
}
