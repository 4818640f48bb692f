package api

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// A client that does not read makes the kernel hold little.
func TestUnreadBytesInTheKernel(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(testDeps(newFakeCluster("n1", true)))
	if err != nil {
		t.Fatal(err)
	}
	l := s.Listener(inner, nil)
	defer l.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	written := 0
	for chunk := make([]byte, 32<<10); ; {
		if err := served.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := served.Write(chunk)
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if written > 512<<10 {
		t.Errorf("the kernel took %d KiB that no client read", written>>10)
	}
}
