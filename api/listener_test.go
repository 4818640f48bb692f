package api

import (
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
)

// exhaustedListener fails a few times as the kernel does when it has no memory for a connection.
type exhaustedListener struct {
	net.Listener
	left atomic.Int64
}

func (l *exhaustedListener) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.ENOBUFS)}
	}
	return l.Listener.Accept()
}

// A kernel without memory for a connection does not end the node's API: it goes on accepting.
func TestListener_NoMemory(t *testing.T) {
	t.Parallel()
	n := startServer(t, newFakeCluster("n1", true))
	l := &exhaustedListener{Listener: listen(t)}
	l.left.Store(3)
	hs, done := n.HTTPServer(), make(chan error, 1)
	go func() { done <- hs.Serve(n.Listener(l, nil)) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Error(err)
	} else {
		_ = resp.Body.Close()
	}
	_ = hs.Close()
	if err := <-done; err != http.ErrServerClosed || l.left.Load() >= 0 {
		t.Errorf("it ended with %v, %d failures to go", err, l.left.Load())
	}
}
