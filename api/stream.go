package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	keepAliveInterval = 10 * time.Second // between signs of life on a silent stream
	writeTimeout      = 30 * time.Second // that a client may take for one piece of a stream
	flushBytes        = 32 << 10         // of a stream, at which what is encoded is sent
	watchBatchSize    = 16               // taken from a cursor: what a slow client can keep alive
)

// wantsStream says whether the client asked for server-sent events.
func (c *request) wantsStream() bool {
	return strings.Contains(c.r.Header.Get("Accept"), apiv1.TypeEventStream)
}

// sseWriter writes one stream of server-sent events. Whatever the client does, it
// costs one buffer, and at most writeTimeout after the client stops reading.
type sseWriter struct {
	c   *request
	rc  *http.ResponseController
	buf []byte
}

// startSSE begins the answer. The first bytes are sent at once, so that the
// client knows that from here on it misses nothing.
func (c *request) startSSE() (*sseWriter, error) {
	e := &sseWriter{c: c, rc: http.NewResponseController(c.ResponseWriter)}
	h := c.Header()
	h["Content-Type"] = []string{apiv1.TypeEventStream}
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["X-Accel-Buffering"] = []string{"no"} // nginx would hold the stream back
	c.WriteHeader(http.StatusOK)
	e.buf = append(e.buf, "retry: 1000\n\n"...)
	return e, e.flush()
}

// field begins an event, or goes on with it: one line.
func (e *sseWriter) field(name, value string) {
	e.buf = append(e.buf, name...)
	e.buf = append(e.buf, ": "...)
	e.buf = append(e.buf, value...)
	e.buf = append(e.buf, '\n')
}

// release ends an event, and sends when enough has come together.
func (e *sseWriter) endEvent() error {
	e.buf = append(e.buf, '\n')
	if len(e.buf) < flushBytes {
		return nil
	}
	return e.flush()
}

func (e *sseWriter) flush() error {
	if len(e.buf) == 0 {
		return nil
	}
	if err := e.rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := e.c.Write(e.buf)
	if cap(e.buf) > 4*flushBytes {
		e.buf = nil // after a large value
	}
	e.buf = e.buf[:0]
	if err != nil {
		return err
	}
	return e.rc.Flush()
}

// stream sends what next gives until the client hangs up, the node drains, or next
// fails, which the client is told. next encodes at least one event, or returns
// the cause of its context.
func (e *sseWriter) stream(next func(ctx context.Context) error) error {
	ctx, cancel := withGraceAfter(e.c.r.Context(), e.c.s.stopping, 0)
	defer cancel()
	for {
		turn, done := context.WithTimeout(ctx, keepAliveInterval)
		err := next(turn)
		done()
		var problem *cluster.Error
		switch {
		case err == nil:
		case errors.As(err, &problem):
			return e.sendProblem(problem)
		case e.c.s.stopping.Err() != nil:
			e.field("event", apiv1.EventDraining)
			e.field("data", "{}")
			return e.finish()
		case ctx.Err() != nil:
			return nil
		case turn.Err() != nil:
			e.buf = append(e.buf, ":\n\n"...)
		default:
			return nil // the client does not read: gone, or as good as
		}
		if err := e.flush(); err != nil {
			return e.c.ignoreWriteError(err)
		}
	}
}

// sendProblem tells the client why the stream ends.
func (e *sseWriter) sendProblem(problem *cluster.Error) error {
	return e.c.ignoreWriteError(e.writeProblem(problem))
}

// writeProblem is fail that says when the client cannot be told any more.
func (e *sseWriter) writeProblem(problem *cluster.Error) error {
	data, err := json.Marshal(e.c.s.problem(problem))
	if err != nil {
		return err
	}
	e.field("event", apiv1.EventError)
	e.field("data", string(data))
	e.buf = append(e.buf, '\n')
	return e.flush()
}

func (e *sseWriter) finish() error {
	e.buf = append(e.buf, '\n')
	return e.c.ignoreWriteError(e.flush())
}

// slowWriter writes a long answer: not bounded as a whole, but each piece is.
func (c *request) slowWriter() io.Writer {
	return &slowWriter{c: c, rc: http.NewResponseController(c.ResponseWriter)}
}

type slowWriter struct {
	c  *request
	rc *http.ResponseController
}

// Write implements io.Writer.
func (w *slowWriter) Write(p []byte) (int, error) {
	if err := w.rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return w.c.Write(p)
}

// bodyStream reads a long request body: not bounded as a whole, but each piece
// is. A nil bodyStream has not begun.
type bodyStream struct {
	body        io.Reader
	rc          *http.ResponseController
	readStarted bool
}

func (c *request) bodyStream() *bodyStream {
	return &bodyStream{body: c.r.Body, rc: http.NewResponseController(c.ResponseWriter)}
}

// Read implements io.Reader.
func (b *bodyStream) Read(p []byte) (int, error) {
	b.readStarted = true
	// The answer comes after the last byte, so that its time starts afresh too.
	deadline := time.Now().Add(writeTimeout)
	if err := b.rc.SetReadDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	if err := b.rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return b.body.Read(p)
}

// consumed says whether bytes may have been read: the body cannot be sent again.
func (b *bodyStream) consumed() bool { return b != nil && b.readStarted }
