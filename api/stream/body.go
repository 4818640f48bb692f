package stream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

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
	consumed bool
}

// NewBody returns the body of r, whose response goes to w.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	return &Body{body: r.Body, rc: http.NewResponseController(w)}
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.consumed = true
	if err := setDeadline(b.rc.SetReadDeadline, writeTimeout); err != nil {
		return 0, err
	}
	// The response comes after the last byte: its time limit starts again.
	if err := b.rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return b.body.Read(p)
}

// Consumed reports whether bytes may have been read. The body cannot be sent again then.
func (b *Body) Consumed() bool { return b != nil && b.consumed }

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
