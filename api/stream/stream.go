// Package stream writes and reads long HTTP bodies: server-sent events, backups and forwarded responses. The limits
// apply to each piece of a stream, not to the whole.
package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	keepAliveInterval = 10 * time.Second // between keep-alives of an idle stream
	writeTimeout      = 30 * time.Second // for one piece of a stream
	flushBytes        = 32 << 10         // encoded events are sent when they reach this size
)

// Events writes one stream of server-sent events. It fails writeTimeout after the client has stopped reading.
type Events struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	encode func(*cluster.Error) apiv1.Problem
	buf    []byte
	seen   uint64 // of the last Progress
}

// Start sends the headers that w has immediately: the client knows that it misses nothing from then on.
// encode returns the problem document of the event that ends a failed stream.
func Start(w http.ResponseWriter, encode func(*cluster.Error) apiv1.Problem) (*Events, error) {
	e := &Events{w: w, rc: http.NewResponseController(w), encode: encode}
	h := w.Header()
	h["Content-Type"] = []string{apiv1.TypeEventStream}
	h["Cache-Control"] = []string{"no-store"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["X-Accel-Buffering"] = []string{"no"} // nginx would buffer the stream
	w.WriteHeader(http.StatusOK)
	e.buf = append(e.buf, "retry: 1000\n\n"...)
	return e, e.Flush()
}

// Event adds one event; id "" means none. The event is sent when the buffer is full, or by Flush.
func (e *Events) Event(id, name string, data []byte) error {
	if id != "" {
		e.buf = append(append(append(e.buf, "id: "...), id...), '\n')
	}
	e.buf = append(append(append(e.buf, "event: "...), name...), "\ndata: "...)
	e.buf = append(append(e.buf, data...), '\n', '\n')
	if len(e.buf) < flushBytes {
		return nil
	}
	return e.Flush()
}

// LargeEvent adds one event whose data is head, value in base64, and tail. It sends what does not fit into the buffer.
func (e *Events) LargeEvent(id, name string, head, value, tail []byte) error {
	if id != "" {
		e.buf = append(append(append(e.buf, "id: "...), id...), '\n')
	}
	e.buf = append(append(append(append(e.buf, "event: "...), name...), "\ndata: "...), head...)
	for len(value) > 0 {
		n := min(len(value), flushBytes/4*3) // without padding but for the last
		e.buf = base64.StdEncoding.AppendEncode(e.buf, value[:n])
		if value = value[n:]; len(e.buf) >= flushBytes {
			if err := e.Flush(); err != nil {
				return err
			}
		}
	}
	e.buf = append(append(e.buf, tail...), '\n', '\n')
	return nil
}

// Progress adds an id without an event: the client has every event up to seen, and continues after it elsewhere.
func (e *Events) Progress(seen uint64) {
	if seen <= e.seen {
		return
	}
	e.seen = seen
	e.buf = append(strconv.AppendUint(append(e.buf, "id: "...), seen, 10), '\n', '\n')
}

// Comment adds a line that clients ignore.
func (e *Events) Comment() { e.buf = append(e.buf, ":\n\n"...) }

// Flush sends the buffer.
func (e *Events) Flush() error {
	if len(e.buf) == 0 {
		return nil
	}
	if err := setDeadline(e.rc.SetWriteDeadline, writeTimeout); err != nil {
		return err
	}
	_, err := e.w.Write(e.buf)
	if cap(e.buf) > 4*flushBytes {
		e.buf = nil // drop the buffer of a large value
	}
	e.buf = e.buf[:0]
	if err != nil {
		return err
	}
	return e.rc.Flush()
}

// Run sends the events that next adds until ctx or draining ends, or next fails; its *cluster.Error is the last event.
// next adds an event or returns the cause of its context. Run fails if the client does not read.
func (e *Events) Run(ctx, draining context.Context, next func(ctx context.Context) error) error {
	ctx, cancel := WithGraceAfter(ctx, draining, 0)
	defer cancel()
	for {
		turn, done := context.WithTimeout(ctx, keepAliveInterval)
		err := next(turn)
		done()
		var refusal *cluster.Error
		switch {
		case err == nil:
		case errors.As(err, &refusal):
			return e.Fail(refusal)
		case draining.Err() != nil:
			return e.Draining()
		case ctx.Err() != nil:
			return nil
		case turn.Err() != nil:
			e.Comment()
		default:
			return nil // the client does not read
		}
		if err := e.Flush(); err != nil {
			return err
		}
	}
}

// Fail sends the event that ends a stream with an error.
func (e *Events) Fail(err *cluster.Error) error {
	data, bad := json.Marshal(e.encode(err))
	if bad != nil {
		return bad
	}
	if err := e.Event("", apiv1.EventError, data); err != nil {
		return err
	}
	return e.Flush()
}

// Draining sends the event that ends a stream which the client continues by another request, at another node if this
// one is stopping or drained.
func (e *Events) Draining() error {
	if err := e.Event("", apiv1.EventDraining, []byte("{}")); err != nil {
		return err
	}
	return e.Flush()
}

// setDeadline sets a deadline if the connection supports one: tests do not need it.
func setDeadline(set func(time.Time) error, d time.Duration) error {
	if err := set(time.Now().Add(d)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Writer returns a writer of a long response. Each Write has a time limit.
func Writer(w http.ResponseWriter) io.Writer {
	return &slowWriter{w, http.NewResponseController(w)}
}

type slowWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// Write implements io.Writer.
func (w *slowWriter) Write(p []byte) (int, error) {
	if err := setDeadline(w.rc.SetWriteDeadline, writeTimeout); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}

// Body reads a long request body. Each Read has a time limit. A nil Body is not consumed.
type Body struct {
	body     io.Reader
	rc       *http.ResponseController
	consumed atomic.Bool // a response may come while the body is still being sent
}

// NewBody returns the body of r, whose response goes to w.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	return &Body{body: r.Body, rc: http.NewResponseController(w)}
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.consumed.Store(true)
	if err := setDeadline(b.rc.SetReadDeadline, writeTimeout); err != nil {
		return 0, err
	}
	// The response comes after the last byte: its time limit starts again.
	if err := b.rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return b.body.Read(p)
}

// Consumed reports whether bytes may have been read. The body cannot be sent again then. It may be called while another
// goroutine reads.
func (b *Body) Consumed() bool { return b != nil && b.consumed.Load() }

// WithGraceAfter returns a context that ends when ctx ends, or grace after other has ended.
func WithGraceAfter(ctx, other context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(other, func() {
		if grace == 0 {
			cancel()
			return
		}
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
	return ctx, func() { stop(); cancel() }
}
