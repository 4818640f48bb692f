package api

import (
	"io"
	"net/http"
	"time"
)

// How much of a refused body is taken, and for how long.
const (
	maxDrainBytes = 16 << 20
	drainTimeout  = 5 * time.Second
)

// drainRejectedBody sends a refusal that came before the whole body had, and then takes
// what the client still sends. A connection that is closed with something unread
// is reset, and many clients, which send everything before they read, never see
// the answer then: of a value that is too large they say that the pipe broke.
// (net/http waits for this reason, but not where the client asks for the
// connection to be closed.)
func (c *request) drainRejectedBody() {
	// With HTTP/2 the stream alone is given up. A client that waits for
	// 100-continue sends nothing after a refusal. Who was refused for being slow is
	// not waited for again.
	if c.failed == nil || c.bodyTimedOut || c.r.ContentLength == 0 || c.r.ProtoMajor != 1 || c.r.Header.Get("Expect") != "" {
		return
	}
	control := http.NewResponseController(c.ResponseWriter)
	if err := control.SetReadDeadline(time.Now().Add(drainTimeout)); err != nil {
		return // a test without a connection
	}
	if err := control.Flush(); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.r.Body, maxDrainBytes) // what remains after that is given up
}
