package transport

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A peer stores a large request before it responds. Its response is waited for that much longer than that to a small
// one: the request would be sent again and again.
func TestResponseToALargeRequest(t *testing.T) {
	t.Parallel()
	const rpc = 100 * time.Millisecond
	for _, tt := range []struct {
		size  int
		takes time.Duration
		ok    bool
	}{
		{100, rpc / 2, true},
		{100, 2 * rpc, false},
		{4 * writeChunk, 4 * rpc, true},
		{4 * writeChunk, 6 * rpc, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			c := &outConn{Conn: here, rpc: rpc, stale: func() bool { return false }, released: func() {}}
			ended := make(chan struct{})
			defer func() { <-ended }()
			go func() {
				defer close(ended)
				_, _ = io.ReadFull(there, make([]byte, tt.size))
				time.Sleep(tt.takes) // virtual
				_, _ = there.Write([]byte{0xc0})
			}()
			if err := c.SetDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(make([]byte, tt.size)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); (err == nil) != tt.ok {
				t.Errorf("%d bytes, answered after %v: %v", tt.size, tt.takes, err)
			}
			_ = here.Close()
		})
	}
}
